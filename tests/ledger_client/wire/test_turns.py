"""Many calls to the metadata store at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from fake_bookie import FakeBookie, Network
from memory_store import MemoryStore
from slow_store import SlowStore

from ledger_client.wire import stores
from ledger_client.wire.inflight import Turns, limited
from ledger_client.wire.stores import BookieStore
from metadata.errors import MetadataUnavailable

TIMEOUT_S = 10.0


async def test_a_turn_may_come_after_the_timeout_while_others_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, under_way, done = Turns(2, TIMEOUT_S), 0, list[int]()

    async def call(number: int) -> None:
        nonlocal under_way
        async with turns.take("c"):
            under_way += 1
            assert under_way <= 2
            await trio.sleep(TIMEOUT_S * 0.9)
            turns.note_answer()
            under_way -= 1
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(done) == list(range(20))
    assert {*done[:2]} == {0, 1}
    assert {*done[-2:]} == {18, 19}


async def test_without_answers_those_who_wait_are_refused_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(2, TIMEOUT_S)
    refused: list[float] = []

    async def call() -> None:
        try:
            async with turns.take("c"):
                await trio.sleep(100 * TIMEOUT_S)
        except MetadataUnavailable as error:
            assert "no answer in 10 s" in error.message
            refused.append(trio.current_time())

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(call)
        await trio.sleep(3)
        turns.note_answer()
    assert refused == [started + 3 + TIMEOUT_S] * 3


async def test_a_cancelled_call_passes_its_turn_on(autojump_clock: trio.testing.MockClock) -> None:
    turns = Turns(1, TIMEOUT_S)

    async def cancelled(after_s: float) -> None:
        with trio.move_on_after(after_s):
            async with turns.take("c"):
                await trio.sleep_forever()

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for after_s in (1, 1, 2, 0.5, 3):
                nursery.start_soon(cancelled, after_s)
        with trio.fail_after(1):
            async with turns.take("c"):
                pass


async def test_the_wait_for_a_turn_does_not_count_against_a_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(1, TIMEOUT_S)
    done: list[int] = []

    async def call(number: int) -> None:
        with limited(TIMEOUT_S):
            async with turns.take("c"):
                await trio.sleep(TIMEOUT_S * 0.9)
                turns.note_answer()
            done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, number)
    assert len(done) == 5


async def test_a_limit_holds_again_once_the_turn_has_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(1, TIMEOUT_S)

    async def before() -> None:
        async with turns.take("c"):
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(before)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.TooSlowError), limited(3.0):
            await trio.sleep(1)
            async with turns.take("c"):
                begun = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(begun + 2)


# --- calls behind others ----------------------------------------------------------------


async def test_a_call_behind_many_others_is_not_made_elsewhere_too(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The bookie works through the queue: it answers, though not this one yet."""
    behind = SlowStore(each_s=0.02)
    bookies = [FakeBookie(behind), FakeBookie(behind)]
    network = Network(nursery, *bookies)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        async with trio.open_nursery() as asking:
            for number in range(200):
                asking.start_soon(store.get, f"k{number}")
        assert sorted(len(bookie.requests) for bookie in bookies) == [0, 200]
        assert sum(bookie.connections for bookie in bookies) == 1


async def test_a_call_that_hangs_while_others_are_answered_is_made_elsewhere_in_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    behind = MemoryStore()
    bookies = [FakeBookie(behind), FakeBookie(behind)]
    network = Network(nursery, *bookies)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        await store.get("first")
        first = max(bookies, key=lambda bookie: len(bookie.requests))
        first.silent_about = "hangs"
        async with trio.open_nursery() as asking:

            async def ask_on() -> None:
                while True:
                    await store.get("a")
                    await trio.sleep(0.1)

            asking.start_soon(ask_on)
            began = trio.current_time()
            assert await store.get("hangs") is None
            assert trio.current_time() - began < stores.TIMEOUT_S * 0.6
            asking.cancel_scope.cancel()
    assert all(bookie.connections == 1 for bookie in bookies)
