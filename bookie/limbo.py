"""Limbo: this bookie may have lost records, and must not deny that entries exist.

Recovery of a ledger takes "no such entry" for "never written" and cuts the ledger
there. So a bookie that met damage where records lay answers an I/O error instead,
until somebody has compared it with its peers. The file ``limbo`` in the ledger folder
keeps that over restarts: one JSON line for each damaged place. Deleting the file ends
limbo at the next start; do so once the ledgers here are known to be whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bookie.durable import sync_folder
from metadata.calls import DamagedPlace

FILE_NAME = "limbo"


def in_limbo(ledger_folder: Path) -> bool:
    """Whether an earlier start, or a rebuild, left this bookie in limbo."""
    return (ledger_folder / FILE_NAME).exists()


def enter_limbo(ledger_folder: Path, places: Sequence[DamagedPlace]) -> None:
    """Add *places* to the limbo file, durably. Blocks for two syncs."""
    with (ledger_folder / FILE_NAME).open("ab") as file:
        for place in places:
            file.write(msgspec.json.encode(place) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(ledger_folder)
