"""The ``bookie://`` driver of the metadata store: every call goes through a bookie.

So a client needs no access to the store itself. A call has a deadline, within which it is tried
at one bookie after the other. Which calls may be repeated after they were sent and not answered:

- reads, also of the clock, next_id (ids may be lost), grant (it ends an earlier grant to the
  same owner), renew without a value, and release: always, because repeating them is harmless;
- put, delete, transact and renew with a value: never. The bookie may have done it, or may still
  do it, and the value of a key does not show whether this call changed it. The caller gets
  MetadataUnavailable with outcome_unknown, and reads before it tries again.

A call that was not sent yet, or that a bookie refused without doing it, may always be repeated.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

from ledger_client.background import Background
from ledger_client.errors import BookieUnavailable
from ledger_client.options import DEFAULT_OPTIONS
from ledger_client.wire.inflight import Call
from ledger_client.wire.session import Session
from ledger_client.wire.streams import OpenStream, opener
from metadata import calls, urls
from metadata.access import LOGIN_WANTED
from metadata.address import Address, format_cluster, parse_address
from metadata.calls import MetadataRequest, Reply, decode_reply, encode_request, expect
from metadata.cluster_url import SCHEMES, parse_cluster_url
from metadata.errors import AccessDenied, BadAddress, BadRecord, MetadataError, MetadataUnavailable
from metadata.failures import error_of
from metadata.records import BOOKIES, decode_bookie
from metadata.store import (
    Changes,
    Delete,
    Lease,
    Leases,
    MetadataStore,
    Op,
    Page,
    Put,
    Versioned,
    Versions,
    check_changes,
    check_grant,
    check_ids,
    check_key,
    check_lease,
    check_ops,
    check_page,
)
from metadata.watch import watching
from native.frame import Code
from native.link import Response

TIMEOUT_S = 10.0
ATTEMPT_S = 1.0
"""After this long, a call that may be repeated goes to another bookie; doubles each time."""
ATTEMPT_S_MIN = 0.1
"""With less time left, no attempt is begun: its timeout would hide the reason of the last one."""
CONNECT_S = 1.0
"""Time limit for connecting to one address; then the next one is tried."""
IDLE_S = 1.0
PROBE_S = 0.001
"""After IDLE_S without a byte, a connection gets this long to turn out closed before it is used."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
T = TypeVar("T")


def open_store(url: str) -> AbstractAsyncContextManager[MetadataStore]:
    """Open the store that *url* names, a cluster's or a SQLite file, as metadata.urls does."""
    return urls.open_store(url, drivers=dict.fromkeys(SCHEMES, open_bookie_store))


def open_bookie_store(
    url: str, *, timeout_s: float = TIMEOUT_S
) -> AbstractAsyncContextManager[BookieStore]:
    """Open the store behind the bookies that *url* names.

    Raises:
        BadAddress: *url* has another form, or names files that cannot be used.
    """
    addresses, access = parse_cluster_url(url)
    return BookieStore.open(addresses, open_stream=opener(access), timeout_s=timeout_s)


