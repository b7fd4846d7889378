from __future__ import annotations

import trio
import trio.testing
from trio.testing import MockClock

from ledger_client.topics.producing.room import Room, wait_for_room


async def test_room_is_given_in_the_order_of_asking() -> None:
    room = Room(100)
    order: list[int] = []
    assert room.take(100)
    async with trio.open_nursery() as nursery:

        async def ask(size: int) -> None:
            await wait_for_room(room, size)
            order.append(size)

        for size in (60, 70, 10):
            nursery.start_soon(ask, size)
            await trio.testing.wait_all_tasks_blocked()
        assert not room.take(1)  # nobody gets in before those who wait
        room.release(100)
        await trio.testing.wait_all_tasks_blocked()
        assert order == [60]
        room.release(60)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == [10, 60, 70]
        assert room.used == 80


async def test_who_gives_up_waiting_takes_nothing_and_lets_the_next_in(
    autojump_clock: MockClock,
) -> None:
    room = Room(100)
    assert room.take(50)
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            with trio.move_on_after(1):
                await wait_for_room(room, 90)

        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        await wait_for_room(room, 50)
        assert trio.current_time() == 1
    assert room.used == 100


async def test_who_is_cancelled_while_it_is_granted_gives_it_back() -> None:
    room = Room(100)
    assert room.take(100)
    with trio.CancelScope() as scope:

        async def release() -> None:
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            room.release(100)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(release)
            await wait_for_room(room, 30)
    assert room.used == 0


async def test_what_is_larger_than_all_gets_in_alone() -> None:
    room = Room(10)
    assert room.take(50)
    assert not room.take(1)
    room.release(50)
    assert room.take(1)
    assert not room.take(50)
