"""Mistakes with ids of ledgers, each of which the simulation must find. As plants.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lost_table import OfflineEngine
from plants import Plant
from replaced import replaced

from bookie import rebuild
from bookie.incarnations import Incarnations, Newcomer
from bookie.rebuild import Rebuilt
from native.engine import Engine, Recovery
from native.frame import Code
from native.mark import Mark


@contextmanager
def create_whatever_is_asked() -> Iterator[None]:
    """Let a client that declares no ledger create any, whatever the metadata say."""

    async def take(_incarnations: Incarnations, _ledger_id: int) -> Newcomer:
        return Newcomer(Code.OK)

    with replaced(Incarnations, "newcomer", take):
        yield


@contextmanager
def rebuild_without_logs() -> Iterator[None]:
    """Take nothing from logs of which ledger of an id they have."""
    opening = OfflineEngine.open.__func__  # type: ignore[attr-defined]

    def open_without(cls: type[OfflineEngine], /, **options: Any) -> tuple[Engine, Recovery]:  # noqa: ANN401 - as Engine's
        opened: tuple[Engine, Recovery] = opening(cls, **(options | {"searches_logs": False}))
        return opened

    with replaced(OfflineEngine, "open", classmethod(open_without)):
        yield


@contextmanager
def lost_table_is_no_damage() -> Iterator[None]:
    """Rebuild without the ledger table as if nothing were missing."""
    find = rebuild._find_table

    def find_table(folder: Path, former: Mark | None, done: Rebuilt) -> rebuild._Table:
        return find(folder, former, done) if former is None else rebuild._best_table(folder)

    with replaced(rebuild, "_find_table", find_table):
        yield


ID_PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (create_whatever_is_asked, rebuild_without_logs, lost_table_is_no_damage)
}