class BookieStore:
    """A MetadataStore behind the bookies at *addresses*."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        nursery: trio.Nursery,
        open_stream: OpenStream = trio.open_tcp_stream,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Connect to nothing yet. *timeout_s* is each call's deadline.

        Connections are tasks of *nursery*. They outlive its cancellation until aclose(), because
        the clean-up after a cancellation may still release leases and delete keys: see open().
        """
        self._name = format_cluster(addresses)
        self._timeout_s = timeout_s
        self._dialer = _Dialer(addresses, nursery, open_stream)
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        addresses: Sequence[Address],
        *,
        open_stream: OpenStream = trio.open_tcp_stream,
        timeout_s: float = TIMEOUT_S,
    ) -> AsyncGenerator[BookieStore]:
        """Open a store for the length of the block."""
        async with Background() as nursery:
            store = cls(addresses, nursery=nursery, open_stream=open_stream, timeout_s=timeout_s)
            try:
                yield store
            finally:
                await store.aclose()

    async def get(self, key: str) -> Versioned | None:
        """As MetadataStore.get; repeated at other bookies until the deadline."""
        check_key(key)
        reply = await self._ask(calls.Get(key))
        if isinstance(reply, calls.Missing):
            return None
        found = expect(reply, calls.Found)
        return Versioned(found.value, found.version)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """As MetadataStore.put; it is not repeated."""
        op = Put(key, value, expected)
        check_ops([op])
        return _first(await self._ask(op, twice=False))

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """As MetadataStore.delete; it is not repeated."""
        op = Delete(key, expected)
        check_ops([op])
        expect(await self._ask(op, twice=False), calls.Done)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """As MetadataStore.transact; it is not repeated."""
        check_ops(ops)
        reply = await self._ask(calls.Transact([*ops]), twice=False)
        return expect(reply, calls.Done).numbers

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list; repeated at other bookies until the deadline."""
        check_page(prefix, after, limit)
        reply = await self._ask(calls.ListKeys(prefix, after, limit))
        items = expect(reply, calls.KeyPage).items
        return [(item.key, Versioned(item.value, item.version)) for item in items]

    async def next_id(self, counter: str, count: int = 1) -> int:
        """As MetadataStore.next_id; a repeated call may lose ids."""
        check_ids(counter, count)
        return _first(await self._ask(calls.NextId(counter, count)))

    async def now_ms(self) -> int:
        """As MetadataStore.now_ms; repeated at other bookies until the deadline."""
        return expect(await self._ask(calls.ReadClock()), calls.StoreTime).now_ms

    async def grant(self, name: str, owner: str, *, ttl_s: float, value: bytes = b"") -> Lease:
        """As MetadataStore.grant; repeating it ends the lease of the first attempt."""
        check_grant(name, owner, ttl_s, value)
        reply = await self._ask(calls.Grant(name, owner, ttl_s, value))
        return expect(reply, calls.Granted).lease

    async def renew(self, lease: Lease, *, value: bytes | None = None) -> Lease:
        """As MetadataStore.renew; with a value, it is not repeated."""
        check_lease(lease, value)
        reply = await self._ask(calls.Renew(lease, value), twice=value is None)
        return expect(reply, calls.Granted).lease

    async def release(self, lease: Lease) -> None:
        """As MetadataStore.release; repeated at other bookies until the deadline."""
        check_lease(lease)
        expect(await self._ask(calls.Release(lease)), calls.Done)

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases; of bookies, their addresses join the round."""
        check_page(prefix, after)
        found = expect(await self._ask(calls.ListLeases(prefix, after)), calls.LeasePage).leases
        if prefix == BOOKIES and not after:
            self._dialer.learn(_addresses(found))
        return found

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """As MetadataStore.changes; *wait_s* is added to the deadline."""
        check_changes(prefix, since, wait_s)
        request = calls.WatchSince(prefix, since, int(wait_s * 1000))
        return expect(await self._ask(request, wait_s=wait_s), Changes)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """As MetadataStore.watch, by repeated calls of changes()."""
        return watching(self, prefix)

    async def aclose(self) -> None:
        """Close all connections; calls under way and later ones fail."""
        self._closed = True
        self._dialer.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _ask(
        self, request: MetadataRequest, *, twice: bool = True, wait_s: float = 0.0
    ) -> Reply:
        """Return a reply to *request* that is not MetadataUnavailable.

        Args:
            request: the message of the CALL.
            twice: it may be repeated after it was sent.
            wait_s: how long the request lets the bookie wait, on top of the deadline.
        """
        body = encode_request(request)
        deadline = trio.current_time() + self._timeout_s + wait_s
        failures = 0
        while True:
            left_s = max(deadline - trio.current_time(), 0.0)
            attempt_s = ATTEMPT_S * 2.0 ** min(failures, 10) + wait_s
            try:
                return await self._attempt(
                    body, min(left_s, attempt_s) if twice else left_s, wait_s
                )
            except MetadataUnavailable as error:
                failures += 1
                pause_s = self._pause_s(failures)
                late = trio.current_time() + pause_s + ATTEMPT_S_MIN > deadline
                if self._closed or late or (error.outcome_unknown and not twice):
                    raise MetadataUnavailable(
                        f"metadata: {self._name}: {error.message}",
                        outcome_unknown=error.outcome_unknown and not twice,
                    ) from error
            await trio.sleep(pause_s)

    def _pause_s(self, failures: int) -> float:
        """Return 0 within a round of all bookies; after each round more."""
        rounds, position = divmod(failures, self._dialer.count)
        if position != 0:
            return 0.0
        return min(PAUSE_S_MIN * 2.0**rounds, PAUSE_S_MAX) * random.uniform(0.5, 1.0)

    async def _attempt(self, body: bytes, limit_s: float, wait_s: float) -> Reply:
        """Make one call at one bookie. Raises MetadataUnavailable if another may do better.

        A caller with less patience may cancel it; then the next call goes to another bookie.
        """
        if self._closed:
            raise MetadataUnavailable("the store is closed")
        session: Session | None = None
        call: Call | None = None
        slow_at = trio.current_time() + ATTEMPT_S / 2 + wait_s
        try:
            with trio.fail_after(limit_s):
                session = await self._dialer.session()
                call = session.call(body, self._name)
                return _reply(await call.wait())
        except (OSError, BookieUnavailable, trio.TooSlowError, MetadataUnavailable) as error:
            is_sent = _withdraw(session, call)
            self._dialer.pass_over(session)
            raise _unavailable(error, limit_s, is_sent=is_sent) from error
        except trio.Cancelled:
            if trio.current_time() >= slow_at:
                self._dialer.pass_over(session)
            raise
        finally:
            _withdraw(session, call)


