from __future__ import annotations

import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from lease_clock import LeaseClock
from memory_store import MemoryStore
from rig import MIB, Peer, Rig, serving, settings, until

import bookie.garbage
import bookie.storage
from bookie import ledger_walk
from bookie.compaction import JOINED_MIN
from bookie.config import BookieConfig
from bookie.disk import DiskGuard, Level
from bookie.garbage import PAUSE_S, ROLL_SIZE_MIN, Collector
from bookie.limbo import in_limbo
from bookie.mark import write_mark
from metadata.calls import GarbageReport
from metadata.errors import MetadataUnavailable
from metadata.listings import ledger_values
from metadata.records import cookie_key, ledger_key
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import open_store
from native.faults import clear_fault, plan_fault
from native.mark import Mark

Values = dict[int, bytes | None]


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    clear_fault()


class Yard:
    """A bookie with a collector and a metadata store that knows the bookie."""

    def __init__(self, rig: Rig, store: MetadataStore, config: BookieConfig) -> None:
        self.rig = rig
        self.store = store
        self.disk = DiskGuard(rig.storage.engine, config)
        self.collector = Collector(rig.storage, store, config, self.disk, bookie_id="b1")
        self.collector.pause_s = 0.0
        self.peer: Peer = rig.connect()

    async def write(self, ledger_id: int, *, count: int = 1, size: int = 100) -> None:
        for entry_id in range(count):
            answer = await self.peer.ask(v2.add(ledger_id, entry_id, bytes(size)))
            assert answer.code == 0

    async def create(self, *, count: int = 1, size: int = 100) -> int:
        """A ledger as clients of the metadata make them."""
        ledger_id = await self.store.next_id("ledgers")
        await self.store.put(ledger_key(ledger_id), b"{}")
        await self.write(ledger_id, count=count, size=size)
        return ledger_id

    async def delete(self, ledger_id: int) -> None:
        await self.store.delete(ledger_key(ledger_id))

    async def code(self, ledger_id: int) -> int:
        return (await self.peer.ask(v2.read(ledger_id, 0))).code


@asynccontextmanager
async def yard(folder: Path, **changed: object) -> AsyncIterator[Yard]:
    config = settings(folder, **changed)
    async with open_store(config.metadata) as store:
        await store.put(cookie_key("b1"), b"{}")
        async with serving(config) as rig:
            yield Yard(rig, store, config)


