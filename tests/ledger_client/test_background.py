from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger_client.background import Background, OnDemand, OneTaker, Rounds
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
