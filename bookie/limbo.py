"""Limbo: this bookie may have lost records, so it never answers that an entry is absent.

Recovery of a ledger takes "no such entry" for "never written" and cuts the ledger there. So a
bookie that may have lost acknowledged entries answers an I/O error instead, until its ledgers
were compared with their other copies. The reasons are

    damage found at a start in the journal, the ledger table, or an index and its log
    a rebuild (rebuild.py) that found damage, or had no mark that names the journals, or no
    sound ledger table
    empty folders although ledger records name the bookie (lost_records.py)
    a damaged record of unknown content

A damaged record of a known entry is no reason: reads of the entry return an I/O error anyway, and
damage.py marks it for repair.

The file ``limbo`` in the ledger folder keeps limbo over restarts: one JSON line for each
damaged place, perhaps none. Repair removes it at the end. A bookie without peers stays in limbo;
an operator who knows that nothing is lost may delete the file, which ends limbo at the next start.

An unclean stop is harmless because of the journal; there is no mode without one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bookie.durable import open_private, sync_folder
from metadata.calls import DamagedPlace
from native.engine import Engine

FILE_NAME = "limbo"

_log = logging.getLogger(__name__)


def in_limbo(ledger_folder: Path) -> bool:
    """Return True if an earlier start or a rebuild left this bookie in limbo."""
    return (ledger_folder / FILE_NAME).exists()


def enter_limbo(ledger_folder: Path, places: Sequence[DamagedPlace]) -> None:
    """Add *places* to the limbo file, durably. Blocks for two syncs."""
    with open(ledger_folder / FILE_NAME, "ab", opener=open_private) as file:
        file.writelines(msgspec.json.encode(place) + b"\n" for place in places)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(ledger_folder)


def leave_limbo(ledger_folder: Path) -> None:
    """Remove the limbo file, durably. Blocks for one sync; harmless without a file."""
    (ledger_folder / FILE_NAME).unlink(missing_ok=True)
    sync_folder(ledger_folder)


class Limbo:
    """The limbo state of a running bookie.

    Attributes:
        is_on: True in limbo; engine and file agree.
        entered: reasons found since the start.
    """

    def __init__(self, ledger_folder: Path, engine: Engine) -> None:
        self._ledger_folder = ledger_folder
        self._engine = engine
        self._one_at_a_time = threading.Lock()
        self.is_on = False
        self.entered = 0

    def resume(self) -> None:
        """Enter limbo if the file exists. Blocks."""
        if in_limbo(self._ledger_folder):
            self._switch(True)

    def enter(self, places: Sequence[DamagedPlace]) -> None:
        """Enter limbo, durably. Blocks for two syncs.

        Raises:
            OSError: the file cannot be written; the bookie is in limbo nevertheless.
        """
        with self._one_at_a_time:
            self._switch(True)
            enter_limbo(self._ledger_folder, places)

    def leave(self, *, doubts: int | None = None) -> bool:
        """Leave limbo, durably. Blocks for one sync.

        Args:
            doubts: the value of *entered* before the ledgers were compared; if it changed, the
                bookie stays in limbo. With None it leaves in any case.

        Returns:
            True if limbo is over.

        Raises:
            OSError: the file cannot be removed; the bookie stays in limbo.
        """
        with self._one_at_a_time:
            if doubts is not None and doubts != self.entered:
                return False
            leave_limbo(self._ledger_folder)
            self._switch(False)
            return True

    def _switch(self, is_on: bool) -> None:
        self._engine.set_limbo(is_on)
        self.entered += is_on
        if is_on != self.is_on:
            self.is_on = is_on
            _log.warning(_ENTERED if is_on else _LEFT, self._ledger_folder)


_ENTERED = (
    "in limbo: records may be lost here, so a missing entry is answered as an I/O error "
    "until repair has compared all ledgers; see %s/limbo"
)
_LEFT = "no longer in limbo: every ledger in %s is whole"
