from __future__ import annotations

import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.cluster.repair.claim import claim_ledger
from metadata.errors import LeaseHeld, LeaseLost
from metadata.listings import list_repairs
from metadata.sessions import ProcessSession
from metadata.store import Put


async def test_a_ledger_is_claimed_by_one_and_given_back(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    session = ProcessSession(store, nursery)
    async with claim_ledger(session, 7, "a"):
        await trio.sleep(60)
        with pytest.raises(LeaseHeld):
            async with claim_ledger(session, 7, "b"):
                pass
        async with claim_ledger(session, 8, "b"):
            pass
    async with claim_ledger(session, 7, "b"):
        assert [repair.worker for repair in await list_repairs(store)] == ["b"]
    assert await list_repairs(store) == []


async def test_the_claim_tells_how_far_the_work_is(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    session = ProcessSession(store, nursery)
    async with claim_ledger(session, 7, "a") as claim:
        claim.expect(1000)
        for _ in range(100):
            claim.copied(5)
            await trio.sleep(0.1)
            (repair,) = await list_repairs(store)
            assert repair.copied_size <= 500
        await trio.sleep(1)
        (repair,) = await list_repairs(store)
        assert (repair.size, repair.copied_size) == (1000, 500)
        assert repair.ledger_id == 7


async def test_an_error_of_the_block_leaves_it_as_it_is(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = MemoryStore()
    session = ProcessSession(store, nursery)
    with pytest.raises(KeyError):
        async with claim_ledger(session, 7, "a"):
            raise KeyError
    assert await list_repairs(store) == []


@pytest.mark.parametrize("how", ["ended", "cut off"])
async def test_who_loses_the_claim_is_stopped_in_time_and_changes_nothing(
    autojump_clock: MockClock, nursery: trio.Nursery, how: str
) -> None:
    store = MemoryStore()
    session = ProcessSession(store, nursery)
    late: list[Exception] = []
    with pytest.raises(LeaseLost):
        async with claim_ledger(session, 7, "a") as claim:
            if how == "ended":
                store.end_sessions()
            else:
                store.available = False
            try:
                await trio.sleep(9.5)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)  # by then the session is over
                    store.available = True
                    try:
                        await store.transact([claim.check, Put("key", b"late")])
                    except LeaseLost as lost:
                        late.append(lost)
    assert late
    assert await store.get("key") is None
