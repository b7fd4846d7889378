"""Limbo: this bookie may have lost records, and must not deny that entries exist.

Recovery of a ledger takes "no such entry" for "never written" and cuts the ledger
there. So a bookie that may have lost what it acknowledged answers an I/O error instead,
until its ledgers were compared with their other copies. It gets there by

    damage that a start meets in the journal, the ledger table, or an index and its log
    a rebuild (rebuild.py) that met damage, or had no mark to tell which journals there were
    empty folders, while ledger records name the bookie (amnesia.py): it was given new disks
    a damaged record of which nobody knows what it held

A damaged record that is known puts no bookie into limbo: its entry answers an I/O error by
itself, and damage.py asks for its repair.

The file ``limbo`` in the ledger folder keeps limbo over restarts: one JSON line for each
damaged place, perhaps none. Repair removes it, in the end. A bookie without peers stays in
limbo; deleting the file ends that at the next start, for who knows that nothing is lost.

Only with a journal is an unclean stop harmless; there is no mode without one.
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
    """Whether an earlier start, or a rebuild, left this bookie in limbo."""
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
    """Whether one bookie that runs is in limbo.

    Attributes:
        is_on: what engine and file say too.
        entered: how often there was a reason since the start.
    """

    def __init__(self, ledger_folder: Path, engine: Engine) -> None:
        self._ledger_folder = ledger_folder
        self._engine = engine
        self._one_at_a_time = threading.Lock()
        self.is_on = False
        self.entered = 0

    def resume(self) -> None:
        """Be in limbo if the file says so. Blocks."""
        if in_limbo(self._ledger_folder):
            self._switch(True)

    def enter(self, places: Sequence[DamagedPlace]) -> None:
        """Deny nothing from now on, durably. Blocks for two syncs.

        Raises:
            OSError: the file cannot be written; nothing is denied all the same.
        """
        with self._one_at_a_time:
            self._switch(True)
            enter_limbo(self._ledger_folder, places)

    def leave(self, *, doubts: int | None = None) -> bool:
        """Deny again what is not here, once that is durable. Blocks for one sync.

        Args:
            doubts: what *entered* was before the ledgers were looked at; if that changed,
                the bookie stays in limbo. None: whatever it was.

        Returns:
            Whether limbo is over.

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
