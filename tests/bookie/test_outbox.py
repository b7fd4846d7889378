from __future__ import annotations

import trio
import trio.testing

from bookie.bell import Bell
from bookie.budget import Budget
from bookie.outbox import ANSWERS_SIZE_MAX, Outbox

KIB = 1 << 10


def outbox(bytes_max: int = 1 << 30) -> tuple[Outbox, Budget]:
    budget = Budget(bytes_max)
    return Outbox(budget, Bell()), budget


async def has_room(box: Outbox) -> bool:
    with trio.move_on_after(0) as patience:
        await box.room()
        return True
    return not patience.cancelled_caught


async def test_small_answers_leave_together_and_large_ones_alone() -> None:
    box, budget = outbox()
    for size in (100, 200, 300 * KIB, 50, 256 * KIB):
        box.put(bytes(size))
    await box.news.heard()
    assert budget.held == box.size == 350 + 556 * KIB
    assert [len(box.take()) for _ in range(5)] == [300, 300 * KIB, 50, 256 * KIB, 0]
    assert budget.held == box.size == 0


async def test_a_full_outbox_has_no_room_until_something_left() -> None:
    box, _ = outbox()
    box.put(bytes(ANSWERS_SIZE_MAX))
    assert not await has_room(box)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.room)
        await trio.testing.wait_all_tasks_blocked()
        box.take()


async def test_with_the_budget_spent_an_empty_outbox_still_takes_one_answer() -> None:
    box, budget = outbox(bytes_max=10)
    budget.change(11)
    assert await has_room(box)
    box.put(b"one")
    assert not await has_room(box)
