"""The bookies of the cluster: their addresses, and one connection to each.

Sending to a bookie never blocks: a request is queued, and its Reply reports the response or the
failure. The connection is opened when it is first needed, and reopened when it is needed after
it broke. The pause between failed attempts doubles; a request during the pause fails at once, so
that its caller can try another replica. The bookie's id is checked before anything else is sent.

    ask ──► Outgoing ──► send task ──► bookie ──► receive task ──► Link (C)
                                                    ├─ other responses ► Reply
                                                    └─ acknowledgements ─► Listener

An attached writer is notified of acknowledgements, once per received chunk, and of the loss of
the connection, which detaches it.

Addresses come from the leases that bookies hold in metadata. The last known address is kept when
a lease ends or the store is down, because the bookie may still serve reads; it is looked up
again whenever a connection is opened.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import cached_property
from itertools import count

import trio

from ledger_client.errors import BookieUnavailable, LedgerError, MetadataUnavailable
from ledger_client.options import Options
from ledger_client.wire.followed import FollowedLedgers
from ledger_client.wire.inflight import PROBE, Key, LedgerName, Reply, fail_after
from ledger_client.wire.session import NO_OWNER, Attached, Listener, Session
from ledger_client.wire.streams import OpenStream, check_bookie, first_line
from metadata.address import Address, parse_address
from metadata.calls import BookieReply, BookieRequest, Failure, decode_reply, encode_request
from metadata.errors import (
    AccessDenied,
    BadAddress,
    BadGroup,
    BadRecord,
    NotLeader,
    TimeRefused,
)
from metadata.failures import error_of
from metadata.records import BookieRecord
from native import frame
from native.frame import Code
from native.link import Response, Writer


class BookieConnection:
    """Sends requests, and adds of attached writers, to the bookie *bookie_id*."""

    def __init__(
        self,
        bookie_id: str,
        *,
        locate: Callable[[], Awaitable[Address | None]],
        options: Options,
        nursery: trio.Nursery,
        open_stream: OpenStream,
    ) -> None:
        """*locate* returns the bookie's current address, or None while it is unknown."""
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

    @cached_property
    def followed(self) -> FollowedLedgers:
        """Quiet ledgers whose followers wait for news from this bookie."""
        return FollowedLedgers(self, self._nursery)

    # --- requests ----------------------------------------------------------------

    def next_request_id(self) -> int:
        """Return a request id that no open request of this connection has."""
        return next(self._request_ids)

    def ask(
        self,
        request: bytes,
        key: Key,
        on_arrival: Callable[[], None],
        about: LedgerName | None = None,
    ) -> Reply:
        """Queue *request*; *on_arrival* is called when the Reply has a response or a failure.

        *about* is the ledger that the request names, if any.
        """
        reply = Reply(self.bookie_id, on_arrival)
        incarnation = 0 if about is None else about.incarnation
        try:
            session = self._wake()
            if session.replies.is_ambiguous(key, incarnation):
                self._end(session, "the id of a ledger was reused")
                session = self._wake()
        except BookieUnavailable as failure:
            reply.fail(failure)
            return reply
        session.replies.add(key, reply, incarnation)
        session.ask(request, about)
        return reply

    async def ready(self) -> None:
        """Wait until the connection is open.

        Raises:
            BookieUnavailable: it cannot be opened, or the last attempt failed just now.
        """
        session = self._wake()
        while self._session is session and not self._standing:
            await self._changed.park()
        if self._session is not session and self._failure is not None:
            raise self._failure

    @property
    def standing(self) -> bool:
        """True while the connection is open."""
        return self._standing

    @property
    def paused(self) -> bool:
        """True while requests fail at once, in the pause after a failed attempt to connect."""
        return self._session is None and trio.current_time() < self._retry_at

    async def call(self, request: BookieRequest, *, timeout_s: float) -> BookieReply:
        """Return the bookie's reply to *request*, never a Failure.

        Raises:
            BookieUnavailable: it cannot be reached, did not answer within *timeout_s*, or
                returned a Failure, which is the cause then.
            NotLeader, BadGroup, TimeRefused: the answer of the leader, or of another bookie.
        """
        request_id = self.next_request_id()
        body = frame.call(request_id, encode_request(request))
        try:
            with fail_after(timeout_s):
                return self._reply(await self._response(body, request_id))
        except trio.TooSlowError:
            reason = f"no answer within {timeout_s:g} s"
            raise BookieUnavailable(self.bookie_id, reason) from None

    async def answer(self) -> None:
        """Wait until the bookie answered a request that reads nothing.

        Raises:
            BookieUnavailable: it cannot be reached, or the connection broke.
        """
        await self._response(frame.read(*PROBE), PROBE)

    async def _response(self, request: bytes, key: Key) -> Response:
        arrived = trio.Event()
        reply = self.ask(request, key, arrived.set)
        try:
            await arrived.wait()
        except trio.Cancelled:  # by its own deadline, or by one of who called
            self.suspect(reply.sent_at)
            raise
        finally:
            reply.abandon()
        if reply.failure is not None:
            raise reply.failure
        assert reply.response is not None
        return reply.response

    def _reply(self, response: Response) -> BookieReply:
        if response.code != Code.OK:
            raise BookieUnavailable(self.bookie_id, f"refused a call with code {response.code}")
        try:
            reply = decode_reply(response.body)
        except BadRecord as wrong:
            raise BookieUnavailable(self.bookie_id, str(wrong)) from wrong
        if isinstance(reply, Failure):
            error = error_of(reply)
            if isinstance(error, NotLeader | BadGroup | TimeRefused):
                raise error
            raise BookieUnavailable(self.bookie_id, f"{reply.kind}: {reply.message}") from error
        if not isinstance(reply, BookieReply):
            raise BookieUnavailable(self.bookie_id, f"answered {type(reply).__name__}")
        return reply

    def suspect(self, since: float) -> None:
        """Drop the connection soon if nothing at all was, or is, received after *since*.

        Call it once nobody waits any longer: a half-open connection looks alive for ever. The
        bookie gets a second more to send something, because this process may have hung itself.
        """
        session = self._session
        if session is not None and self._standing and session.received_at <= since:
            session.suspect()

    # --- writers -----------------------------------------------------------------

    def attach(
        self, token: int, writer: Writer, index: int, listener: Listener, name: LedgerName
    ) -> Session:
        """Count acknowledgements of *writer*'s ledger *name* for *index* of its ensemble.

        The writer sends through the returned session, as *token*, until its
        listener reports the session as lost. It detaches itself there, or leaves.

        Raises:
            BookieUnavailable: the connection cannot be opened now, or another writer of the
                same ledger is attached.
        """
        session = self._wake()
        if session.is_ambiguous(name):
            self._end(session, f"the id of ledger {name.ledger_id} was reused")
            session = self._wake()
        try:
            session.attach(token, Attached(writer, index, listener, name))
        except OSError as wrong:
            raise BookieUnavailable(self.bookie_id, first_line(wrong)) from wrong
        return session

    def notify(self, request: bytes, about: LedgerName) -> None:
        """Send a request whose response is ignored, if the connection is open."""
        if self._session is not None and self._standing:
            self._session.ask(request, about)

    @property
    def queued(self) -> int:
        """Bytes queued and not sent yet."""
        return self._session.outgoing.size if self._session is not None else 0

    # --- connecting ----------------------------------------------------------------

    def _wake(self) -> Session:
        """Return the session; begin one if there is none. Raises BookieUnavailable in the pause."""
        if self._session is None:
            if self._failure is not None and trio.current_time() < self._retry_at:
                raise self._failure
            self._session = Session(self._options)
            self._session.outgoing.put(NO_OWNER, frame.pulse())  # asks the bookie for pulses
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
        """Return the reason for the session's end."""
        stream = await self._connect()
        if isinstance(stream, str):
            return stream
        async with stream:
            began = trio.current_time()
            self._standing = True
            self._changed.unpark_all()
            reason = await session.serve(stream)
        stood_s = trio.current_time() - began
        if session.received_at > began or stood_s >= self._options.reconnect_delay_max_s:
            self._failures = 0
        return reason

    async def _connect(self) -> trio.abc.Stream | str:
        """Return a stream to this bookie, or the reason why none could be opened."""
        try:
            with trio.fail_after(self._options.connect_timeout_s):
                address = await self._locate()
                if address is None:
                    return "not registered"
                return await self._reach(address)
        except trio.TooSlowError:
            return f"no connection within {self._options.connect_timeout_s:g} s"
        except AccessDenied as wrong:
            return str(wrong)
        except (OSError, trio.BrokenResourceError) as wrong:
            return f"cannot connect: {first_line(wrong)}"

    async def _reach(self, address: Address) -> trio.abc.Stream:
        stream = await self._open_stream(address.host, address.port)
        try:
            await check_bookie(stream, self.bookie_id)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def _end(self, session: Session, reason: str) -> None:
        """End *session* if it is the current one, and set the time of the next attempt."""
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
            return 0.0  # the first break after traffic is usually a restart of the bookie
        doubled = self._options.reconnect_delay_s * 2.0 ** min(self._failures - 1, 30)
        return min(doubled, self._options.reconnect_delay_max_s)


