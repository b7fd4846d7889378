from __future__ import annotations

import trio
import trio.testing

from bookie.budget import SMALL_SIZE, MemoryBudget, Pool
from bookie.events import Wakeup
from bookie.outbox import ANSWERS_SIZE_MAX, RESERVED_SIZE_MAX, Outbox, Reservation

KIB = 1 << 10
HERE, THERE = "10.0.0.1", "10.0.0.2"


def outbox(bytes_max: int = 1 << 30) -> tuple[Outbox, Pool]:
    budget = MemoryBudget(bytes_max)
    return Outbox(budget, HERE, Wakeup()), budget.unsent


async def has_room(box: Outbox) -> bool:
    with trio.move_on_after(0) as patience:
        await box.room()
    assert patience.cancelled_caught is not box.has_room
    return box.has_room


async def test_small_answers_leave_together_and_large_ones_alone() -> None:
    box, pool = outbox()
    for size in (100, 200, 300 * KIB, 50, 256 * KIB):
        box.put(bytes(size))
    await box.news.wait()
    assert pool.held == box.size == 350 + 556 * KIB
    assert [len(box.take()) for _ in range(5)] == [300, 300 * KIB, 50, 256 * KIB, 0]
    assert pool.held == box.size == 0


async def test_a_full_outbox_has_no_room_until_something_left() -> None:
    box, _ = outbox()
    box.put(bytes(ANSWERS_SIZE_MAX))
    assert not await has_room(box)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.room)
        await trio.testing.wait_all_tasks_blocked()
        box.take()


async def test_with_the_pool_spent_by_others_there_is_no_room() -> None:
    box, pool = outbox(bytes_max=120)
    assert await has_room(box)
    pool.change(THERE, 31)
    assert not await has_room(box)


async def test_a_small_answer_goes_out_although_the_pool_is_spent() -> None:
    box, pool = outbox(bytes_max=120)
    pool.change(THERE, 31)
    assert box.takes(SMALL_SIZE)
    assert not box.takes(SMALL_SIZE + 1)
    box.put(bytes(SMALL_SIZE))
    assert box.takes(SMALL_SIZE)
    box.put(b"x")
    assert (box.has_some_room, box.takes(1)) == (False, False)


async def test_answers_that_are_being_made_take_room_until_they_are_made() -> None:
    box, pool = outbox()
    with Reservation(box) as first:
        await first.hold(RESERVED_SIZE_MAX)
        assert pool.held == RESERVED_SIZE_MAX
        assert not await has_room(box)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Reservation(box).hold, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert pool.held == RESERVED_SIZE_MAX
            first.release()
    assert pool.held == 5


async def test_with_the_pool_spent_an_answer_is_made_and_put_if_it_is_small() -> None:
    budget = MemoryBudget(800)
    budget.unsent.change(THERE, 201)
    budget.making.change(THERE, 101)
    box = Outbox(budget, HERE, Wakeup())
    room = Reservation(box)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.hold, 50)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.making.held == 101
        budget.making.change(THERE, -1)
    assert (room.is_express, budget.making.held, budget.unsent.held) == (True, 150, 201)
    put = [room.put(bytes(size)) for size in (SMALL_SIZE + 1, SMALL_SIZE)]
    assert put == [False, True]
    room.release()
    assert (budget.making.held, budget.unsent.held) == (100, 201 + SMALL_SIZE)


async def test_an_answer_for_which_there_was_room_is_put_whatever_its_size() -> None:
    budget = MemoryBudget(800)
    box = Outbox(budget, HERE, Wakeup())
    with Reservation(box) as room:
        await room.hold(500)
        assert not room.is_express
        assert room.put(bytes(SMALL_SIZE + 1))
    assert (budget.making.held, budget.unsent.held) == (0, SMALL_SIZE + 1)
