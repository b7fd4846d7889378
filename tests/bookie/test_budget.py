from __future__ import annotations

import trio
import trio.testing

from bookie.budget import Budget


async def waits(budget: Budget, token: int | None) -> bool:
    """Whether the connection would have to wait now."""
    with trio.move_on_after(0) as patience:
        await budget.room(token)
        return False
    return patience.cancelled_caught


async def test_nothing_is_read_while_too_much_is_held() -> None:
    budget = Budget(100)
    budget.change(100)
    assert not await waits(budget, 1)
    budget.change(1)
    assert await waits(budget, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.room, 1)
        await trio.testing.wait_all_tasks_blocked()
        budget.change(-1)
    assert budget.held == 100


async def test_the_first_unfinished_frame_may_always_go_on() -> None:
    budget = Budget(100)
    budget.mark_unfinished(7, True)
    budget.mark_unfinished(3, True)
    budget.mark_unfinished(7, True)
    budget.change(101)
    assert not await waits(budget, 7)
    assert await waits(budget, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.room, 3)
        await trio.testing.wait_all_tasks_blocked()
        budget.mark_unfinished(7, False)
    assert await waits(budget, 7)
