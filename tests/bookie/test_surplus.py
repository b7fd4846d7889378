from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import v2
from leases import grant
from rig import Rig, serving, settings

from bookie import surplus
from bookie.damage import mark_for_repair
from bookie.disk import DiskGuard
from bookie.garbage import Collector
from metadata.calls import GarbageReport
from metadata.errors import MetadataUnavailable
from metadata.records import (
    Fragment,
    LedgerRecord,
    LedgerState,
    cookie_key,
    decode_underreplicated,
    encode_record,
    ledger_key,
    repair_lease,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore, Versioned
from metadata.urls import open_store
from native import frame

ME, OTHER = "b1", "b2"
LEDGER = 1


class Yard:
    """A bookie with one ledger, and the metadata that say where its copies are."""

    def __init__(self, rig: Rig, store: MetadataStore, collector: Collector) -> None:
        self.rig = rig
        self.store = store
        self.collector = collector

    async def place(
        self, *bookies: str, state: LedgerState = LedgerState.CLOSED, ledger_id: int = LEDGER
    ) -> None:
        """Say which bookie holds each fragment of the ledger."""
        record = self.record(bookies, state, ledger_id)
        await self.store.put(ledger_key(ledger_id), encode_record(record))

    @staticmethod
    def record(bookies: Sequence[str], state: LedgerState, ledger_id: int) -> LedgerRecord:
        fragments = [Fragment(i, [bookie]) for i, bookie in enumerate(bookies)]
        return LedgerRecord(ledger_id, 1, 1, 1, state, fragments, last_entry=0, length=5)

    async def moved_away(self) -> int:
        report: GarbageReport = await self.collector.collect()
        assert report.ledgers_deleted == 0
        return report.ledgers_moved_away

    async def code(self, ledger_id: int = LEDGER) -> int:
        return (await self.rig.connect().ask(v2.read(ledger_id, 0))).code

    async def add(self, *, ledger_id: int = LEDGER, flags: int = 0) -> int:
        return (await self.rig.connect().ask(v2.add(ledger_id, 0, flags=flags))).code


@asynccontextmanager
async def yard(folder: Path) -> AsyncIterator[Yard]:
    config = settings(folder)
    async with open_store(config.metadata) as store:
        await store.put(cookie_key(ME), b"{}")
        await store.next_id("ledgers", 10)
        async with serving(config) as rig:
            disk = DiskGuard(rig.storage.engine, config)
            here = Yard(rig, store, Collector(rig.storage, store, config, disk, bookie_id=ME))
            await here.add()
            yield here


async def test_a_closed_ledger_that_lists_others_only_is_deleted(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        assert await here.moved_away() == 1
        assert here.collector.total.ledgers_moved_away == 1
        assert await here.code() == 1
        assert await here.store.leases(repair_lease(LEDGER)) == []
        assert await here.moved_away() == 0


async def test_a_ledger_that_moved_away_may_come_back(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        await here.moved_away()
        assert await here.add() == 104
        assert await here.add(flags=v2.RECOVERY) == 0
        await here.place(ME)
        assert await here.moved_away() == 0
        assert await here.code() == 0


@pytest.mark.parametrize(
    ("bookies", "state"),
    [
        ([ME], LedgerState.CLOSED),
        ([OTHER, ME], LedgerState.CLOSED),
        ([ME, OTHER], LedgerState.CLOSED),
        ([OTHER], LedgerState.OPEN),
        ([OTHER], LedgerState.IN_RECOVERY),
    ],
)
async def test_a_ledger_that_may_be_wanted_here_is_kept(
    tmp_path: Path, bookies: list[str], state: LedgerState
) -> None:
    async with yard(tmp_path) as here:
        await here.place(*bookies, state=state)
        assert await here.moved_away() == 0
        assert await here.code() == 0


async def test_a_ledger_on_its_way_here_is_kept(tmp_path: Path) -> None:
    """TB-46: who copies a ledger holds its lease, and lists the bookie afterwards."""
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        lease = await grant(here.store, repair_lease(LEDGER), "a worker", ttl_s=10)
        assert await here.moved_away() == 0
        assert await here.code() == 0
        await here.store.release(lease)
        assert await here.moved_away() == 1


async def test_a_ledger_whose_copies_are_in_doubt_is_kept(tmp_path: Path) -> None:
    """A bookie that came back may hold the last copy of what the listed ones lost."""
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        await mark_for_repair(here.store, LEDGER, OTHER, "check")
        assert await here.moved_away() == 0
        assert await here.code() == 0
        await here.store.delete(underreplicated_key(LEDGER))
        assert await here.moved_away() == 1


async def test_a_foreign_ledger_is_kept(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        await here.add(ledger_id=1 << 62)
        assert await here.moved_away() == 1
        assert await here.code(1 << 62) == 0


async def test_a_store_that_does_not_know_this_bookie_deletes_nothing(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        await here.store.delete(cookie_key(ME))
        assert await here.moved_away() == 0
        assert await here.code() == 0


async def test_a_record_that_nobody_understands_deletes_nothing(tmp_path: Path) -> None:
    async with yard(tmp_path) as here:
        await here.store.put(ledger_key(LEDGER), b"{}")
        assert await here.moved_away() == 0
        assert await here.code() == 0


async def test_a_ledger_without_entries_keeps_its_fence(tmp_path: Path) -> None:
    """BK-07: a recovery that found nothing here leaves a fence, and that takes no room."""
    async with yard(tmp_path) as here:
        await here.rig.connect().ask(v2.read(2, -1, fence_key=v2.KEY))
        await here.place(OTHER, ledger_id=2)
        await here.place(ME)
        assert await here.moved_away() == 0
        assert await here.add(ledger_id=2) == 104


async def test_a_record_that_changes_at_the_last_moment_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        grant = here.store.grant

        async def change_and_grant(*args: object, **kwargs: object) -> object:
            await here.place(ME)
            return await grant(*args, **kwargs)  # type: ignore[arg-type]  # as they came

        monkeypatch.setattr(here.store, "grant", change_and_grant)
        assert await here.moved_away() == 0
        assert await here.code() == 0
        assert await here.store.leases(repair_lease(LEDGER)) == []


async def test_a_ledger_that_takes_the_id_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former ledger was looked at, deleted, and its id used again before the last step."""
    async with yard(tmp_path) as here:
        peer, engine, get = here.rig.connect(), here.rig.storage.engine, here.store.get
        assert (await peer.ask(frame.incarnation(2, 77) + v2.add(2, 0, b"old"))).code == 0
        await here.place(OTHER, ledger_id=2)
        await here.place(ME)

        async def get_late(key: str) -> Versioned | None:
            found = await get(key)
            if key == underreplicated_key(2):
                assert engine.renew_ledger(2, 77, 78)
                assert (await peer.ask(frame.incarnation(2, 78) + v2.add(2, 0, b"new"))).code == 0
            return found

        monkeypatch.setattr(here.store, "get", get_late)
        assert await here.moved_away() == 0
        answer = await here.rig.connect().ask(v2.read(2, 0))
        assert (answer.code, answer.body[-3:]) == (0, b"new")


async def test_a_pause_that_outlasts_the_lease_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        monkeypatch.setattr(surplus, "SESSION_S", 0.2)
        get = here.store.get

        async def slow_get(key: str) -> Versioned | None:
            found = await get(key)
            if key == ledger_key(LEDGER):
                await trio.sleep(0.15)
            return found

        monkeypatch.setattr(here.store, "get", slow_get)
        assert await here.moved_away() == 0
        assert await here.code() == 0


async def test_a_copy_that_was_wanted_again_meanwhile_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BK-21: the process slept between its last look and the deletion."""
    async with yard(tmp_path) as here:
        await here.place(OTHER)
        delete = here.rig.storage.engine.delete_ledger

        def delete_late(ledger_id: int, now_ms: int, incarnation: int) -> None:
            delete(ledger_id, now_ms, incarnation)
            wanted = encode_record(here.record([ME], LedgerState.CLOSED, LEDGER))
            records[ledger_key(LEDGER)] = Versioned(wanted, 99)

        records: dict[str, Versioned] = {}
        get = here.store.get

        async def get_changed(key: str) -> Versioned | None:
            return records.get(key) or await get(key)

        monkeypatch.setattr(here.store, "get", get_changed)
        monkeypatch.setattr(here.rig.storage.engine, "delete_ledger", delete_late)
        await here.collector.collect()
        key = underreplicated_key(LEDGER)
        found = await get(key)
        assert found is not None
        mark = decode_underreplicated(key, found.value)
        assert (mark.reason, mark.bookies, mark.damaged) == ("check", [ME], [])


async def test_who_looked_before_a_copy_was_deleted_cannot_take_the_mark_off(
    tmp_path: Path,
) -> None:
    async with yard(tmp_path) as here:
        await here.place(ME)
        versions = []
        for _ in range(2):
            await mark_for_repair(here.store, LEDGER, ME, "check")
            found = await here.store.get(underreplicated_key(LEDGER))
            assert found is not None
            versions.append(found.version)
        assert versions[0] < versions[1]


async def test_a_store_that_goes_away_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("gone")

    async with yard(tmp_path) as here:
        await here.place(OTHER)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "grant", unavailable)
            assert await here.moved_away() == 0
        assert await here.code() == 0
        assert here.collector.runs["failed"] == 1
