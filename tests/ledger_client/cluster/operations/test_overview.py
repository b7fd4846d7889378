from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from leases import grant

from ledger_client.cluster.operations.overview import take_overview
from metadata.records import (
    COORDINATOR,
    BookieRecord,
    CookieRecord,
    Draining,
    Leader,
    RepairProgress,
    UnderReplicated,
    bookie_lease,
    cookie_key,
    draining_key,
    encode_record,
    repair_lease,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.aclose()


async def add_bookie(store: SqliteStore, name: str, *, live: bool = True, **said: bool) -> None:
    cookie = CookieRecord(name, "i", "/journal", "/ledgers", "c")
    await store.put(cookie_key(name), encode_record(cookie))
    if live:
        record = BookieRecord(name, f"{name}:3181", 100, 50, **said)  # type: ignore[arg-type]
        await grant(store, bookie_lease(name), name, ttl_s=60, value=encode_record(record))


async def mark(store: SqliteStore, ledger_id: int, **said: object) -> None:
    record = UnderReplicated(ledger_id, "bookie lost", 1, size=1000, **said)  # type: ignore[arg-type]
    await store.put(underreplicated_key(ledger_id), encode_record(record))


async def test_a_registration_that_cannot_be_decoded_is_shown_as_such(store: SqliteStore) -> None:
    await add_bookie(store, "b1")
    await add_bookie(store, "b2", live=False)
    await grant(store, bookie_lease("b2"), "b2", ttl_s=60, value=b"\xff not JSON")
    await grant(store, repair_lease(7), "b1", ttl_s=60, value=b"{}")
    seen = await take_overview(store)
    assert [(b.bookie_id, b.state) for b in seen.bookies] == [
        ("b1", "writable"),
        ("b2", "unreadable"),
    ]
    assert seen.repairs == []


async def test_an_empty_cluster_has_nothing(store: SqliteStore) -> None:
    seen = await take_overview(store)
    assert (seen.leader, seen.bookies, seen.underreplicated, seen.repairs) == (None, [], [], [])


async def test_each_bookie_has_its_state(store: SqliteStore) -> None:
    await add_bookie(store, "b1")
    await add_bookie(store, "b2", live=False)
    await add_bookie(store, "b3", limbo=True, read_only=True)
    await add_bookie(store, "b4", read_only=True)
    await add_bookie(store, "b5", read_only=True, draining=True)
    for name in ("b2", "b4"):
        await store.put(draining_key(name), encode_record(Draining(name, 1)))
    await store.delete(cookie_key("b5"))
    seen = await take_overview(store)
    assert {bookie.bookie_id: bookie.state for bookie in seen.bookies} == {
        "b1": "writable",
        "b2": "lost, draining",
        "b3": "limbo, read-only",
        "b4": "draining",
        "b5": "decommissioned",
    }
    assert seen.lost == ["b2"]


async def test_it_says_who_leads(store: SqliteStore) -> None:
    leader = Leader("b1", "b1:3181", 5)
    await grant(store, COORDINATOR, "b1", ttl_s=60, value=encode_record(leader))
    assert (await take_overview(store)).leader == leader


async def test_it_says_what_each_ledger_waits_for(store: SqliteStore) -> None:
    await mark(store, 1)
    await mark(store, 2, last_failure="2 of 3 bookies are left")
    await mark(store, 3)
    progress = RepairProgress(3, "b1/x", 1, size=2000, copied_size=500)
    await grant(store, repair_lease(3), "b1", ttl_s=60, value=encode_record(progress))
    seen = await take_overview(store)
    assert seen.underreplicated_size == 3000
    assert [seen.waits_for(each) for each in seen.underreplicated] == [
        "no bookie is up to repair it",
        "2 of 3 bookies are left",
        "b1 repairs it, 25 %",
    ]
    await add_bookie(store, "b1")
    seen = await take_overview(store)
    assert seen.waits_for(seen.underreplicated[0]) == "waiting for a worker"
