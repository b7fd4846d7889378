"""Entries that a bookie acknowledged must survive every restart.

The history checker sees the cluster, where other copies hide what one bookie lost.
So each bookie is held to its own word too: what a client was told is synced here, is
here after the machine was cut off, unless its disk was damaged.
"""

from __future__ import annotations

from native.engine import Engine
from native.errors import CoreError

_ADD_RESPONSE = b"\x00\x00\x00\x18\x02\x01"
_ADD_RESPONSE_SIZE = 28


class Promises:
    """The entries that one bookie acknowledged, and which of them it lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: list[tuple[int, int]] = []
        """(ledger, entry) that was acknowledged and is gone"""
        self.void = False
        """True once the disk was damaged: nothing is promised any more"""
        self._acknowledged: dict[int, set[int]] = {}
        self._due: dict[int, set[int]] = {}

    def keep(self, ledger: int, entry: int) -> None:
        """A client was told that the entry is stored."""
        self._acknowledged.setdefault(ledger, set()).add(entry)

    def cover(self, ledger: int, entry: int) -> bool:
        """True if the bookie has acknowledged the entry."""
        return entry in self._acknowledged.get(ledger, ())

    def forget(self, ledger: int) -> None:
        """Nobody holds the bookie to its word about a ledger: the metadata lost it."""
        self._acknowledged.pop(ledger, None)
        self._due.pop(ledger, None)

    def remember(self, engine: Engine) -> None:
        """The machine dies: what was acknowledged and is here now must be here again."""
        self._due = {}
        for ledger, entries in self._acknowledged.items():
            due = entries & held(engine, ledger)
            if due:
                self._due[ledger] = due

    def check(self, engine: Engine) -> None:
        """The bookie is back: note what is missing."""
        if not self.void:
            for ledger, due in self._due.items():
                self.lost += [(ledger, entry) for entry in sorted(due - held(engine, ledger))]
        self._due = {}


class Overheard:
    """Looks for acknowledgements among the responses on one connection."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._rest = b""  # the begin of a frame
        self._skip = 0  # bytes of a frame that are still to come

    def hear(self, data: bytes) -> None:
        """Take note of what the bookie sends next."""
        data, at = self._rest + data, self._skip
        while at + _ADD_RESPONSE_SIZE <= len(data):
            if data.startswith(_ADD_RESPONSE, at) and data[at + 8 : at + 12] == bytes(4):
                self._promises.keep(
                    int.from_bytes(data[at + 12 : at + 20], "big"),
                    int.from_bytes(data[at + 20 : at + 28], "big"),
                )
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        self._rest = data[at:]
        self._skip = max(0, at - len(data))


def held(engine: Engine, ledger: int) -> set[int]:
    """Return the ids of the ledger's entries that the engine holds."""
    found: set[int] = set()
    try:
        while runs := engine.runs(ledger, max(found, default=-1)):
            for first, last in runs:
                found.update(range(first, last + 1))
    except CoreError:
        return found
    return found
