"""Requests for the end of a ledger, on their way to the lanes of one client."""

from __future__ import annotations

import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.background import Background
from ledger_client.topics.lanes.roll_desk import RollDesk
from metadata.topics import LANE_ROLLS, LaneRoll, encode_row, lane_roll_key, topic_prefix

UID = 7
REQUEST = encode_row(LaneRoll())


async def ask(store: MemoryStore, lane: int, ledger_id: int, *, uid: int = UID) -> None:
    await store.put(lane_roll_key(uid, -1, lane, ledger_id), REQUEST)
    await trio.sleep(1)


async def test_a_lane_gets_the_requests_for_it_and_no_others(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    first: list[int] = []
    second: list[int] = []
    async with Background() as nursery:
        nursery.start_soon(store.watches.run)
        desk = RollDesk(store, nursery)
        with desk.heed(UID, -1, 0, first.append), desk.heed(UID, -1, 1, second.append):
            await trio.sleep(1)
            await ask(store, 0, 40)
            await ask(store, 1, 41)
            await ask(store, 2, 42)
            await ask(store, 0, 43, uid=UID + 1)
        await ask(store, 0, 44)
    assert (set(first), set(second)) == ({40}, {41})
    assert len(store.watches) == 0


async def test_a_request_is_found_that_came_before_or_whose_hint_was_lost(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    heard: list[int] = []
    await store.put(lane_roll_key(UID, -1, 0, 40), REQUEST)
    async with Background() as nursery:
        nursery.start_soon(store.watches.run)
        desk = RollDesk(store, nursery)
        with desk.heed(UID, -1, 0, heard.append):
            await trio.sleep(1)
            assert heard == [40]
            prefix = topic_prefix(LANE_ROLLS, UID)
            desk.notify(prefix, prefix)  # as after the store was away
            await trio.sleep(1)
    assert heard == [40, 40]


async def test_who_left_a_lane_takes_no_request_from_who_has_it_now(
    autojump_clock: MockClock,
) -> None:
    """One client may take a lane over from itself."""
    store = MemoryStore()
    heard: list[int] = []
    async with Background() as nursery:
        nursery.start_soon(store.watches.run)
        desk = RollDesk(store, nursery)
        before = desk.heed(UID, -1, 0, lambda _ledger: pytest.fail("it has left"))
        before.__enter__()
        with desk.heed(UID, -1, 0, heard.append):
            before.__exit__(None, None, None)
            await trio.sleep(1)
            await ask(store, 0, 41)
    assert heard == [41]


async def test_what_names_no_ledger_is_passed_over(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with Background() as nursery:
        desk = RollDesk(store, nursery)
        with desk.heed(UID, -1, 0, lambda _ledger: pytest.fail("no ledger is named")):
            prefix = topic_prefix(LANE_ROLLS, UID)
            for hint in (f"{prefix}x", f"{prefix}0000000000/0000000000/x", "lane-rolls/", ""):
                desk.notify(prefix, hint)
