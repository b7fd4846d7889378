from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import v2
from rig import Peer, Rig, serving, settings

from bookie.damage import RUNS_MAX, join, may_hide_entries, runs_of
from bookie.disk import DiskGuard
from bookie.limbo import in_limbo
from bookie.upkeep import Upkeep
from metadata.calls import DamagedPlace
from metadata.errors import MetadataUnavailable
from metadata.records import (
    DamagedRun,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import open_store
from native.store import scan_log

ENTRIES = 10
LEDGER = 1


class Ward:
    """A bookie whose one log was damaged while it was down, and its metadata."""

    def __init__(self, rig: Rig, store: MetadataStore, upkeep: Upkeep) -> None:
        self.rig = rig
        self.store = store
        self.upkeep = upkeep
        self.peer: Peer = rig.connect()

    async def code(self, entry_id: int) -> int:
        return (await self.peer.ask(v2.read(LEDGER, entry_id))).code

    async def mark(self, ledger_id: int = LEDGER) -> UnderReplicated | None:
        key = underreplicated_key(ledger_id)
        found = await self.store.get(key)
        return decode_underreplicated(key, found.value) if found else None


def damage(folder: Path, entries: Sequence[int]) -> Path:
    """Flip a bit of the payload of each of *entries*."""
    (log,) = (folder / "ledgers").glob("*.log")
    content = bytearray(log.read_bytes())
    for record in list(scan_log(log)):
        if getattr(record, "entry_id", -1) in entries:
            content[record.offset + 70] ^= 1
    log.write_bytes(content)
    return log


@asynccontextmanager
async def ward(folder: Path, *, damaged: Sequence[int] = (5,)) -> AsyncIterator[Ward]:
    config = settings(folder)
    async with serving(config) as rig:
        peer = rig.connect()
        for entry_id in range(ENTRIES):
            assert (await peer.ask(v2.add(LEDGER, entry_id, bytes(100)))).code == 0
    damage(folder, damaged)
    async with open_store(config.metadata) as store, serving(config) as rig:
        await store.put(ledger_key(LEDGER), b"{}")
        disk = DiskGuard(rig.storage.engine, config)
        yield Ward(rig, store, Upkeep(rig.storage, store, config, disk, bookie_id="b1"))


async def test_damage_that_a_read_met_is_brought_to_repair(tmp_path: Path) -> None:
    async with ward(tmp_path, damaged=(3, 4, 7)) as here:
        for entry_id in (3, 4, 5, 7):
            assert await here.code(entry_id) == (0 if entry_id == 5 else 101)
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert (mark.reason, mark.bookies) == ("damaged", ["b1"])
        assert mark.damaged == [DamagedRun("b1", 3, 4), DamagedRun("b1", 7, 7)]
        assert here.upkeep.watch.marked == 3


async def test_damage_of_a_known_entry_is_no_limbo(tmp_path: Path) -> None:
    """BK-11: the entry itself is not denied; the others may be."""
    async with ward(tmp_path) as here:
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        assert not here.rig.storage.limbo.is_on
        assert await here.code(ENTRIES) == 2


async def test_damage_is_told_once_however_often_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ward(tmp_path) as here:
        for _ in range(3):
            assert await here.code(5) == 101
            await here.upkeep.watch.look()
        assert len([line for line in caplog.messages if line.startswith("damaged: ")]) == 1
        assert here.upkeep.watch.marked == 1


async def test_a_mark_that_is_there_keeps_what_it_says(tmp_path: Path) -> None:
    known = UnderReplicated(LEDGER, "bookie lost", 7, ["b0"], [DamagedRun("b1", 4, 4)], attempts=2)
    async with ward(tmp_path) as here:
        await here.store.put(underreplicated_key(LEDGER), encode_record(known))
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert (mark.reason, mark.since_ms, mark.attempts) == ("bookie lost", 7, 2)
        assert mark.bookies == ["b0", "b1"]
        assert mark.damaged == [DamagedRun("b1", 4, 5)]


async def test_a_ledger_that_the_metadata_does_not_know_is_not_marked(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        await here.store.delete(ledger_key(LEDGER))
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        assert await here.mark() is None


async def test_without_the_metadata_damage_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("gone")

    async with ward(tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "put", unavailable)
            assert await here.code(5) == 101
            await here.upkeep.watch.look()
        assert await here.mark() is None
        await here.upkeep.watch.look()
        assert await here.mark() is not None


async def test_a_damaged_record_of_unknown_content_leads_to_limbo(tmp_path: Path) -> None:
    """BK-11: it may have been any entry, so none is denied any more."""
    async with ward(tmp_path, damaged=()) as here:
        place = DamagedPlace(str(tmp_path / "ledgers" / "00000001.log"), 4096)
        assert may_hide_entries(place)
        assert await here.code(ENTRIES) == 2
        await trio.to_thread.run_sync(here.rig.storage.limbo.enter, [place])
        assert await here.code(ENTRIES) == 101
        assert in_limbo(tmp_path / "ledgers")


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        ([], []),
        ([(1, 1), (2, 2)], [(1, 2)]),
        ([(5, 9), (1, 3)], [(1, 3), (5, 9)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
        ([(1, 4), (3, 6), (8, 8)], [(1, 6), (8, 8)]),
    ],
)
def test_runs_that_touch_are_one(
    spans: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    assert join(spans) == joined


def test_entries_come_as_runs() -> None:
    assert runs_of({4, 1, 2, 9, 3}) == [(1, 4), (9, 9)]
    assert len(runs_of(range(0, 4 * RUNS_MAX, 2))) == 2 * RUNS_MAX