# --- all bookies ------------------------------------------------------------------------


FRESH_S = 0.5
"""An address is not looked up again within this time."""
LOOK_UP_S = 1.0
"""How long to wait for the store if an older address is known."""
ANSWER_S = 1.0
"""A bookie that replaces another in an ensemble must answer within this time."""


class Connections(dict[str, BookieConnection]):
    """Connections by the bookie's id; one that is missing is added when it is looked up."""

    def __init__(self, connect: Callable[[str], BookieConnection]) -> None:
        super().__init__()
        self._connect = connect

    def __missing__(self, bookie_id: str) -> BookieConnection:
        connection = self[bookie_id] = self._connect(bookie_id)
        return connection


class Bookies:
    """The directory of bookies; owns the connections to them.

    Attributes:
        connections: to each bookie, registered or not; a connection opens when it is used.
    """

    def __init__(
        self,
        list_bookies: Callable[[], Awaitable[list[BookieRecord]]],
        *,
        options: Options,
        nursery: trio.Nursery,
        open_stream: OpenStream,
    ) -> None:
        """*list_bookies* returns the registered bookies, from metadata."""
        self._list = list_bookies
        self._options = options
        self._nursery = nursery
        self._open_stream = open_stream
        self._addresses: dict[str, Address] = {}
        self.connections = Connections(self._connection)
        self._refreshed_at = float("-inf")
        self._live: list[BookieRecord] = []
        self._refreshing = trio.Lock()
        self._tokens = count(1)

    async def live(self) -> list[BookieRecord]:
        """Return the bookies that are registered in metadata now.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        records = await self._list()
        for record in records:
            try:
                self._addresses[record.bookie_id] = parse_address(record.address)
            except BadAddress:
                self._addresses.pop(record.bookie_id, None)
        self._refreshed_at = trio.current_time()
        self._live = records
        return records

    async def lately_live(self) -> list[BookieRecord]:
        """Return the result of live(), or one that is less than FRESH_S old.

        When a bookie dies, all writers of a client call this at once.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        async with self._refreshing:
            if trio.current_time() - self._refreshed_at < FRESH_S:
                return self._live
            return await self.live()

    def _connection(self, bookie_id: str) -> BookieConnection:
        async def locate() -> Address | None:
            return await self._locate(bookie_id)

        return BookieConnection(
            bookie_id,
            locate=locate,
            options=self._options,
            nursery=self._nursery,
            open_stream=self._open_stream,
        )

    def new_token(self) -> int:
        """Return a token for a writer, unique on these connections."""
        return next(self._tokens)

    async def unreachable(self, bookie_ids: list[str]) -> dict[str, BookieUnavailable]:
        """Connect to all of *bookie_ids*; return those that fail, with the reason."""
        failures: dict[str, BookieUnavailable] = {}

        async def reach(bookie_id: str) -> None:
            try:
                await self.connections[bookie_id].ready()
            except BookieUnavailable as failure:
                failures[bookie_id] = failure

        await _for_each(bookie_ids, reach)
        return failures

    async def silent(self, bookie_ids: list[str]) -> list[str]:
        """Send all of *bookie_ids* a request; return those that do not answer within ANSWER_S.

        An open connection proves nothing: the host of a hanging bookie still accepts them.
        """
        answering: set[str] = set()

        async def ask(bookie_id: str) -> None:
            with trio.move_on_after(ANSWER_S):
                try:
                    await self.connections[bookie_id].answer()
                except BookieUnavailable:
                    return
                answering.add(bookie_id)

        await _for_each(bookie_ids, ask)
        return [bookie_id for bookie_id in bookie_ids if bookie_id not in answering]

    async def _locate(self, bookie_id: str) -> Address | None:
        known = self._addresses.get(bookie_id)
        if trio.current_time() - self._refreshed_at < FRESH_S:
            return known
        with trio.move_on_after(LOOK_UP_S if known is not None else float("inf")):
            try:
                await self.live()
            except MetadataUnavailable:
                pass
            except LedgerError as wrong:
                raise OSError(str(wrong)) from wrong
        return self._addresses.get(bookie_id)


async def _for_each(bookie_ids: list[str], work: Callable[[str], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(work, bookie_id)
