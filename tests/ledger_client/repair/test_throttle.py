from __future__ import annotations

import trio
from trio.testing import MockClock

from ledger_client.repair.throttle import Throttle


async def test_so_many_bytes_a_second_pass_and_no_more(autojump_clock: MockClock) -> None:
    throttle = Throttle(100.0)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(throttle.take, 50)
    assert 9.0 <= trio.current_time() - began <= 10.0


async def test_time_in_which_nothing_was_copied_is_not_saved_up(autojump_clock: MockClock) -> None:
    throttle = Throttle(100.0)
    await trio.sleep(1000)
    began = trio.current_time()
    for _ in range(3):
        await throttle.take(100)
    assert trio.current_time() - began >= 2.0


async def test_without_a_limit_nothing_waits(autojump_clock: MockClock) -> None:
    throttle = Throttle(float("inf"))
    began = trio.current_time()
    for _ in range(100):
        await throttle.take(1 << 40)
    assert trio.current_time() == began
