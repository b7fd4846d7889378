"""One bookie over one TCP connection at a time.

Asking never blocks: a question is queued, and its Reply tells when the answer
or the failure is there. The connection is made when it is first needed and
again when it is needed after it broke; between two failed attempts lies a pause
that doubles, and a question asked in the pause fails at once, so that its asker
can turn to another replica.

    ask ──► Outgoing ──► send task ──► bookie ──► receive task ──► Link (C)
                                                    ├─ other answers ──► Reply
                                                    └─ acknowledgements ─► Listener

A writer that is attached hears of acknowledgements (once per received chunk)
and of the loss of the connection, after which it is no longer attached.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.options import Options
from ledger_client.outgoing import Buffer, Outgoing
from ledger_client.replies import Key, Reply, ReplyBook
from metadata.address import Address
from native.errors import ProtocolBroken
from native.link import Link, Writer

RECEIVE_SIZE = 256 * 1024
NO_OWNER = 0

OpenStream = Callable[[str, int], Awaitable[trio.abc.Stream]]


class Listener(Protocol):
    """A writer, as its connections see it."""

    def acknowledged(self) -> None:
        """The state of the native writer changed."""

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The bookie at *index* of the ensemble acknowledges nothing any more."""


class _State(enum.Enum):
    IDLE = enum.auto()
    CONNECTING = enum.auto()
    OPEN = enum.auto()


