"""One connection to one of several bookies, for metadata calls, and what their replies mean."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.options import DEFAULT_OPTIONS
from ledger_client.wire.inflight import Call
from ledger_client.wire.session import Session
from ledger_client.wire.strangers import NameStrangers
from ledger_client.wire.streams import OpenStream, StrangePeer
from metadata import calls
from metadata.access import LOGIN_WANTED
from metadata.address import Address
from metadata.calls import Reply, decode_reply
from metadata.errors import AccessDenied, BadAddress, MetadataError, MetadataUnavailable
from metadata.failures import error_of
from native.frame import Code
from native.link import Response

ASKS_MAX = 3
CONNECT_S = 1.0
"""Time limit for connecting to one address; then the next one is tried."""
IDLE_S = 1.0
SILENT_S = 1.0
"""Without a byte for so long, a bookie that owes an answer is probed."""
PROBE_S = 0.001
"""After IDLE_S without a byte, a connection gets this long to turn out closed before it is used."""


class Dialer:
    """Keeps one connection to one of several bookies, and goes round them as they fail.

    The round is of the addresses in the URL and of those learnt since, so that a client that was
    given one bookie's address outlives that bookie.

    Attributes:
        on_passed: called when a connection gets no more calls.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        nursery: trio.Nursery,
        open_stream: OpenStream,
        name_strangers: NameStrangers | None = None,
    ) -> None:
        """*name_strangers* describes what listens where no bookie answers."""
        self._name_strangers = name_strangers
        self._doubtful: dict[Address, None] = {}
        self._strangers: dict[Address, str] = {}
        self._asks = 0
        self._heard = False
        self._from_url = random.sample(addresses, len(addresses))
        self._addresses = [*self._from_url]
        self._nursery = nursery
        self._open_stream = open_stream
        self._next = 0
        self._refused: set[Address] = set()
        self._denied: set[Address] = set()
        self._current: Session | None = None
        self._open: set[Session] = set()
        self._connecting = trio.Lock()
        self._closed = False
        self.on_passed: Callable[[], None] = _nothing

    @property
    def count(self) -> int:
        """Number of addresses in a round."""
        return len(self._addresses)

    @property
    def is_refused(self) -> bool:
        """True if nothing listens at any address: each refused the last attempt to connect."""
        return self._refused.issuperset(self._addresses)

    def is_current(self, session: Session) -> bool:
        """True if new calls are made over *session*."""
        return session is self._current and session.takes_calls

    def learn(self, addresses: Iterable[Address]) -> None:
        """Add these addresses to the round, in place of those learnt before."""
        learnt = {address for address in addresses if address not in self._from_url}
        self._addresses = [*self._from_url, *sorted(learnt)]

    async def session(self) -> Session:
        """Return the connection in use, or one to the next address.

        Raises:
            OSError: that address cannot be reached; the next call tries another.
            AccessDenied: no address lets this client in.
        """
        current = self._current
        if current is not None and current.takes_calls:
            if trio.current_time() - current.received_at > IDLE_S:
                # This process may have hung. So a bookie's restart in that time does not leave
                # the next change with an unknown outcome.
                await trio.sleep(PROBE_S)
            if current.takes_calls:
                return current
        async with self._connecting:
            if self._current is None or not self._current.takes_calls:
                self._current = await self._connect()
            return self._current

    @property
    def at_hand(self) -> Session | None:
        """The session that session() returns at once; `None` if it may have to wait."""
        current = self._current
        if current is None or not current.takes_calls:
            return None
        return None if trio.current_time() - current.received_at > IDLE_S else current

    async def check_peers(self) -> None:
        """Return, unless servers of other protocols listen at all addresses.

        They are asked until one answers, at most ASKS_MAX times, which takes up to a second each,
        and only if no bookie was ever heard: a busy host takes its time.

        Raises:
            BadAddress: no address is a bookie's, or each is one's with TLS or without, unlike
                the URL.
        """
        if self._heard or any(session.heard for session in self._open):
            return
        if self._name_strangers is not None and self._doubtful:
            ask, self._name_strangers = self._name_strangers, None
            try:
                self._strangers = await ask(self._doubtful)
            except BaseException:  # a caller with less patience, whose question it was
                self._name_strangers = ask
                raise
            self._asks += 1
            if not self._strangers and self._asks < ASKS_MAX:
                self._name_strangers = ask
        if all(address in self._strangers for address in self._addresses):
            named = (f"{address}: {remedy}" for address, remedy in self._strangers.items())
            raise BadAddress("; ".join(named))

    def pass_over(self, session: Session | None) -> None:
        """Make no new calls over *session*, and go on with the next address."""
        if session is not None:
            if session is self._current:
                self._current = None
            session.retire()
            self.on_passed()

    def close(self) -> None:
        """Close all connections, also one that is being opened. Calls under way fail."""
        self._closed = True
        for session in self._open:
            session.scope.cancel()

    async def _connect(self) -> Session:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1  # also when this attempt is cancelled: a slow host is not asked again
        self._refused.discard(address)
        self._denied.discard(address)
        try:
            with trio.fail_after(CONNECT_S):
                stream = await self._open_stream(address.host, address.port)
        except trio.TooSlowError as error:
            self._doubtful[address] = None
            raise TimeoutError(f"{address} cannot be reached in {CONNECT_S} s") from error
        except StrangePeer:
            self._doubtful[address] = None
            raise
        except AccessDenied as wrong:  # as one bookie may, whose certificate or users file is old
            self._denied.add(address)
            if self._denied.issuperset(self._addresses):
                raise
            raise ConnectionError(wrong.message) from wrong
        except OSError as error:
            if _is_refusal(error):
                self._refused.add(address)
            raise ConnectionError(f"{address} cannot be reached: {_reason(error)}") from error
        if self._closed:  # it would outlive its nursery's cancellation for ever
            await trio.aclose_forcefully(stream)
            raise ConnectionError("the store is closed")
        self._doubtful[address] = None
        session = Session(DEFAULT_OPTIONS)
        session.scope.shield = True  # see BookieStore
        self._open.add(session)
        self._nursery.start_soon(self._run, session, stream)
        return session

    async def _run(self, session: Session, stream: trio.abc.Stream) -> None:
        try:
            await session.run(stream, "")
        finally:
            self._open.discard(session)
            self._heard = self._heard or session.heard


