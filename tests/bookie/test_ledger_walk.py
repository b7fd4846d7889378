"""Which ledgers a collection looks at, and when it must look at all."""

from __future__ import annotations

import pytest
import trio
from memory_store import CHANGES_MAX, MemoryStore
from trio.testing import MockClock

from bookie import ledger_walk
from bookie.ledger_walk import LedgerWalk
from metadata.records import ledger_key

MANY = range(100_000)


async def chosen(walk: LedgerWalk, *, every: bool = False) -> list[int]:
    await walk.begin()
    found = walk.choose(MANY, every=every, foreign=())
    walk.done(())
    return found


async def test_every_ledger_has_its_turn_within_a_day(autojump_clock: MockClock) -> None:
    walk = LedgerWalk(MemoryStore())
    assert len(await chosen(walk)) == len(MANY)
    seen: set[int] = set()
    for _ in range(96 + 1):
        await walk.pause(900)
        part = await chosen(walk)
        assert len(part) <= ledger_walk.WALK_COUNT + 1
        seen.update(part)
    assert len(seen) == len(MANY)


async def test_changes_between_two_collections_are_taken_before_the_log_forgets_them(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    walk = LedgerWalk(store)
    await chosen(walk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(walk.pause, 900)
        for _ in range(28):  # more in all than the log holds
            await trio.sleep(30)
            await store.put(ledger_key(99_999), b"")
            for _ in range(CHANGES_MAX // 20):
                store.change("lanes/any", b"")
    found = await chosen(walk)
    assert 99_999 in found and len(found) < 5000


async def test_all_are_looked_at_if_the_log_was_too_short(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    walk = LedgerWalk(store)
    await chosen(walk)
    for _ in range(CHANGES_MAX + 1):
        store.change("lanes/any", b"")
    assert len(await chosen(walk)) == len(MANY)
    assert len(await chosen(walk)) < 5000
    assert len(await chosen(walk, every=True)) == len(MANY)


async def test_what_changes_during_a_collection_is_for_the_next_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_walk, "WALK_COUNT", 5)
    store = MemoryStore()
    walk = LedgerWalk(store)
    await chosen(walk)
    await walk.begin()
    walk.choose(MANY, every=False, foreign=[77_777])
    await store.put(ledger_key(50_000), b"")
    await walk.pause(1)
    walk.done([60_000])
    found = await chosen(walk)
    assert {50_000, 60_000} <= set(found)
    assert 50_000 not in await chosen(walk)
