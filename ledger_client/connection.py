"""The way to one bookie, over one TCP connection at a time.

Asking never blocks: a question is queued, and its Reply tells when the answer
or the failure is there. The connection is made when it is first needed and
again when it is needed after it broke; between two failed attempts lies a pause
that doubles, and a question asked in the pause fails at once, so that its asker
can turn to another replica. A bookie says its name before it is asked anything else.

    ask ──► Outgoing ──► send task ──► bookie ──► receive task ──► Link (C)
                                                    ├─ other answers ──► Reply
                                                    └─ acknowledgements ─► Listener

A writer that is attached hears of acknowledgements (once per received chunk)
and of the loss of the connection, after which it is no longer attached.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.introduction import Stranger, introduce
from ledger_client.options import Options
from ledger_client.outgoing import Buffer
from ledger_client.replies import PROBE, Key, Reply
from ledger_client.session import Attached, Listener, Session, first_line
from ledger_client.statements import LedgerName
from metadata.address import Address
from metadata.errors import AccessDenied
from native import frame
from native.link import Writer

OpenStream = Callable[[str, int], Awaitable[trio.abc.Stream]]


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
        self._session: Session | None = None
        self._standing = False
        self._changed = trio.lowlevel.ParkingLot()
        self._request_ids = itertools.count(1)
        self._failure: BookieUnavailable | None = None
        self._failures = 0
        self._retry_at = 0.0

    # --- questions ---------------------------------------------------------------

    def next_request_id(self) -> int:
        """Return a request id that no open question of this connection has."""
        return next(self._request_ids)

    def ask(
        self,
        request: bytes,
        key: Key,
        on_arrival: Callable[[], None],
        about: LedgerName | None = None,
    ) -> Reply:
        """Send *request*; *on_arrival* is called when the Reply has arrived.

        *about*: the ledger that the request names; None when it names none.
        """
        reply = Reply(self.bookie_id, on_arrival)
        incarnation = 0 if about is None else about.incarnation
        try:
            session = self._wake()
            if session.replies.is_ambiguous(key, incarnation):
                self._end(session, "the id of a ledger is used again")
                session = self._wake()
        except BookieUnavailable as failure:
            reply.fail(failure)
            return reply
        session.replies.add(key, reply, incarnation)
        session.ask(request, about)
        return reply

    async def ready(self) -> None:
        """Return when the connection stands.

        Raises:
            BookieUnavailable: it cannot be made, or lately could not.
        """
        session = self._wake()
        while self._session is session and not self._standing:
            await self._changed.park()
        if self._session is not session and self._failure is not None:
            raise self._failure

    @property
    def standing(self) -> bool:
        """True while the connection is made."""
        return self._standing

    @property
    def paused(self) -> bool:
        """True while questions would fail at once, after failed attempts to connect."""
        return self._session is None and trio.current_time() < self._retry_at

    async def answer(self) -> None:
        """Return when the bookie answered a question that says nothing else.

        Raises:
            BookieUnavailable: it cannot be reached, or the connection broke.
        """
        arrived = trio.Event()
        reply = self.ask(frame.read(*PROBE), PROBE, arrived.set)
        try:
            await arrived.wait()
        finally:
            reply.abandon()
        if reply.failure is not None:
            raise reply.failure

    def suspect(self, since: float) -> None:
        """Drop the connection soon if nothing at all was, or is, received after *since*.

        Called by who waited in vain: a half-open connection looks alive for ever. It has a
        second more to say something, for it may be this process that hung.
        """
        session = self._session
        if session is not None and self._standing and session.received_at <= since:
            session.suspect()

    # --- writers -----------------------------------------------------------------

    def attach(
        self, token: int, writer: Writer, index: int, listener: Listener, name: LedgerName
    ) -> None:
        """Count acknowledgements of *writer*'s ledger *name* for *index* of its ensemble.

        Raises:
            BookieUnavailable: there is no connection at present, or another
                writer of the same ledger uses it.
        """
        session = self._wake()
        if session.is_ambiguous(name):
            self._end(session, f"the id of ledger {name.ledger_id} is used again")
            session = self._wake()
        try:
            session.attach(token, Attached(writer, index, listener, name))
        except OSError as wrong:
            raise BookieUnavailable(self.bookie_id, first_line(wrong)) from wrong

    def detach(self, token: int) -> None:
        """Forget the writer and drop what it has queued here."""
        if self._session is not None:
            self._session.detach(token)

    def leave(self, token: int) -> None:
        """Forget the writer; what it has queued here still goes out."""
        if self._session is not None:
            self._session.leave(token)

    def send(self, token: int, buffer: Buffer) -> None:
        """Queue add frames of an attached writer, which the bookie owes an answer for."""
        if self._session is not None:
            self._session.send(token, buffer)

    def tell(self, request: bytes, about: LedgerName) -> None:
        """Send a request whose answer nobody needs, if the connection stands."""
        if self._session is not None and self._standing:
            self._session.ask(request, about)

    @property
    def queued(self) -> int:
        """Bytes that are not sent yet."""
        return self._session.outgoing.size if self._session is not None else 0

    @property
    def full(self) -> bool:
        """True while more bytes are queued than may be."""
        return self._session is not None and self._session.outgoing.full

    async def wait_room(self) -> None:
        """Wait until the queue is not full, or the connection is gone."""
        if self._session is not None:
            await self._session.outgoing.wait_room()

    # --- connecting ----------------------------------------------------------------

    def _wake(self) -> Session:
        """Return the session, begun now if there is none. Raises in the pause."""
        if self._session is None:
            if self._failure is not None and trio.current_time() < self._retry_at:
                raise self._failure
            self._session = Session(
                send_timeout_s=self._options.send_timeout_s,
                queue_size_max=self._options.queue_size_max,
                silence_s=self._options.bookie_timeout_s,
            )
            self._nursery.start_soon(self._run, self._session)
        return self._session

    async def _run(self, session: Session) -> None:
        reason = "the client was closed"
        try:
            with session.scope:
                reason = await self._connect_and_serve(session)
        finally:
            self._end(session, reason)

    async def _connect_and_serve(self, session: Session) -> str:
        """Return why the session is over."""
        stream = await self._connect()
        if isinstance(stream, str):
            return stream
        async with stream:
            began = trio.current_time()
            self._standing = True
            self._changed.unpark_all()
            reason = await session.serve(stream)
        if session.received_at > began:
            self._failures = 0
        return reason

    async def _connect(self) -> trio.abc.Stream | str:
        """Return a stream to this very bookie, or why there is none."""
        try:
            with trio.fail_after(self._options.connect_timeout_s):
                address = await self._locate()
                if address is None:
                    return "not registered"
                return await self._reach(address)
        except trio.TooSlowError:
            return f"no connection within {self._options.connect_timeout_s:g} s"
        except (Stranger, AccessDenied) as wrong:
            return str(wrong)
        except (OSError, trio.BrokenResourceError) as wrong:
            return f"cannot connect: {first_line(wrong)}"

    async def _reach(self, address: Address) -> trio.abc.Stream:
        stream = await self._open_stream(address.host, address.port)
        try:
            await introduce(stream, self.bookie_id)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def _end(self, session: Session, reason: str) -> None:
        """End *session* if that is not done yet, and set the time of the next attempt."""
        if self._session is not session:
            return
        self._session = None
        self._standing = False
        self._failure = BookieUnavailable(self.bookie_id, reason)
        self._retry_at = trio.current_time() + self._pause_s()
        self._failures += 1
        session.end(self._failure)
        self._changed.unpark_all()

    def _pause_s(self) -> float:
        if self._failures == 0:
            return 0.0  # the first break after traffic: a restart of the bookie, as a rule
        doubled = self._options.reconnect_delay_s * 2.0 ** min(self._failures - 1, 30)
        return min(doubled, self._options.reconnect_delay_max_s)
