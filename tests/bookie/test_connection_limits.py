from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import Peer, Rig, serving, settings

import bookie.server
from bookie.connection_limits import (
    IDLE_S,
    ConnectionLimits,
    TooManyConnections,
    bookies_max_of,
    pending_max_of,
)

HERE, THERE = "10.0.0.1", "10.0.0.2"
WHILE_S = 2 * IDLE_S


class Guest:
    """A served connection, idle since the clock's time *quiet_since* or busy."""

    def __init__(self, quiet_since: float = math.inf, *, owes: bool = False) -> None:
        self.quiet_since = quiet_since
        self.owes = owes
        self.left = False

    def is_idle(self) -> bool:
        return not self.owes

    def leave(self) -> None:
        self.left = True


def seat(
    stack: ExitStack, places: ConnectionLimits, address: str, guest: Guest | None = None
) -> Guest:
    guest = guest or Guest()
    stack.enter_context(places.serve(address, guest))
    return guest


class Door:
    """Strangers at the door of *places*, each a task that stays."""

    def __init__(self, places: ConnectionLimits, nursery: trio.Nursery) -> None:
        self._places = places
        self._nursery = nursery
        self.driven_out: list[int] = []

    async def knock(self, token: int, address: str) -> None:
        self._nursery.start_soon(self._stay, token, address)
        await trio.testing.wait_all_tasks_blocked()

    async def _stay(self, token: int, address: str) -> None:
        try:
            with self._places.admit(token, address):
                await trio.sleep_forever()
        except TooManyConnections:
            self.driven_out.append(token)


@asynccontextmanager
async def door_of(places: ConnectionLimits) -> AsyncIterator[Door]:
    async with trio.open_nursery() as nursery:
        yield Door(places, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_a_stranger_too_many_drives_out_the_first_of_those_that_are_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    places = ConnectionLimits(8)
    size = pending_max_of(8)
    async with door_of(places) as door:
        await door.knock(1, THERE)
        for token in range(2, size + 1):
            await door.knock(token, HERE)
        assert (places.pending, door.driven_out) == (size, [])
        await door.knock(size + 1, HERE)
        await door.knock(size + 2, "10.0.0.3")
        assert (places.pending, door.driven_out) == (size, [2, 3])
    assert places.pending == 0


async def test_one_address_leaves_a_quarter_of_the_places_to_the_others(stack: ExitStack) -> None:
    places = ConnectionLimits(8)
    for _ in range(6):
        seat(stack, places, HERE)
    with pytest.raises(TooManyConnections, match=r"10\.0\.0\.1 has 6"):
        seat(stack, places, HERE)
    for _ in range(2):
        seat(stack, places, THERE)
    with pytest.raises(TooManyConnections, match="8 connections are served"):
        seat(stack, places, "10.0.0.3")
    with pytest.raises(TooManyConnections), places.admit(1, "10.0.0.3"):
        pass
    stack.close()
    assert places.served == 0
    with places.serve(HERE, Guest()):
        assert places.served == 1


async def test_at_its_limit_an_address_loses_the_connection_that_is_idle_longest(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    places = ConnectionLimits(8)
    await trio.sleep(100)
    owing = seat(stack, places, HERE, Guest(1, owes=True))
    second, first, busy = (seat(stack, places, HERE, Guest(at)) for at in (20, 10, math.inf))
    other = seat(stack, places, THERE, Guest(2))
    for _ in range(2):
        seat(stack, places, HERE, Guest(99.5))
    with places.admit(1, HERE):
        assert places.replaced == 0  # one that has not logged in takes no place
    seat(stack, places, HERE)
    assert [each.left for each in (first, second)] == [True, False]
    seat(stack, places, HERE)
    assert [each.left for each in (first, second)] == [True, True]
    assert (places.served, places.replaced) == (7, 2)
    with pytest.raises(TooManyConnections, match="none is idle"):
        seat(stack, places, HERE)
    assert not any(each.left for each in (owing, busy, other))
    await trio.sleep(WHILE_S)
    seat(stack, places, HERE)  # in the place of one that was used just before
    owing.owes = False
    seat(stack, places, HERE)
    assert owing.left
    stack.close()
    assert places.served == 0


async def test_at_the_limit_of_all_the_address_that_has_most_makes_room(
    stack: ExitStack, autojump_clock: trio.testing.MockClock
) -> None:
    places = ConnectionLimits(8)
    await trio.sleep(100)
    few = [seat(stack, places, THERE, Guest(1)) for _ in range(3)]
    many = [seat(stack, places, HERE, Guest(at)) for at in range(50, 55)]
    seat(stack, places, "10.0.0.3")
    assert [each.left for each in many] == [True, False, False, False, False]
    assert not any(each.left for each in few)


async def test_bookies_have_places_that_clients_cannot_take(stack: ExitStack) -> None:
    places = ConnectionLimits(8)
    places.is_bookie = "10.0.0.9".__eq__
    for address, count in ((HERE, 6), (THERE, 2)):
        for _ in range(count):
            seat(stack, places, address)
    for _ in range(bookies_max_of(8)):
        with pytest.raises(TooManyConnections):
            seat(stack, places, "10.0.0.3")
        seat(stack, places, "10.0.0.9")
    with pytest.raises(TooManyConnections):
        seat(stack, places, "10.0.0.9")


async def test_clients_of_a_bookies_host_leave_the_bookie_its_places(stack: ExitStack) -> None:
    places = ConnectionLimits(8)
    for _ in range(6):
        seat(stack, places, HERE)
    with pytest.raises(TooManyConnections):
        seat(stack, places, HERE)
    places.is_bookie = HERE.__eq__
    seat(stack, places, HERE)


# --- peers -------------------------------------------------------------------------------


@asynccontextmanager
async def behind_one_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Rig, list[Peer]]]:
    """A bookie on a virtual clock, and three peers of one address, as many as it may have.

    Each got an answer, the first one first, and has been idle for WHILE_S since.
    """
    monkeypatch.setattr(bookie.server, "peer_address", lambda _stream: HERE)
    config = settings(folder, connections_max=4, checkpoint_interval_s=0.0)
    async with serving(config, threaded=False) as rig:
        peers = [rig.connect() for _ in range(3)]
        await peers[0].stream.send_all(v2.ADD_HELLO)
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await peers[0].response()).code == 0
        for each in peers:
            assert (await each.ask(v2.READ_HELLO)).code == 0
            await trio.sleep(1)
        await trio.sleep(WHILE_S)
        yield rig, peers