class _Dialer:
    """Keeps one connection to one of several bookies, and goes round them as they fail.

    The round is of the addresses in the URL and of those learnt since, so that a client that was
    given one bookie's address outlives that bookie.
    """

    def __init__(
        self, addresses: Sequence[Address], nursery: trio.Nursery, open_stream: OpenStream
    ) -> None:
        self._from_url = random.sample(addresses, len(addresses))
        self._addresses = [*self._from_url]
        self._nursery = nursery
        self._open_stream = open_stream
        self._next = 0
        self._current: Session | None = None
        self._open: set[Session] = set()
        self._connecting = trio.Lock()
        self._closed = False

    @property
    def count(self) -> int:
        """Number of addresses in a round."""
        return len(self._addresses)

    def learn(self, addresses: Iterable[Address]) -> None:
        """Add these addresses to the round, in place of those learnt before."""
        learnt = {address for address in addresses if address not in self._from_url}
        self._addresses = [*self._from_url, *sorted(learnt)]

    async def session(self) -> Session:
        """Return the connection in use, or one to the next address.

        Raises:
            OSError: that address cannot be reached; the next call tries another.
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

    def pass_over(self, session: Session | None) -> None:
        """Make no new calls over *session*, and go on with the next address."""
        if session is not None:
            if session is self._current:
                self._current = None
            session.retire()

    def close(self) -> None:
        """Close all connections, also one that is being opened. Calls under way fail."""
        self._closed = True
        for session in self._open:
            session.scope.cancel()

    async def _connect(self) -> Session:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1  # also when this attempt is cancelled: a slow host is not asked again
        try:
            with trio.fail_after(CONNECT_S):
                stream = await self._open_stream(address.host, address.port)
        except trio.TooSlowError as error:
            raise TimeoutError(f"{address} cannot be reached in {CONNECT_S} s") from error
        except OSError as error:
            raise ConnectionError(f"{address} cannot be reached: {_reason(error)}") from error
        if self._closed:  # it would outlive its nursery's cancellation for ever
            await trio.aclose_forcefully(stream)
            raise ConnectionError("the store is closed")
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


def _withdraw(session: Session | None, call: Call | None) -> bool:
    """Stop waiting for *call*; return True if the bookie may have received it."""
    return session is not None and call is not None and not session.withdraw(call)


def _reply(response: Response) -> Reply:
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


def _unavailable(error: Exception, limit_s: float, *, is_sent: bool) -> MetadataUnavailable:
    if isinstance(error, MetadataUnavailable):
        return error
    if isinstance(error, trio.TooSlowError):
        reason = f"no answer in {limit_s:.1f} s"
    else:
        reason = error.reason if isinstance(error, BookieUnavailable) else str(error)
    return MetadataUnavailable(reason, outcome_unknown=is_sent)


def _reason(error: OSError) -> str:
    """Return the system's reason; trio's own message only repeats the address."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    if first.errno is None or first.errno < 0:  # below 0: the resolver's
        return first.strerror or str(first)
    return os.strerror(first.errno)


def _addresses(bookies: Leases) -> Iterator[Address]:
    """Yield the addresses of registered bookies; skip records that cannot be decoded."""
    for lease in bookies:
        try:
            yield parse_address(decode_bookie(lease.name, lease.value).address)
        except (BadAddress, BadRecord):
            continue


def _first(reply: Reply) -> int:
    numbers = expect(reply, calls.Done).numbers
    if len(numbers) != 1:
        raise BadRecord(f"the bookie answered {len(numbers)} numbers, not 1")
    return numbers[0]
