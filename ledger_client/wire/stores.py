"""The ``bookie://`` driver of the metadata store: every call goes through a bookie.

So a client needs no access to the store itself. A call has a deadline, within which it is tried
at one bookie after the other. Which calls may be repeated after they were sent and not answered:

- reads, also of the clock, next_id (ids may be lost), all calls about sessions, grant (it ends an
  earlier grant to the same owner), update and release: always, because repeating them is harmless;
- put, delete and transact: never. The bookie may have done it, or may still do it, and the value
  of a key does not show whether this call changed it. The caller gets MetadataUnavailable with
  outcome_unknown, and reads before it tries again.

A call that was not sent yet, or that a bookie refused without doing it, may always be repeated.

Bookies that restart refuse connections for a moment, so a cluster that has answered before gets
the whole deadline. At one that never has, a refusal by every address means a wrong address, and the
call fails after REFUSED_S; unless the store waits for a cluster that is started together with it.

Of many calls at once, CALLS_MAX are under way and the others wait for their turn (inflight.py).
Their deadline counts from the turn, which they get as long as bookies answer. A call that waits at
a bookie which answers others is in a queue there, so it goes to another one later than otherwise.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import trio

from ledger_client.background import Background
from ledger_client.errors import BookieUnavailable
from ledger_client.wire.dialer import Dialer, answered, reply_in, unavailable, withdraw
from ledger_client.wire.hints import BookieHints
from ledger_client.wire.inflight import Call, Turns, fail_after, told
from ledger_client.wire.session import Session
from ledger_client.wire.strangers import NameStrangers, name_strangers
from ledger_client.wire.streams import OpenStream, opener
from metadata import calls, urls
from metadata.address import Address, format_cluster, parse_address
from metadata.calls import MetadataRequest, Reply, encode_request, expect
from metadata.cluster_url import SCHEMES, parse_cluster_url
from metadata.errors import BadAddress, BadRecord, MetadataUnavailable
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
    StoreSession,
    Versioned,
    Versions,
    check_changes,
    check_grant,
    check_ids,
    check_key,
    check_lease,
    check_opening,
    check_ops,
    check_page,
    check_prefix,
    check_session,
)
from metadata.watch import Watches
from native.link import Response

TIMEOUT_S = 10.0
timeout_of_calls_s: ContextVar[float] = ContextVar("timeout_of_calls_s", default=TIMEOUT_S)
"""The deadline of calls of stores that are opened without one; a command may shorten it."""
LOGGED_S = 2.0
"""A call that waits for longer is logged."""
ATTEMPT_S = 1.0
"""After this long, a call that may be repeated goes to another bookie; doubles each time."""
ATTEMPT_S_MIN = 0.1
"""With less time left, no attempt is begun: its timeout would hide the reason of the last one."""
REFUSED_S = 0.9
"""How long a call is tried while nothing listens at any address and no bookie has ever answered."""
CALLS_MAX = 256
"""Calls under way, without those that wait for news. As many changes share a transaction."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
T = TypeVar("T")
_log = logging.getLogger(__name__)


def open_store(url: str) -> AbstractAsyncContextManager[MetadataStore]:
    """Open the store that *url* names, a cluster's or a SQLite file, as metadata.urls does."""
    drivers = dict.fromkeys(SCHEMES, open_bookie_store)
    return urls.open_store(url, drivers=drivers, timeout_s=timeout_of_calls_s.get())


def open_bookie_store(
    url: str, *, timeout_s: float | None = None
) -> AbstractAsyncContextManager[BookieStore]:
    """Open the store behind the bookies that *url* names.

    Args:
        url: of a cluster.
        timeout_s: the deadline of each call, by default timeout_of_calls_s.

    Raises:
        BadAddress: *url* has another form, or names files that cannot be used.
    """
    addresses, access = parse_cluster_url(url)
    return BookieStore.open(
        addresses,
        open_stream=opener(access),
        timeout_s=timeout_of_calls_s.get() if timeout_s is None else timeout_s,
        name_strangers=partial(name_strangers, tls=access.tls),
    )


