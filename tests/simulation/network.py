"""Connections between machines: late, in pieces, broken, cut off, and heard twice.

A connection is two pipes. What is put into a pipe comes out in order, each piece
after a delay of its own, so that two connections overtake each other. Nothing here
is a task: the receiver itself waits until the next piece is due.

    open_stream ─► Connection ─┬─ Pipe ─► the bookie's conversation
                               └─ Pipe ◄─
    break_off    both ends fail; what was sent and not delivered is lost, or still
                 arrives at the far end, late
    cut          bytes and attempts to connect stand still until mended
    repeat       what the client sent last comes once more, on a connection of its own
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import trio
from machines import MACHINE, Machine

_WINDOW_SIZE = 256 << 10
_SENT_KEPT = 8
ANY = "*"
Route = tuple[str, str]
"""From a machine to a machine; ANY stands for all of them."""
Hear = Callable[[bytes], None]


class Pipe:
    """Bytes on their way in one direction."""

    def __init__(self, network: Network, source: Machine, target: Machine) -> None:
        self._network = network
        self.route = (source.name, target.name)
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.sent: deque[bytes] = deque(maxlen=_SENT_KEPT)
        self.size = 0
        self.ended = False
        self.broken = False
        self.dark = False
        """nothing arrives any more, and nobody is told"""
        self.snap: Callable[[], None] = lambda: None
        """called when the connection is to break"""
        self._last_at = 0.0
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, data: bytes) -> None:
        """Send *data*, perhaps in two pieces."""
        self.sent.append(data)
        if self.dark:
            return
        if self._network.is_lost(self.route):
            self.snap()
            return
        chance = self._network.chance
        if len(data) > 1 and chance.random() < self._network.split_share:
            at = chance.randrange(1, len(data))
            self._put_piece(data[:at])
            data = data[at:]
        self._put_piece(data)
        self.changed.unpark_all()

    def _put_piece(self, data: bytes) -> None:
        due = trio.current_time() + self._network.delay_s(self.route)
        self._last_at = max(self._last_at, due)
        self.pieces.append((self._last_at, data))
        self.size += len(data)

    def end(self) -> None:
        """Nothing follows what was put."""
        self.ended = True
        self.changed.unpark_all()

    def break_off(self, *, late_s: float | None = None) -> None:
        """Lose what is under way, or with *late_s* let it arrive so much later, and then end."""
        if late_s is None:
            self.broken = True
            self.pieces.clear()
        else:
            self.pieces = deque((at + late_s, data) for at, data in self.pieces)
            self.ended = True
        self.changed.unpark_all()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.size >= _WINDOW_SIZE and not self.broken:
            await self.changed.park()

    async def take(self, size: int) -> bytes:
        """Wait for the next bytes and return up to *size* of them; none at the end."""
        while True:
            if self.broken:
                raise trio.BrokenResourceError("connection reset")
            is_cut = self._network.is_cut(self.route)
            if not self.pieces and self.ended and not is_cut:
                return b""
            if not self.pieces or is_cut or self.dark:
                await self.changed.park()
                continue
            due = self.pieces[0][0]
            if due <= trio.current_time():
                return self._take_piece(size)
            with trio.move_on_at(due):
                await self.changed.park()

    def _take_piece(self, size: int) -> bytes:
        at, data = self.pieces.popleft()
        if len(data) > size:
            self.pieces.appendleft((at, data[size:]))
            data = data[:size]
        self.size -= len(data)
        self.changed.unpark_all()
        return data


class SimulatedStream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, *, hear: Hear = lambda _: None) -> None:
        """*hear* is called with what is sent, at that moment."""
        self._incoming = incoming
        self._outgoing = outgoing
        self._hear = hear
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._check()
        await self._outgoing.room()
        await self._check()
        sent = bytes(data)
        self._hear(sent)
        self._outgoing.put(sent)

    async def wait_send_all_might_not_block(self) -> None:
        await self._check()
        await self._outgoing.room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        return await self._incoming.take(max_bytes or _WINDOW_SIZE)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.end()
            self._incoming.break_off()
        await trio.lowlevel.checkpoint()

    def setsockopt(self, *_: object) -> None:
        """Take any option of a socket."""

    async def _check(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        if self._outgoing.broken or self._incoming.broken:
            raise trio.BrokenResourceError("connection reset")


class Connection:
    """A client's connection to a bookie."""

    def __init__(self, network: Network, client: Machine, bookie: Machine) -> None:
        self.client = client
        self.bookie = bookie
        self.there = Pipe(network, client, bookie)
        self.back = Pipe(network, bookie, client)
        self.there.snap = self.back.snap = self.break_off

    @property
    def over(self) -> bool:
        """True if no more bytes can arrive."""
        there = self.there
        return self.back.broken and (there.broken or (there.ended and not there.pieces))

    def client_end(self) -> SimulatedStream:
        return SimulatedStream(self.back, self.there)

    def bookie_end(self, hear: Hear) -> SimulatedStream:
        return SimulatedStream(self.there, self.back, hear=hear)

    def break_off(self, *, late_s: float | None = None) -> None:
        """Fail both ends; with *late_s*, what the client had sent still arrives, late."""
        self.back.break_off()
        self.there.break_off(late_s=late_s)

    def go_dark(self) -> None:
        """Deliver nothing more in either direction, and say nothing."""
        self.there.dark = self.back.dark = True