async def test_a_ledger_deleted_from_the_metadata_is_deleted_here(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        kept, gone = await here.create(), await here.create()
        await here.delete(gone)
        assert (await here.collector.collect()).ledgers_deleted == 1
        assert (await here.code(kept), await here.code(gone)) == (0, 1)
        assert (await here.peer.ask(v2.add(gone, 1))).code == 104  # a late writer


async def test_a_ledger_that_the_metadata_never_issued_is_kept(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.create()
        await here.write(1 << 62)
        for _ in range(3):
            assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(1 << 62) == 0


async def test_a_foreign_ledger_stays_foreign_when_the_counter_passes_it(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.write(5)
        await here.collector.collect()
        await here.store.next_id("ledgers", 100)
        assert (await here.collector.collect()).ledgers_deleted == 0
    async with yard(tmp_path) as here:
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(5) == 0


async def test_foreign_ledgers_are_deleted_when_asked_to(tmp_path: Path) -> None:
    async with yard(tmp_path, gc_foreign_ledgers="delete") as here:
        await here.write(1 << 62)
        assert (await here.collector.collect()).ledgers_deleted == 1
        assert await here.code(1 << 62) == 1


async def test_a_damaged_list_of_foreign_ledgers_deletes_nothing(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        gone = await here.create()
        await here.delete(gone)
        (tmp_path / "ledgers" / "foreign.json").write_text("[1, ")
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert here.collector.runs == {"ok": 0, "failed": 1}


async def test_a_store_that_does_not_know_this_bookie_deletes_nothing(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        gone = await here.create()
        await here.delete(gone)
        await here.store.delete(cookie_key("b1"))
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(gone) == 0


@pytest.mark.parametrize("call", ["get", "list", "next_id"])
async def test_a_store_that_does_not_answer_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("gone")

    async with yard(tmp_path) as here:
        gone = await here.create()
        await here.delete(gone)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, call, unavailable)
            assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(gone) == 0
        assert (await here.collector.collect()).ledgers_deleted == 1


async def fill(here: Yard, *, ledgers: int) -> list[int]:
    """Ledgers of 2 MiB each, in logs that are closed."""
    made = [await here.create(count=8, size=256 << 10) for _ in range(ledgers)]
    await here.rig.storage.checkpoint()
    await here.rig.storage.roll_log()
    return made


def log_sizes(here: Yard) -> dict[int, int]:
    return {log.log_id: log.size for log in here.rig.storage.engine.store.logs(-1, 100)}


async def test_a_forced_major_collection_frees_the_space_of_deleted_ledgers(
    tmp_path: Path,
) -> None:
    async with yard(tmp_path) as here:
        first, *others = await fill(here, ledgers=6)
        before = sum(log_sizes(here).values())
        for ledger_id in others:
            await here.delete(ledger_id)
        report = await here.collector.collect(major=True)
        assert report.ledgers_deleted == 5
        assert report.logs_deleted + report.logs_compacted >= 1
        assert report.freed_size > 9 * MIB
        assert sum(log_sizes(here).values()) < before - 9 * MIB
        answer = await here.peer.ask(v2.read(first, 7))
        assert answer.body == v2.entry(first, 7, bytes(256 << 10))


# --- collections that peers ask for --------------------------------------------------------


async def test_a_major_collection_leaves_a_small_open_log_open(tmp_path: Path) -> None:
    async with yard(tmp_path, log_size_max=64 * MIB, memtable_size=64 * MIB) as here:
        kept = await here.create(count=4)
        for _ in range(5):
            gone = await here.create(count=4)
            await here.rig.storage.checkpoint()
            await here.delete(gone)
            report = await here.collector.collect(major=True)
            assert report.ledgers_deleted == 1
            assert [log.reason for log in report.kept] == ["it is being written"]
        assert len(log_sizes(here)) == 1
        assert ROLL_SIZE_MIN <= 17 * (256 << 10)
        large = await here.create(count=17, size=256 << 10)
        await here.rig.storage.checkpoint()
        await here.delete(large)
        assert (await here.collector.collect(major=True)).freed_size > 4 * MIB
        assert await here.code(kept) == 0


async def test_collections_that_are_asked_for_at_once_are_one(tmp_path: Path) -> None:
    async with yard(tmp_path) as here, trio.open_nursery() as nursery:
        reports: list[GarbageReport] = []

        async def collect(major: bool) -> None:
            reports.append(await here.collector.collect(major=major))

        gone = await here.create()
        await here.delete(gone)
        for number in range(40):
            nursery.start_soon(collect, number % 4 == 0)
        await until(lambda: len(reports) == 40)
        assert here.collector.runs["ok"] <= 3  # the first, and one of each kind for the others
        assert here.collector.total.ledgers_deleted == 1


async def test_a_collection_that_runs_does_not_count_for_who_asks_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have passed by what they want to be gone."""
    async with yard(tmp_path) as here, trio.open_nursery() as nursery:
        ledger_id = await here.create()
        free, freeing, go_on = here.collector._compactor.free, trio.Event(), trio.Event()

        async def held(threshold: float) -> GarbageReport:
            freeing.set()
            await go_on.wait()
            return await free(threshold)

        monkeypatch.setattr(here.collector._compactor, "free", held)
        nursery.start_soon(partial(here.collector.collect, major=True))
        await freeing.wait()
        await here.delete(ledger_id)
        reports: list[GarbageReport] = []

        async def collect() -> None:
            reports.append(await here.collector.collect(major=True))

        nursery.start_soon(collect)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        await until(lambda: bool(reports))
        assert reports[0].ledgers_deleted == 1


async def test_collections_keep_their_distance(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    async def collected(_self: Collector, _major: bool | None) -> GarbageReport:
        began.append(trio.current_time())
        await trio.sleep(0.25)
        return GarbageReport()

    monkeypatch.setattr(Collector, "_collect", collected)
    config = settings(tmp_path, checkpoint_interval_s=0.0)
    async with serving(config, threaded=False) as rig:
        disk = DiskGuard(rig.storage.engine, config)
        collector = Collector(rig.storage, MemoryStore(), config, disk, bookie_id="b1")
        for major in (True, False, None):
            await collector.collect(major=major)
    assert [after - before for before, after in pairwise(began)] == [0.25 + PAUSE_S] * 2


async def test_small_logs_are_joined_by_the_next_compaction(tmp_path: Path) -> None:
    """What is left of each large log is little; without this, it would be a log for ever."""
    async with yard(tmp_path) as here:
        kept = []
        for _ in range(2 * JOINED_MIN):
            kept.append(await here.create(count=3))
            gone = await here.create(count=8, size=64 << 10)
            await here.rig.storage.checkpoint()
            await here.rig.storage.roll_log()
            await here.delete(gone)
        report = await here.collector.collect(major=False)
        assert report.ledgers_deleted == 2 * JOINED_MIN
        assert report.logs_compacted == 2 * JOINED_MIN
        assert report.freed_size > 2 * JOINED_MIN * (512 << 10)
        assert len(log_sizes(here)) == 1
        for ledger_id in kept:
            assert [(await here.peer.ask(v2.read(ledger_id, each))).code for each in range(3)] == [
                0
            ] * 3
    async with yard(tmp_path) as here:
        assert [await here.code(each) for each in kept] == [0] * len(kept)
        assert here.rig.storage.recovery.damages == 0


async def test_logs_that_cannot_be_deleted_are_left_for_the_next_collection(
    tmp_path: Path,
) -> None:
    async with yard(tmp_path) as here:
        ids = list[int]()
        for _ in range(JOINED_MIN):
            ids += [await here.create(size=64 << 10), await here.create()]
            await here.rig.storage.checkpoint()
            await here.rig.storage.roll_log()
        for ledger_id in ids[1::2]:
            await here.delete(ledger_id)
        plan_fault("log_erase", count=1000)
        for _ in range(2):
            report = await here.collector.collect(major=True)
            assert (report.logs_deleted, report.freed_size) == (0, 0)
            reasons = [kept.reason for kept in report.kept if kept.live == 0]
            assert reasons == ["it could not be deleted"] * JOINED_MIN
        clear_fault()
        report = await here.collector.collect(major=True)
        assert report.logs_deleted == JOINED_MIN
        assert [kept.live for kept in report.kept if kept.live == 0] == []
        assert [await here.code(ledger_id) for ledger_id in ids] == [0, 1] * JOINED_MIN


async def test_a_few_small_logs_and_large_ones_between_are_left(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        for count in (1, 1, 1, 8, 1, 1, 1):
            await here.create(count=count, size=256 << 10)
            await here.rig.storage.checkpoint()
            await here.rig.storage.roll_log()
        before = log_sizes(here)
        assert (await here.collector.collect(major=True)).logs_compacted == 0
        assert log_sizes(here) == before


# --- what stays ----------------------------------------------------------------------------


async def test_every_log_that_is_left_says_why(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await fill(here, ledgers=2)
        report = await here.collector.collect(major=True)
        assert {kept.log_id for kept in report.kept} == set(log_sizes(here))
        assert all(kept.reason for kept in report.kept)


async def test_nothing_is_compacted_on_a_full_disk(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        first, second = await fill(here, ledgers=2)
        await here.delete(first)
        here.disk.level = Level.FULL
        report = await here.collector.collect(major=True)
        assert report.logs_compacted == 0
        assert "the disk is full" in {kept.reason for kept in report.kept}
        here.disk.level = Level.WARN
        assert (await here.collector.collect(major=True)).logs_compacted == 0
        here.disk.level = Level.OK
        assert (await here.collector.collect(major=True)).logs_compacted >= 1
        assert await here.code(second) == 0


async def test_a_damaged_log_is_left_alone_and_the_others_go_on(tmp_path: Path) -> None:
    async with yard(tmp_path, log_size_max=MIB) as here:
        first = await fill(here, ledgers=2)
        second = await fill(here, ledgers=2)
        damaged = min(log_sizes(here))
        path = next((tmp_path / "ledgers").glob(f"{damaged:08x}.log"))
        with path.open("r+b") as file:
            file.seek(4096 + 100_000)
            file.write(b"\xff" * 64)
        await here.delete(first[1])
        await here.delete(second[1])
        report = await here.collector.collect(major=True)
        assert path.exists()
        assert damaged in {kept.log_id for kept in report.kept}
        assert await here.code(second[0]) == 0


async def test_a_log_is_joined_with_its_damaged_copy(tmp_path: Path) -> None:
    """A copy of one of them would stand for both, and neither has all that the other has."""
    folder, before = tmp_path / "ledgers", tmp_path / "before"
    async with yard(tmp_path) as here:
        first, second = await fill(here, ledgers=2)
        shutil.copytree(folder, before)
        await here.delete(first)
        assert (await here.collector.collect(major=True)).logs_compacted == 1
        place = here.rig.storage.engine.store.find(second, 0)
    copy = folder / f"{place.log_id:08x}.log"
    with copy.open("r+b") as file:
        file.seek(place.offset + 60)
        file.write(b"\xff")
    copy.with_suffix(".index").unlink()
    for log in before.glob("*.log"):
        for path in (log, log.with_suffix(".index")):
            shutil.copy(path, folder)
    for compacted in (2, 0):
        async with yard(tmp_path) as here:
            report = await here.collector.collect()
            assert len([kept for kept in report.kept if "copy" in kept.reason]) == compacted
            report = await here.collector.collect(major=True)
            assert report.logs_compacted == compacted
            assert not [kept for kept in report.kept if "copy" in kept.reason]
            assert await here.code(second) == 0


async def test_a_ledger_made_while_the_metadata_is_listed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with yard(tmp_path) as here:
        await here.create()
        made: list[int] = []

        async def busy(store: MetadataStore, ids: Sequence[int]) -> AsyncIterator[Values]:
            async for values in ledger_values(store, ids):
                yield values
            made.append(await here.create())

        monkeypatch.setattr(bookie.garbage, "ledger_values", busy)
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(made[0]) == 0


async def test_a_listing_that_misses_a_ledger_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look asks for that ledger by itself."""

    async def blind(store: MetadataStore, ids: Sequence[int]) -> AsyncIterator[Values]:
        async for values in ledger_values(store, ids):
            yield dict.fromkeys(values)

    async with yard(tmp_path) as here:
        ledger_id = await here.create()
        monkeypatch.setattr(bookie.garbage, "ledger_values", blind)
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert await here.code(ledger_id) == 0


async def test_a_log_is_not_deleted_before_the_mark_that_closed_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash would leave a mark that names a log which is gone: the bookie was in limbo."""
    writing, go_on = threading.Event(), threading.Event()

    def held(folder: Path, mark: Mark, before: Mark | None) -> None:
        writing.set()
        assert go_on.wait(60)
        write_mark(folder, mark, before)

    (tmp_path / "live").mkdir()
    async with yard(tmp_path / "live") as here, trio.open_nursery() as nursery:
        ledger_id = await here.create(count=4)
        await here.rig.storage.checkpoint()
        await here.delete(ledger_id)
        monkeypatch.setattr(bookie.storage, "write_mark", held)
        nursery.start_soon(here.rig.storage.roll_log)
        await until(writing.is_set)
        report = await here.collector.collect()
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        go_on.set()
        await until(lambda: not any(log.open for log in here.rig.storage.engine.store.logs()))
        assert (report.ledgers_deleted, report.logs_deleted) == (1, 0)
        assert (await here.collector.collect()).logs_deleted == 1
    async with serving(settings(tmp_path / "crashed")) as rig:
        assert not in_limbo(tmp_path / "crashed" / "ledgers")
        assert rig.storage.recovery.damages == 0


async def test_the_timer_collects(tmp_path: Path) -> None:
    async with yard(tmp_path, gc_interval_s=0.01) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.collector.run)
        await until(lambda: here.collector.runs["ok"] > 1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("off_ms", [30 * 86_400_000, -30 * 86_400_000])
async def test_a_tombstone_lasts_by_the_stores_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_ms: int
) -> None:
    """A host's clock that is set ahead lets no late writer in."""
    wall, boot = LeaseClock(), LeaseClock()
    wall.now_ms = 1_700_000_000_000
    store = await SqliteStore.open(tmp_path / "m.db", clock_ms=boot, wall_ms=wall, boot="1")
    await store.put(cookie_key("b1"), b"{}")
    config = settings(tmp_path / "bookie")
    async with serving(config) as rig:
        here = Yard(rig, store, config)
        gone = await here.create()
        await here.delete(gone)
        assert (await here.collector.collect()).ledgers_deleted == 1
        monkeypatch.setattr(time, "time_ns", lambda: (wall.now_ms + off_ms) * 1_000_000)
        for _ in range(2):
            await here.collector.collect(major=False)
            assert (await here.peer.ask(v2.add(gone, 1))).code == 104
        for _ in range(8):
            boot.advance(86_400)
            wall.advance(86_400)
            await here.collector.collect()
        assert (await here.peer.ask(v2.add(gone, 1))).code == 0
    await store.aclose()


async def test_with_many_ledgers_a_collection_reads_those_that_changed_and_a_part_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part in turn; what was deleted goes at once; what never was in the metadata stays."""
    monkeypatch.setattr(ledger_walk, "WALK_COUNT", 5)
    looked: list[int] = []

    async def noted(store: MetadataStore, ids: Sequence[int]) -> AsyncIterator[Values]:
        looked.extend(ids)
        async for values in ledger_values(store, ids):
            yield values

    monkeypatch.setattr(bookie.garbage, "ledger_values", noted)
    async with yard(tmp_path) as here:
        await here.write(40)  # foreign
        ids = [await here.create() for _ in range(20)]
        assert (await here.collector.collect()).ledgers_deleted == 0
        assert looked == [*ids, 40], "all of them, at first"
        looked.clear()
        await here.store.next_id("ledgers", 100)  # the foreign one would look deleted now
        await here.delete(ids[17])
        late = await here.create()
        await here.delete(late)
        assert (await here.collector.collect()).ledgers_deleted == 2
        assert looked == [*ids[:5], ids[17], 40, late]
        turns: set[int] = set()
        for _ in range(5):
            looked.clear()
            assert (await here.collector.collect()).ledgers_deleted == 0
            assert len(looked) <= 7
            turns |= set(looked)
        assert turns >= {*ids} - {ids[17]}
        assert await here.code(40) == 0
        looked.clear()
        await here.collector.collect(major=False)
        assert len(looked) == 20, "an operator asked for it"


async def test_after_a_collection_that_failed_all_ledgers_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_walk, "WALK_COUNT", 5)

    async def failing(_store: MetadataStore, ids: Sequence[int]) -> AsyncIterator[Values]:
        yield {ids[0]: b"{}"}
        raise MetadataUnavailable("away")

    async with yard(tmp_path) as here:
        ids = [await here.create() for _ in range(20)]
        await here.collector.collect()
        await here.delete(ids[17])
        with monkeypatch.context() as patch:
            patch.setattr(bookie.garbage, "ledger_values", failing)
            assert (await here.collector.collect()).ledgers_deleted == 0
        assert (await here.collector.collect()).ledgers_deleted == 1
