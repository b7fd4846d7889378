from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger_client.background import (
    Background,
    OnDemand,
    OneTaker,
    Places,
    Rounds,
    SharedCall,
)
from ledger_client.errors import Busy


async def test_an_error_of_the_block_leaves_as_it_is_and_ends_the_tasks() -> None:
    ended = trio.Event()

    async def serve() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    with pytest.raises(KeyError):
        async with Background() as nursery:
            nursery.start_soon(serve)
            await trio.testing.wait_all_tasks_blocked()
            raise KeyError
    assert ended.is_set()


async def test_an_error_of_a_task_ends_the_block(autojump_clock: MockClock) -> None:
    async def crash() -> None:
        raise OSError("crashed")

    with pytest.raises(ExceptionGroup) as group:
        async with Background() as nursery:
            nursery.start_soon(crash)
            await trio.sleep_forever()
    assert group.group_contains(OSError, match="crashed")


async def test_a_cancellation_of_the_block_ends_where_it_should(autojump_clock: MockClock) -> None:
    scope = trio.CancelScope(deadline=1)
    with scope:
        async with Background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep(10)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(1)


async def test_work_on_demand_runs_once_at_a_time_and_again_when_there_is_more(
    autojump_clock: MockClock,
) -> None:
    jobs: list[int] = []
    done: list[list[int]] = []

    async def work() -> None:
        while jobs:
            done.append(jobs.copy())
            jobs.clear()
            await trio.sleep(1)

    async with Background() as nursery:
        task = OnDemand(nursery, work)
        for number in range(6):
            jobs.append(number)
            task.start()
            if number % 3 == 2:
                await trio.sleep(5)
    assert done == [[0, 1, 2], [3, 4, 5]]


async def test_a_round_serves_those_who_asked_before_it_began(autojump_clock: MockClock) -> None:
    begun: list[float] = []
    served: dict[float, float] = {}

    async def work() -> None:
        begun.append(trio.current_time())
        await trio.sleep(1)

    async def ask(at: float) -> None:
        await trio.sleep(at)
        await rounds.share()
        served[at] = trio.current_time()

    rounds = Rounds(work)
    async with trio.open_nursery() as nursery:
        for at in (0.0, 0.25, 0.5, 0.75, 1.5):
            nursery.start_soon(ask, at)
    assert begun == pytest.approx([0, 1, 2])
    assert served == pytest.approx({0.0: 1, 0.25: 2, 0.5: 2, 0.75: 2, 1.5: 3})


async def test_a_round_that_fails_serves_nobody(autojump_clock: MockClock) -> None:
    failures = 0

    async def work() -> None:
        await trio.sleep(1)
        if trio.current_time() < 3.5:
            raise OSError("failed")

    async def ask() -> None:
        nonlocal failures
        try:
            await rounds.share()
        except OSError:
            failures += 1

    rounds = Rounds(work)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert failures == 3
    assert trio.current_time() == pytest.approx(4)


def test_one_taker_at_a_time_also_after_an_error() -> None:
    taker = OneTaker("reader")
    with pytest.raises(KeyError), taker:
        raise KeyError
    with taker:
        with pytest.raises(Busy, match="this reader"), taker:
            raise AssertionError
        with pytest.raises(Busy), taker:
            raise AssertionError
    with taker:
        pass


# --- places -----------------------------------------------------------------------------------


async def test_so_many_work_at_a_time_in_the_order_in_which_they_came(
    autojump_clock: MockClock,
) -> None:
    places, under_way, done = Places(3), 0, list[int]()

    async def work(number: int) -> None:
        nonlocal under_way
        await trio.sleep(number / 1000)
        async with places.one():
            under_way += 1
            assert under_way <= 3
            await trio.sleep(1)
            under_way -= 1
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(work, number)
    assert done == list(range(10))


async def test_one_that_waits_for_others_lets_the_next_begin_and_goes_on_before_new_ones(
    autojump_clock: MockClock,
) -> None:
    places, events = Places(1), list[str]()

    async def work(name: str) -> None:
        async with places.one() as place:
            events.append(f"{name} begins")
            await trio.sleep(1)
            async with place.away():
                await trio.sleep(0.5)
            events.append(f"{name} goes on")
            await trio.sleep(1)
            place.leave()
            await trio.sleep(100)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(work, name)
            await trio.testing.wait_all_tasks_blocked()
    assert events[:2] == ["a begins", "b begins"]
    assert events.index("a goes on") < events.index("c begins")
    assert len(events) == 6


async def test_a_place_is_passed_on_however_its_task_ends(autojump_clock: MockClock) -> None:
    places = Places(1)

    async def work(limit_s: float, *, goes_away: bool) -> None:
        with trio.move_on_after(limit_s):
            async with places.one() as place:
                if goes_away:
                    with suppress(OSError):
                        async with place.away():
                            await trio.sleep(0.1)
                            raise OSError
                    async with place.away():
                        await trio.sleep(0.1)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for limit_s in (0.05, 0.15, 0.25, 0.35, 1, 1, 2):
            nursery.start_soon(partial(work, limit_s, goes_away=limit_s != 1))
    with trio.fail_after(1):
        async with places.one():
            with trio.move_on_after(0.1) as waits:
                async with places.one():
                    pass
            assert waits.cancelled_caught


async def test_one_call_is_for_all_who_asked_before_it_began(autojump_clock: MockClock) -> None:
    calls: list[float] = []

    async def call() -> float:
        calls.append(trio.current_time())
        await trio.sleep(1)
        return calls[-1]

    shared, found = SharedCall(call), list[tuple[int, float]]()

    async def ask(number: int) -> None:
        await trio.sleep(number / 10)
        found.append((number, await shared.ask()))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ask, number)
    assert calls == [0.0, 1.0]
    assert sorted(found) == [(0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]


async def test_all_who_asked_are_told_of_an_error_at_once(autojump_clock: MockClock) -> None:
    """None of them waits for a call of its own, which would fail too."""

    async def fail() -> None:
        await trio.sleep(10)
        raise KeyError

    shared = SharedCall(fail)
    told: list[float] = []

    async def ask() -> None:
        with pytest.raises(KeyError):
            await shared.ask()
        told.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(ask)
    assert len(told) == 9
    assert max(told) <= 20.0


async def test_a_shared_call_that_is_cancelled_is_made_anew(autojump_clock: MockClock) -> None:
    calls = 0

    async def call() -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        return calls

    shared, found = SharedCall(call), list[int]()

    async def ask(limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            found.append(await shared.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 100)
        await trio.testing.wait_all_tasks_blocked()
        for limit_s in (1.5, 100, 100):  # the first of them leads the second call
            nursery.start_soon(ask, limit_s)
            await trio.testing.wait_all_tasks_blocked()
    assert found == [1, 3, 3]
    assert calls == 3