def withdraw(session: Session | None, call: Call | None) -> bool:
    """Stop waiting for *call*; return True if the bookie may have received it."""
    return session is not None and call is not None and not session.withdraw(call)


async def answered(
    call: Call,
    session: Session,
    limit_s: float,
    *,
    patient: bool,
    on_silence: Callable[[], None],
) -> Response:
    """Return the response to *call* within *limit_s*, while *session* brings anything at all.

    A connection that was cut looks open for ever, and once the cut has healed TCP may not send
    again for as long as the cut lasted. So without a byte for SILENT_S, the bookie is asked for
    a sign of life, unless the call may take long for its purpose: then it is *patient*.
    *on_silence* is called after each SILENT_S without the response, of a call that is not patient.

    Raises:
        BookieUnavailable: the connection was lost, or nothing came.
        trio.TooSlowError: the time is over.
    """
    since = trio.current_time()
    deadline = since + limit_s
    while True:
        # One scope: a second one would take an eighth of the time of a call.
        with trio.move_on_at(deadline if patient else min(deadline, since + SILENT_S)):
            return await call.wait()
        if (now := trio.current_time()) >= deadline:
            raise trio.TooSlowError
        on_silence()
        if session.received_at <= since:
            session.suspect()
        since = now


def reply_in(response: Response) -> Reply:
    """Return the reply in *response*. Raises the error that it stands for."""
    if response.code == Code.UNAUTHORIZED:
        raise AccessDenied(LOGIN_WANTED)
    if response.code != Code.OK:
        raise MetadataUnavailable(
            f"the bookie refused the call with code {response.code}", outcome_unknown=True
        )
    reply = decode_reply(response.body)
    if not isinstance(reply, calls.Failure):
        return reply
    error = error_of(reply)
    if type(error) is MetadataError:  # the bookie failed, not the store
        raise MetadataUnavailable(error.message, outcome_unknown=True) from error
    raise error


def unavailable(error: Exception, limit_s: float, *, is_sent: bool) -> MetadataUnavailable:
    """Return *error* of a call as MetadataUnavailable."""
    if isinstance(error, MetadataUnavailable):
        return error
    if isinstance(error, trio.TooSlowError):
        reason = f"no answer in {limit_s:.1f} s"
    else:
        reason = error.reason if isinstance(error, BookieUnavailable) else str(error)
    return MetadataUnavailable(reason, outcome_unknown=is_sent)


def _is_refusal(error: BaseException | None) -> bool:
    """Return True if nothing listens at any address of the host.

    A name that cannot be resolved may be that of a container which starts.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(_is_refusal(each) for each in error.exceptions)
    return isinstance(error, ConnectionRefusedError) or (
        error is not None and error.__cause__ is not None and _is_refusal(error.__cause__)
    )


def _reason(error: OSError) -> str:
    """Return the system's reason; trio's own message only repeats the address."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    if first.errno is None or first.errno < 0:  # below 0: the resolver's
        return first.strerror or str(first)
    return os.strerror(first.errno)


def _nothing() -> None:
    """Do nothing: no callback was set."""