class Door(trio.abc.Listener[SimulatedStream]):
    """A listening socket of a bookie."""

    def __init__(self, overhear: Callable[[], Hear]) -> None:
        """*overhear* returns who hears what the bookie sends on the next connection."""
        self._overhear = overhear
        self._send, self._receive = trio.open_memory_channel[SimulatedStream](1000)

    def knock(self, connection: Connection) -> None:
        """Pass the bookie its end of *connection*.

        Raises:
            ConnectionRefusedError: the bookie is about to end.
        """
        try:
            self._send.send_nowait(connection.bookie_end(self._overhear()))
        except trio.BrokenResourceError as closed:
            raise ConnectionRefusedError("nobody listens any more") from closed

    async def accept(self) -> SimulatedStream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()


class Network:
    """All connections. *delay_max_s* bounds the usual delay of a piece."""

    def __init__(self, chance: random.Random, *, delay_max_s: float, split_share: float) -> None:
        self.chance = chance
        self.split_share = split_share
        self._delay_max_s = delay_max_s
        self._doors: dict[str, tuple[Machine, Door]] = {}
        self._connections: list[Connection] = []
        self._cuts: dict[Route, int] = {}
        self._slow: dict[Route, float] = {}
        self._lossy: dict[Route, float] = {}
        self._mended = trio.lowlevel.ParkingLot()

    # --- what machines use -------------------------------------------------------------

    def listen(self, machine: Machine, overhear: Callable[[], Hear]) -> Door:
        """Take connections to *machine* from now on."""
        door = Door(overhear)
        self._doors[machine.name] = (machine, door)
        return door

    async def open_stream(self, host: str, _port: int) -> trio.abc.Stream:
        """Connect the calling task's machine to *host*.

        Raises:
            OSError: nobody listens there.
        """
        client = MACHINE.get()
        assert client is not None
        while self.is_cut((client.name, host)) or self.is_cut((host, client.name)):
            await self._mended.park()
        await trio.sleep(self.delay_s((client.name, host)))
        client.check_alive()
        bookie, door = self._doors.get(host, (None, None))
        if bookie is None or door is None or not bookie.alive:
            raise ConnectionRefusedError(f"nobody listens at {host}")
        connection = Connection(self, client, bookie)
        self._connections = [each for each in self._connections if not each.over]
        self._connections.append(connection)
        door.knock(connection)
        return connection.client_end()

    def delay_s(self, route: Route) -> float:
        """Return the delay of the next bytes in seconds."""
        delay_s = self._delay_max_s * self.chance.random() ** 3
        if self._slow:
            delay_s += _along(self._slow, route) * self.chance.random()
        return delay_s

    def is_lost(self, route: Route) -> bool:
        """True if the next bytes are lost, and the connection with them."""
        return bool(self._lossy) and self.chance.random() < _along(self._lossy, route)

    def is_cut(self, route: Route) -> bool:
        """True if bytes from the first to the second are held back."""
        return route in self._cuts

    # --- what goes wrong ---------------------------------------------------------------

    def leave(self, machine: Machine, *, silently: bool) -> None:
        """A machine died: its peers notice at once, or *silently* not at all."""
        self._doors.pop(machine.name, None)
        for connection in self._of(machine):
            if silently:
                connection.go_dark()
            else:
                connection.break_off()

    def forget(self, machine: Machine) -> None:
        """A machine starts again: it knows nothing of its connections, and says so."""
        for connection in self._of(machine):
            connection.break_off()

    def forget_all(self) -> None:
        """All machines were stopped: nothing that was ever sent arrives any more, or again."""
        self._connections.clear()

    def break_off(self, machine: Machine, *, late_s: float | None = None) -> None:
        """Break all connections of *machine* that stand."""
        for connection in self._of(machine):
            connection.break_off(late_s=late_s)

    def repeat(self, machine: Machine) -> None:
        """Deliver to *machine* its clients' last bytes once more, and drop its answers."""
        for connection in self._of(machine, as_client=False):
            name = machine.name
            if name not in self._doors or not machine.alive:
                return
            again = Connection(self, connection.client, machine)
            for data in connection.there.sent:
                again.there.put(data)
            again.there.end()
            with suppress(ConnectionRefusedError):
                self._doors[name][1].knock(again)

    def cut(self, source: str, target: str) -> None:
        """Hold back bytes from *source* to *target*."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Undo one cut()."""
        left = self._cuts.pop((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
        self._wake()

    def slow(self, route: Route, delay_max_s: float) -> None:
        """Delay what goes along *route* by up to so much more; 0: no longer."""
        self._slow[route] = delay_max_s

    def lose(self, route: Route, share: float) -> None:
        """Break connections along *route* at this share of what is sent; 0: no longer."""
        self._lossy[route] = share

    def heal(self) -> None:
        """Undo all cuts, delays and losses."""
        self._cuts.clear()
        self._slow.clear()
        self._lossy.clear()
        self._wake()

    def _wake(self) -> None:
        self._mended.unpark_all()
        for connection in self._connections:
            connection.there.changed.unpark_all()
            connection.back.changed.unpark_all()

    def _of(self, machine: Machine, *, as_client: bool = True) -> Iterator[Connection]:
        for connection in list(self._connections):
            if connection.bookie is machine or (as_client and connection.client is machine):
                yield connection


def _along(table: dict[Route, float], route: Route) -> float:
    """Return the greatest number that *table* has for *route*, its source or its target."""
    source, target = route
    keys = (route, (source, ANY), (ANY, target))
    return max(table.get(key, 0.0) for key in keys)
