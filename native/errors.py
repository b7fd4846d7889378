"""The failures that the core can report.

CoreError
├── Corrupt       checksum or structure is wrong: damage, never absence
├── Absent        the ledger, or the entry of it, is not here
├── Refused       the ledger is fenced, or the master key is not its own
├── TooLarge      the bytes exceed the largest entry, column or frame; nothing was stored
├── OtherLedger   the ledger with this id here is of another incarnation
├── Full          no room now; try again after Event.SPACE
└── ProtocolBroken  the peer sent an invalid frame; close the connection

A failure of the operating system stays an OSError with its errno.
"""

from __future__ import annotations

import os
from typing import NoReturn

from native._core import lib


class CoreError(Exception):
    """Root of all errors that the core reports."""


class Corrupt(CoreError):
    """Bytes are damaged: wrong checksum or impossible structure."""


class Absent(CoreError):
    """The ledger is not known here, or is known and does not hold the entry."""


class Refused(CoreError):
    """The ledger is fenced, so that only recovery may add, or the master key is not its own."""


class OtherLedger(CoreError):
    """The ledger with this id here is of another incarnation."""


class TooLarge(CoreError):
    """The bytes exceed the largest entry, column or frame; nothing was stored."""

    def __init__(self, what: str, *, size: int, size_max: int, index: int | None = None) -> None:
        super().__init__(f"{what} of {size} bytes; {size_max} are the most")
        self.size = size
        self.size_max = size_max
        self.index = index
        """index of the item that is too large, if several were passed"""


class Full(CoreError):
    """No room now; the engine reports Event.SPACE when there is."""


class ProtocolBroken(CoreError):
    """The peer sent an invalid frame. Close the connection."""


_VERDICTS: dict[int, type[CoreError]] = {
    lib.BK_CORRUPT: Corrupt,
    lib.BK_ABSENT: Absent,
    lib.BK_NO_LEDGER: Absent,
    lib.BK_FENCED: Refused,
    lib.BK_BAD_KEY: Refused,
    lib.BK_OTHER_LEDGER: OtherLedger,
    lib.BK_FULL: Full,
    lib.BK_CLOSE: ProtocolBroken,
}


def raise_for(result: int, what: str, failed: bytes = b"") -> NoReturn:
    """Raise the error for *result*, which is not 0; *what* names the object for the message.

    *failed*: path of the file that the disk could not read, for the OSError; empty if not known.
    """
    if result < 0:
        path = [os.fsdecode(failed)] if failed else []
        raise OSError(-result, f"{what}: {os.strerror(-result)}", *path)
    raise _VERDICTS.get(result, CoreError)(what)


def check(result: int, what: str, failed: bytes = b"") -> None:
    """Raise as raise_for() unless *result* is 0."""
    if result != 0:
        raise_for(result, what, failed)
