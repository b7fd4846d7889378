from __future__ import annotations

import trio
from trio.testing import MockClock

from ledger_client.background import Turns


async def test_one_task_at_a_time_has_the_turn_of_a_name(autojump_clock: MockClock) -> None:
    turns, having, most = Turns(), 0, 0

    async def take(name: str) -> None:
        nonlocal having, most
        async with turns.of(name):
            having += 1
            most = max(most, having)
            await trio.sleep(1)
            having -= 1

    async with trio.open_nursery() as nursery:
        for name in ("a", "a", "a", "b"):
            nursery.start_soon(take, name)
    assert most == 2
    assert trio.current_time() == 3


async def test_a_name_that_nobody_uses_is_forgotten(autojump_clock: MockClock) -> None:
    turns = Turns()

    async def wait() -> None:
        with trio.move_on_after(1):
            async with turns.of("a"):
                raise AssertionError("the turn is taken")

    async with turns.of("a"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
        assert len(turns._turns) == 1
    assert len(turns._turns) == 0


async def test_who_asks_while_it_is_done_shares_the_next_time(autojump_clock: MockClock) -> None:
    turns = Turns()
    began: list[float] = []
    ended: list[tuple[float, str]] = []

    async def work() -> str:
        began.append(trio.current_time())
        await trio.sleep(10)
        return "done"

    async def ask(at: float) -> None:
        await trio.sleep(at)
        ended.append((trio.current_time(), await turns.share("a", work, "shared")))

    async with trio.open_nursery() as nursery:
        for at in (0, 1, 2, 9, 15):
            nursery.start_soon(ask, at)
    assert began == [0, 10, 20]  # the one at 15 asked when the second had begun
    assert sorted(said for _, said in ended) == ["done"] * 3 + ["shared"] * 2


async def test_when_it_fails_the_next_one_does_it(autojump_clock: MockClock) -> None:
    turns, tried = Turns(), 0

    async def work() -> int:
        nonlocal tried
        tried += 1
        await trio.sleep(1)
        if tried < 3:
            raise KeyError
        return tried

    found: list[int] = []

    async def ask() -> None:
        try:
            found.append(await turns.share("a", work, 0))
        except KeyError:
            found.append(-1)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert sorted(found) == [-1, -1, 0, 0, 3]