async def test_a_peer_that_has_been_idle_longest_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with behind_one_address(tmp_path, monkeypatch) as (rig, (first, second, third)):
        newcomer = rig.connect()
        assert (await newcomer.ask(v2.READ_HELLO)).code == 0
        assert await first.closed()
        for each in (second, third, newcomer):
            assert (await each.ask(v2.READ_HELLO)).code == 0
        server = rig.server
        assert (server.limits.served, server.limits.replaced) == (3, 1)
        assert (server.refused, server.dropped, server.faults) == (0, 0, 0)


async def test_a_peer_with_anything_pending_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with behind_one_address(tmp_path, monkeypatch) as (rig, (parked, adding, half)):
        await parked.stream.send_all(v2.read_wait(1, 0, known_lac=0, wait_ms=60_000))
        await adding.stream.send_all(v2.add(1, 1))
        await half.stream.send_all(v2.READ_HELLO[:10])
        await trio.sleep(WHILE_S)
        late = rig.connect()
        with suppress(trio.BrokenResourceError):
            await late.stream.send_all(v2.READ_HELLO)
        assert await late.closed()
        assert rig.server.refused == 1
        await half.stream.send_all(v2.READ_HELLO[10:])
        assert (await half.response()).code == 0
        await rig.commit()
        assert (await adding.response()).code == 0


async def test_a_peer_whose_request_is_on_its_way_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with behind_one_address(tmp_path, monkeypatch) as (rig, (first, second, _)):
        arrived = {next(each for each in rig.server._conversations.values())._stream}
        monkeypatch.setattr(bookie.server, "has_unread", arrived.__contains__)
        assert (await rig.connect().ask(v2.READ_HELLO)).code == 0
        assert await second.closed()
        assert (await first.ask(v2.READ_HELLO)).code == 0


async def test_strangers_that_send_nothing_take_no_place_of_those_that_are_served(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path, connections_max=2)) as rig:
        strangers = [rig.connect() for _ in range(50)]
        for each in strangers[::2]:
            with suppress(trio.BrokenResourceError):  # others needed its place
                await each.stream.send_all(v2.ADD_HELLO[:7])
        first, second = rig.connect(), rig.connect()
        assert (await first.ask(v2.ADD_HELLO)).code == 0
        assert (await second.ask(v2.READ_HELLO)).code == 0
        assert rig.server.limits.served == 2
        assert rig.server.limits.pending <= pending_max_of(2)


async def test_a_peer_that_begins_a_frame_and_stops_is_no_guest(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    config = settings(tmp_path, peer_timeout_s=5.0, checkpoint_interval_s=0.0)
    async with serving(config, threaded=False) as rig:
        peer = rig.connect()
        started = trio.current_time()
        await peer.stream.send_all(v2.ADD_HELLO[:7])
        assert await peer.closed()
        assert trio.current_time() - started == pytest.approx(5)
        assert rig.server.dropped == 1