class BookieConnection:
    """Questions to one bookie, and adds of the writers attached to it."""

    def __init__(
        self,
        bookie_id: str,
        *,
        locate: Callable[[], Awaitable[Address | None]],
        options: Options,
        nursery: trio.Nursery,
        open_stream: OpenStream,
    ) -> None:
        """*locate* tells where the bookie listens now, None while it is not known."""
        self.bookie_id = bookie_id
        self._locate = locate
        self._options = options
        self._nursery = nursery
        self._open_stream = open_stream
        self._state = _State.IDLE
        self._changed = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._outgoing = Outgoing(options.queue_size_max)
        self._replies = ReplyBook()
        self._request_ids = itertools.count(1)
        self._link: Link | None = None
        self._attached: dict[int, tuple[Writer, int, Listener]] = {}
        self._failure: BookieUnavailable | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._received_at = 0.0

    # --- questions ---------------------------------------------------------------

    def next_request_id(self) -> int:
        """Return a request id that no open question of this connection has."""
        return next(self._request_ids)

    def ask(self, frame: bytes, key: Key, on_arrival: Callable[[], None]) -> Reply:
        """Send *frame*; *on_arrival* is called when the Reply has arrived."""
        reply = Reply(self.bookie_id, on_arrival)
        failure = self._wake()
        if failure is not None:
            reply.fail(failure)
        else:
            self._replies.add(key, reply)
            self._outgoing.put(NO_OWNER, frame)
        return reply

    async def ready(self) -> None:
        """Return when the connection stands.

        Raises:
            BookieUnavailable: it cannot be made, or lately could not.
        """
        failure = self._wake()
        while failure is None and not self.standing:
            await self._changed.park()
            failure = self._failure if self._state is _State.IDLE else None
        if failure is not None:
            raise failure

    @property
    def standing(self) -> bool:
        """True while the connection is made."""
        return self._state is _State.OPEN

    @property
    def paused(self) -> bool:
        """True while questions would fail at once, after failed attempts to connect."""
        return self._state is _State.IDLE and trio.current_time() < self._retry_at

    def suspect(self, since: float) -> None:
        """Drop the connection if nothing at all was received after *since*.

        Called by who waited in vain: a half-open connection looks alive for ever.
        """
        if self._state is _State.OPEN and self._received_at <= since:
            self._fail("does not answer")

    # --- writers -----------------------------------------------------------------

    def attach(self, token: int, writer: Writer, index: int, listener: Listener) -> None:
        """Count acknowledgements of *writer*'s ledger for *index* of its ensemble.

        Raises:
            BookieUnavailable: there is no connection at present.
        """
        failure = self._wake()
        if failure is not None:
            raise failure
        self._attached[token] = (writer, index, listener)
        if self._link is not None:
            self._link.attach(writer, index)

    def detach(self, token: int) -> None:
        """Forget the writer and drop what it has queued here."""
        attached = self._attached.pop(token, None)
        if attached is not None:
            self._outgoing.revoke(token)
            if self._link is not None:
                self._link.detach(attached[0])

    def send(self, token: int, buffer: Buffer) -> None:
        """Queue add frames of an attached writer."""
        self._outgoing.put(token, buffer)

    def tell(self, frame: bytes) -> None:
        """Send a request whose answer nobody needs, if the connection stands."""
        if self._state is _State.OPEN:
            self._outgoing.put(NO_OWNER, frame)

    @property
    def full(self) -> bool:
        """True while more bytes are queued than may be."""
        return self._outgoing.full

    async def wait_room(self) -> None:
        """Wait until the queue is not full, or the connection is gone."""
        await self._outgoing.wait_room()

    # --- the connection ----------------------------------------------------------

    def _wake(self) -> BookieUnavailable | None:
        """Begin to connect if that is needed and allowed; else say why not."""
        if self._state is _State.IDLE:
            if self._failure is not None and trio.current_time() < self._retry_at:
                return self._failure
            self._state = _State.CONNECTING
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._run, self._scope)
        return None

    async def _run(self, scope: trio.CancelScope) -> None:
        reason = "the client was closed"
        try:
            with scope:
                reason = await self._connect_and_serve()
        finally:
            if self._scope is scope and self._state is not _State.IDLE:
                self._fail(reason)

    async def _connect_and_serve(self) -> str:
        """Return why the connection is over."""
        stream = await self._connect()
        if isinstance(stream, str):
            return stream
        async with stream:
            self._open()
            return await self._serve(stream)

    async def _connect(self) -> trio.abc.Stream | str:
        try:
            with trio.fail_after(self._options.connect_timeout_s):
                address = await self._locate()
                if address is None:
                    return "not registered"
                return await self._open_stream(address.host, address.port)
        except trio.TooSlowError:
            return f"no connection within {self._options.connect_timeout_s:g} s"
        except (OSError, trio.BrokenResourceError) as wrong:
            return f"cannot connect: {_first_line(wrong)}"

    def _open(self) -> None:
        self._link = Link()
        for writer, index, _ in self._attached.values():
            self._link.attach(writer, index)
        self._received_at = trio.current_time()
        self._state = _State.OPEN
        self._changed.unpark_all()

    async def _serve(self, stream: trio.abc.Stream) -> str:
        reasons: list[str] = []

        async def run(work: Callable[[trio.abc.Stream], Awaitable[str]]) -> None:
            reasons.append(await work(stream))
            tasks.cancel_scope.cancel()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(run, self._send_all)
            tasks.start_soon(run, self._receive_all)
        return reasons[0]

    async def _send_all(self, stream: trio.abc.Stream) -> str:
        outgoing = self._outgoing
        while True:
            buffer = await outgoing.take()
            try:
                for start in range(0, len(buffer), 1 << 20):
                    with trio.fail_after(self._options.send_timeout_s):
                        await stream.send_all(memoryview(buffer)[start : start + (1 << 20)])
            except trio.TooSlowError:
                return f"took nothing for {self._options.send_timeout_s:g} s"
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as wrong:
                return f"connection lost: {_first_line(wrong)}"
            outgoing.sent(len(buffer))

    async def _receive_all(self, stream: trio.abc.Stream) -> str:
        link = self._link
        while True:
            try:
                data = await stream.receive_some(RECEIVE_SIZE)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as wrong:
                return f"connection lost: {_first_line(wrong)}"
            if not data:
                return "connection closed by the bookie"
            if link is None or self._link is not link:
                return "given up"  # a cancellation on its way: these bytes belong to nobody
            self._received_at = trio.current_time()
            self._failures = 0
            try:
                self._take_in(link, data)
            except ProtocolBroken as wrong:
                return f"broke the protocol: {wrong}"

    def _take_in(self, link: Link, data: bytes | bytearray) -> None:
        for response in link.feed(data):
            self._replies.resolve(response)
        for token in link.dirty():
            attached = self._attached.get(token)
            if attached is not None:
                attached[2].acknowledged()

    def _fail(self, reason: str) -> None:
        """Tell everybody that the connection is gone, and set the next attempt's time."""
        self._state = _State.IDLE
        self._failure = BookieUnavailable(self.bookie_id, reason)
        self._retry_at = trio.current_time() + self._pause_s()
        self._failures += 1
        self._scope.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._outgoing.clear()
        self._outgoing = Outgoing(self._options.queue_size_max)
        attached, self._attached = self._attached, {}
        for _, index, listener in attached.values():
            listener.bookie_lost(index, self._failure)
        self._replies.fail(self._failure)
        self._changed.unpark_all()

    def _pause_s(self) -> float:
        if self._failures == 0:
            return 0.0  # the first break after traffic: a restart of the bookie, as a rule
        doubled = self._options.reconnect_delay_s * 2.0 ** min(self._failures - 1, 30)
        return min(doubled, self._options.reconnect_delay_max_s)


def _first_line(error: BaseException) -> str:
    """Return what *error* says in one line; trio's errors hide the cause behind them."""
    told = str(error) or str(error.__cause__ or "") or type(error).__name__
    return told.splitlines()[0]
