from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from bookie.budget import PENALTY_S, PRESSED_S, MemoryBudget, Pool

HERE, THERE = "10.0.0.1", "10.0.0.2"


def pool(bytes_max: int = 100) -> Pool:
    """The pool of what is not sent, of this size."""
    return MemoryBudget(4 * bytes_max).unsent


async def waits(pool: Pool, address: str, token: int | None = None) -> bool:
    """Whether the connection would have to wait now."""
    with trio.move_on_after(0) as patience:
        await pool.room(address, token)
        return False
    return patience.cancelled_caught


async def test_nothing_more_is_taken_while_too_much_is_held() -> None:
    spent = pool(100)
    spent.change(HERE, 50)
    spent.change(THERE, 50)
    assert not await waits(spent, HERE)
    spent.change(HERE, 1)
    assert await waits(spent, "10.0.0.3")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spent.room, "10.0.0.3")
        await trio.testing.wait_all_tasks_blocked()
        spent.change(HERE, -1)
    assert spent.held == 100


async def test_one_address_leaves_half_of_a_pool_to_the_others() -> None:
    held = pool(100)
    held.change(HERE, 51)
    assert await waits(held, HERE)
    assert not await waits(held, THERE)


def test_one_pool_that_is_spent_leaves_room_in_the_others() -> None:
    budget = MemoryBudget(800)
    for address in (HERE, THERE):
        budget.unsent.change(address, 1000)
        budget.unfinished.change(address, 1000)
    assert not budget.unsent.has_room("10.0.0.3")
    assert not budget.unfinished.has_room("10.0.0.3")
    assert budget.received.has_room(HERE)
    assert budget.held == 4000


async def test_the_first_unfinished_frame_may_always_go_on() -> None:
    unfinished = pool(100)
    for token in (7, 3, 7):
        unfinished.mark_unfinished(token, True)
    unfinished.change(HERE, 101)
    assert not await waits(unfinished, HERE, 7)
    assert await waits(unfinished, HERE, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unfinished.room, HERE, 3)
        await trio.testing.wait_all_tasks_blocked()
        unfinished.mark_unfinished(7, False)
    assert await waits(unfinished, HERE, 7)


@pytest.mark.parametrize(("sizes", "expected"), [({HERE: 60}, HERE), ({HERE: 60, THERE: 60}, None)])
async def test_who_waits_long_has_those_closed_that_stand_still(
    sizes: dict[str, int], expected: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    spent = pool(100)
    pressed: list[tuple[float, str | None]] = []
    spent._budget.on_pressed = lambda _, address: pressed.append((trio.current_time(), address))
    for address, size in sizes.items():
        spent.change(address, size)
    began = trio.current_time()
    with trio.move_on_after(2.5 * PRESSED_S):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(spent.room, HERE)
            nursery.start_soon(partial(spent.room, THERE, may_press=False))
    # Once a period, however many wait.
    assert pressed == [(began + PRESSED_S, expected), (began + 2 * PRESSED_S, expected)]


async def test_an_address_whose_peers_stood_still_has_less_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    budget = MemoryBudget(800)
    budget.punish(HERE)
    for address in (HERE, THERE):
        budget.unsent.change(address, 200 // 8 + 1)
    assert not budget.unsent.has_room(HERE)
    assert budget.unsent.has_room(THERE)
    await trio.sleep(PENALTY_S + 1)
    assert budget.unsent.has_room(HERE)
