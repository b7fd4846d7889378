from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import serving, settings

from bookie.connection_limits import ConnectionLimits, TooManyConnections, pending_max_of

HERE, THERE = "10.0.0.1", "10.0.0.2"


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


def test_one_address_leaves_a_quarter_of_the_places_to_the_others(stack: ExitStack) -> None:
    places = ConnectionLimits(8)
    for _ in range(6):
        stack.enter_context(places.serve(HERE))
    with pytest.raises(TooManyConnections, match=r"10\.0\.0\.1 has 6"):
        stack.enter_context(places.serve(HERE))
    for _ in range(2):
        stack.enter_context(places.serve(THERE))
    with pytest.raises(TooManyConnections, match="8 connections are served"):
        stack.enter_context(places.serve("10.0.0.3"))
    with pytest.raises(TooManyConnections), places.admit(1, "10.0.0.3"):
        pass
    stack.close()
    assert places.served == 0
    with places.serve(HERE):
        assert places.served == 1


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