class BookieStore:
    """A MetadataStore behind the bookies at *addresses*."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        nursery: trio.Nursery,
        open_stream: OpenStream = trio.open_tcp_stream,
        timeout_s: float = TIMEOUT_S,
        name_strangers: NameStrangers | None = None,
    ) -> None:
        """Connect to nothing yet. *timeout_s* is each call's deadline.

        *name_strangers* describes what listens at addresses where no bookie answers.

        Connections are tasks of *nursery*. They outlive its cancellation until aclose(), because
        the clean-up after a cancellation may still release leases and delete keys: see open().
        """
        self._name = format_cluster(addresses)
        self._timeout_s = timeout_s
        self._turns = Turns(CALLS_MAX, timeout_s)
        self._dialer = Dialer(addresses, nursery, open_stream, name_strangers)
        self.watches = Watches(BookieHints(self._dialer, self._name, timeout_s))
        self._dialer.on_passed = self.watches.interrupt
        self._closed = False
        self._is_wait_logged = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        addresses: Sequence[Address],
        *,
        open_stream: OpenStream = trio.open_tcp_stream,
        timeout_s: float = TIMEOUT_S,
        name_strangers: NameStrangers | None = None,
    ) -> AsyncGenerator[BookieStore]:
        """Open a store for the length of the block."""
        async with Background() as nursery:
            store = cls(
                addresses,
                nursery=nursery,
                open_stream=open_stream,
                timeout_s=timeout_s,
                name_strangers=name_strangers,
            )
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

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        """As MetadataStore.open_session; a repeated call may leave one that nobody keeps."""
        check_opening(owner, ttl_s)
        reply = await self._ask(calls.OpenSession(owner, ttl_s))
        return expect(reply, calls.SessionOpened).session

    async def keep_session(self, session: StoreSession) -> None:
        """As MetadataStore.keep_session; repeated at other bookies until the deadline."""
        check_session(session)
        expect(await self._ask(calls.KeepSession(session), at_once=True), calls.Done)

    async def end_session(self, session: StoreSession) -> None:
        """As MetadataStore.end_session; repeated at other bookies until the deadline."""
        check_session(session)
        expect(await self._ask(calls.EndSession(session), at_once=True), calls.Done)

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        """As MetadataStore.grant; repeating it ends the lease of the first attempt."""
        check_grant(name, session, owner, value)
        reply = await self._ask(calls.Grant(name, session, owner, value))
        return expect(reply, calls.Granted).lease

    async def update(self, lease: Lease, value: bytes) -> Lease:
        """As MetadataStore.update; repeated at other bookies until the deadline."""
        check_lease(lease, value)
        return expect(await self._ask(calls.Update(lease, value)), calls.Granted).lease

    async def release(self, lease: Lease) -> None:
        """As MetadataStore.release; repeated at other bookies until the deadline."""
        check_lease(lease)
        expect(await self._ask(calls.Release(lease), at_once=True), calls.Done)

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases; of bookies, their addresses join the round."""
        check_page(prefix, after)
        found = expect(await self._ask(calls.ListLeases(prefix, after)), calls.LeasePage).leases
        if prefix == BOOKIES and not after:
            self._dialer.learn(_addresses(found))
        return found

    @property
    def is_cut_off(self) -> bool:
        """As MetadataStore.is_cut_off: what the bookie says that was asked for hints last."""
        return self.watches.is_cut_off

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """As MetadataStore.changes; *wait_s* is added to the deadline."""
        check_changes(prefix, since, wait_s)
        request = calls.WatchSince(prefix, since, int(wait_s * 1000))
        return expect(await self._ask(request, wait_s=wait_s), Changes)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """As MetadataStore.watch; all watches share one long call (wire/hints.py)."""
        check_prefix(prefix)
        return self.watches.watch(prefix)

    async def aclose(self) -> None:
        """Close all connections; calls under way and later ones fail."""
        self._closed = True
        self._dialer.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _ask(
        self,
        request: MetadataRequest,
        *,
        twice: bool = True,
        wait_s: float = 0.0,
        at_once: bool = False,
    ) -> Reply:
        """Return a reply to *request* that is not MetadataUnavailable.

        Args:
            request: the message of the CALL.
            twice: it may be repeated after it was sent.
            wait_s: how long the request lets the bookie wait, on top of the deadline.
            at_once: it waits for no turn, as leases depend on it.

        Raises:
            MetadataUnavailable: no bookie answered in time.
            BadAddress: no bookie ever answered, as other servers listen at the addresses.
        """
        body = encode_request(request)
        if at_once or wait_s:
            return await self._ask_now(body, twice=twice, wait_s=wait_s)
        async with self._turns.take(self._name):
            return await self._ask_now(body, twice=twice, wait_s=0.0)

    async def _ask_now(self, body: bytes, *, twice: bool, wait_s: float) -> Reply:
        began_at = trio.current_time()
        deadline = began_at + self._timeout_s + wait_s
        failures, why = 0, ""
        while True:
            attempted_at = trio.current_time()
            left_s = max(deadline - attempted_at, 0.0)
            attempt_s = ATTEMPT_S * 2.0 ** min(failures, 10) + wait_s
            try:
                limit_s = min(left_s, attempt_s) if twice else left_s
                reply = await self._attempt(body, limit_s, wait_s)
            except MetadataUnavailable as error:
                failures += 1
                if isinstance(error.__cause__, MetadataUnavailable):
                    why = error.message
                    if (reasons := told.get()) is not None:
                        reasons.append(why)
                if failures >= self._dialer.count and not self._closed:
                    await self._dialer.check_peers()
                if not wait_s:  # else the wait was asked for
                    self._note_wait(began_at, error.message)
                pause_s = self._pause_s(failures)
                until = min(deadline, began_at + REFUSED_S) if self._is_wrong else deadline
                now = trio.current_time()
                # A change that is cut off before the same answer as now would be in doubt.
                need_s = ATTEMPT_S_MIN if twice else max(ATTEMPT_S_MIN, now - attempted_at)
                late = now + pause_s + need_s > until
                if self._closed or late or (error.outcome_unknown and not twice):
                    before = f"; a bookie said: {why}" if why not in ("", error.message) else ""
                    raise MetadataUnavailable(
                        f"metadata: {self._name}: {error.message}{before}",
                        outcome_unknown=error.outcome_unknown and not twice,
                    ) from error
            else:
                self._is_wait_logged = False
                if (reasons := told.get()) is not None:
                    reasons.clear()
                return reply
            await trio.sleep(pause_s)

    @property
    def _is_wrong(self) -> bool:
        """True if the addresses seem to be no bookies': nothing listens there, or ever answered."""
        is_known = self._turns.answered_at > -math.inf
        return not is_known and self._dialer.is_refused

    def _pause_s(self, failures: int) -> float:
        """Return 0 within a round of all bookies; after each round more."""
        rounds, position = divmod(failures, self._dialer.count)
        if position != 0:
            return 0.0
        return min(PAUSE_S_MIN * 2.0**rounds, PAUSE_S_MAX) * random.uniform(0.5, 1.0)

    def _note_wait(self, since: float, reason: str) -> None:
        """Log, once until a call succeeds, that a call has waited for LOGGED_S."""
        if not self._is_wait_logged and trio.current_time() - since >= LOGGED_S:
            self._is_wait_logged = True
            _log.warning(
                "waiting for the cluster at %s: %s; check that its bookies and their metadata "
                "store run, and that this host reaches the bookies",
                self._name,
                reason,
            )

    async def _attempt(self, body: bytes, limit_s: float, wait_s: float) -> Reply:
        """Make one call at one bookie. Raises MetadataUnavailable if another may do better.

        A caller with less patience may cancel it; then the next call goes to another bookie.
        """
        if self._closed:
            raise MetadataUnavailable("the store is closed")
        session: Session | None = None
        call: Call | None = None
        began_at = trio.current_time()
        try:
            session = self._dialer.at_hand
            if session is None:
                with fail_after(limit_s):
                    session = await self._dialer.session()
            call = session.call(body, self._name)
            response = await self._response(call, session, limit_s, wait_s)
            self._turns.note_answer()
            return reply_in(response)
        except (OSError, BookieUnavailable, trio.TooSlowError, MetadataUnavailable) as error:
            is_sent = withdraw(session, call)
            self._dialer.pass_over(session)
            raise unavailable(error, limit_s, is_sent=is_sent) from error
        except trio.Cancelled:
            quiet_s = trio.current_time() - max(began_at, self._turns.answered_at)
            if quiet_s >= ATTEMPT_S / 2 + wait_s:
                self._dialer.pass_over(session)
            raise
        finally:
            withdraw(session, call)

    async def _response(
        self, call: Call, session: Session, limit_s: float, wait_s: float
    ) -> Response:
        """Return the response to *call*.

        A bookie that answers others works: the call is in a queue, perhaps behind this client's
        own. To repeat it elsewhere would only make the queue longer. So *limit_s* counts from the
        last answer, up to half of the deadline. Raises trio.TooSlowError, BookieUnavailable.
        """
        began_at = trio.current_time()
        last_at = began_at + max(limit_s, self._timeout_s / 2)
        left_s = limit_s

        def note_silence() -> None:
            if self._turns.answered_at < began_at:  # else the call is in a queue
                self._note_wait(began_at, "no answer")

        while True:
            try:
                return await answered(
                    call, session, left_s, patient=wait_s > 0, on_silence=note_silence
                )
            except trio.TooSlowError:
                now = trio.current_time()
                left_s = min(self._turns.answered_at + limit_s, last_at) - now
                if left_s <= 0 or wait_s > 0 or not self._dialer.is_current(session):
                    raise


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
