"""The driver for those without access to the store: every call goes through a bookie.

A call has a deadline, in which it is tried at one bookie after the other. What
may be tried again after it was sent and not answered:

- reads, also of the clock, next_id (ids may be lost), grant (an earlier grant to the same owner is
  over), renew without a value, and release: always, since twice is as good as once;
- put, delete, transact and renew with a value: never. The bookie may have done it, or
  may do it yet, and whether a key that looks changed was changed by this call cannot be
  told from its value. The caller gets MetadataUnavailable with outcome_unknown,
  knows what its value meant, and reads before it tries again.

A call that was not sent yet, or that a bookie refused without doing it, is tried again
whatever it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import trio

from metadata import calls, limits
from metadata.access import LOGIN_WANTED
from metadata.address import Address, format_cluster, parse_address
from metadata.calls import MetadataRequest, Reply, decode_reply, encode_request
from metadata.connection import Call, CallConnection, ConnectionLost
from metadata.dialer import Dialer, OpenStream, open_tcp
from metadata.errors import AccessDenied, BadAddress, BadRecord, CallFailed, MetadataUnavailable
from metadata.failures import error_of, expect
from metadata.records import BOOKIES, decode_bookie
from metadata.store import Changes, Delete, Lease, Leases, Op, Page, Put, Versioned, Versions
from metadata.watch import watching
from native.frame import Code
from native.link import Response

TIMEOUT_S = 10.0
ATTEMPT_S = 1.0
"""After this long, a call that may be made twice goes to another bookie; doubles each time."""
ATTEMPT_S_MIN = 0.1
"""With less time left, nothing is tried any more: it would only hide the reason."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
T = TypeVar("T")


class BookieStore:
    """A MetadataStore behind the bookies at *addresses*."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        timeout_s: float = TIMEOUT_S,
        open_stream: OpenStream = open_tcp,
    ) -> None:
        """Connect to nothing yet. *timeout_s* is each call's deadline."""
        self._name = format_cluster(addresses)
        self._timeout_s = timeout_s
        self._dialer = Dialer(addresses, open_stream)
        self._closed = False

    async def get(self, key: str) -> Versioned | None:
        """As MetadataStore.get."""
        limits.check_key(key)
        reply = await self._ask(calls.Get(key))
        if isinstance(reply, calls.Missing):
            return None
        found = expect(reply, calls.Found)
        return Versioned(found.value, found.version)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """As MetadataStore.put; it is not tried twice."""
        op = Put(key, value, expected)
        limits.check_ops([op])
        return _first(await self._ask(op, twice=False))

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """As MetadataStore.delete; it is not tried twice."""
        op = Delete(key, expected)
        limits.check_ops([op])
        expect(await self._ask(op, twice=False), calls.Done)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """As MetadataStore.transact; it is not tried twice."""
        limits.check_ops(ops)
        reply = await self._ask(calls.Transact([*ops]), twice=False)
        return expect(reply, calls.Done).numbers

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list."""
        limits.check_page(prefix, after, limit)
        reply = await self._ask(calls.ListKeys(prefix, after, limit))
        items = expect(reply, calls.KeyPage).items
        return [(item.key, Versioned(item.value, item.version)) for item in items]

    async def next_id(self, counter: str, count: int = 1) -> int:
        """As MetadataStore.next_id."""
        limits.check_ids(counter, count)
        return _first(await self._ask(calls.NextId(counter, count)))

    async def now_ms(self) -> int:
        """As MetadataStore.now_ms."""
        return expect(await self._ask(calls.ReadClock()), calls.StoreTime).now_ms

    async def grant(self, name: str, owner: str, *, ttl_s: float, value: bytes = b"") -> Lease:
        """As MetadataStore.grant."""
        limits.check_grant(name, owner, ttl_s, value)
        reply = await self._ask(calls.Grant(name, owner, ttl_s, value))
        return expect(reply, calls.Granted).lease

    async def renew(self, lease: Lease, *, value: bytes | None = None) -> Lease:
        """As MetadataStore.renew; with a value, it is not tried twice."""
        limits.check_lease(lease, value)
        reply = await self._ask(calls.Renew(lease, value), twice=value is None)
        return expect(reply, calls.Granted).lease

    async def release(self, lease: Lease) -> None:
        """As MetadataStore.release."""
        limits.check_lease(lease)
        expect(await self._ask(calls.Release(lease)), calls.Done)

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases."""
        limits.check_page(prefix, after)
        found = expect(await self._ask(calls.ListLeases(prefix, after)), calls.LeasePage).leases
        if prefix == BOOKIES and not after:
            self._dialer.learn(_addresses(found))
        return found

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """As MetadataStore.changes."""
        limits.check_changes(prefix, since, wait_s)
        request = calls.WatchSince(prefix, since, int(wait_s * 1000))
        return expect(await self._ask(request, wait_s=wait_s), Changes)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """As MetadataStore.watch."""
        return watching(self, prefix)

    async def aclose(self) -> None:
        """As MetadataStore.aclose."""
        self._closed = True
        await self._dialer.aclose()

    async def _ask(
        self, request: MetadataRequest, *, twice: bool = True, wait_s: float = 0.0
    ) -> Reply:
        """Return a reply to *request* that is not MetadataUnavailable.

        Args:
            request: what to ask.
            twice: whether it may be made again after it was sent.
            wait_s: how long the bookie is asked to wait, on top of the deadline.
        """
        body = encode_request(request)
        deadline = trio.current_time() + self._timeout_s + wait_s
        failures = 0
        while True:
            left_s = max(deadline - trio.current_time(), 0.0)
            attempt_s = ATTEMPT_S * 2.0 ** min(failures, 10) + wait_s
            try:
                return await self._attempt(
                    Call(body), min(left_s, attempt_s) if twice else left_s, wait_s
                )
            except MetadataUnavailable as error:
                failures += 1
                pause_s = self._pause_s(failures)
                late = trio.current_time() + pause_s + ATTEMPT_S_MIN > deadline
                if self._closed or late or (error.outcome_unknown and not twice):
                    raise MetadataUnavailable(
                        f"{self._name}: {error.message}",
                        outcome_unknown=error.outcome_unknown and not twice,
                    ) from error
            await trio.sleep(pause_s)

    def _pause_s(self, failures: int) -> float:
        """Return 0 within a round of all bookies; after each round more."""
        rounds, position = divmod(failures, self._dialer.count)
        if position != 0:
            return 0.0
        return min(PAUSE_S_MIN * 2.0**rounds, PAUSE_S_MAX) * random.uniform(0.5, 1.0)

    async def _attempt(self, call: Call, limit_s: float, wait_s: float) -> Reply:
        """Make *call* at one bookie. Raises MetadataUnavailable when it is of no use.

        A caller with less patience may cancel it; the next call goes elsewhere then.
        """
        if self._closed:
            raise MetadataUnavailable("the store is closed")
        connection: CallConnection | None = None
        slow_at = trio.current_time() + ATTEMPT_S / 2 + wait_s
        try:
            with trio.fail_after(limit_s):
                connection = await self._dialer.connection()
                return _reply(await connection.perform(call))
        except (OSError, ConnectionLost, trio.TooSlowError, MetadataUnavailable) as error:
            if connection is not None:
                await self._dialer.pass_over(connection)
            raise _unavailable(error, call, limit_s) from error
        except trio.Cancelled:
            if connection is not None and trio.current_time() >= slow_at:
                with trio.CancelScope(shield=True):
                    await self._dialer.pass_over(connection)
            raise


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
    if isinstance(error, CallFailed):  # the bookie's own trouble, not the store's
        raise MetadataUnavailable(error.message, outcome_unknown=True) from error
    raise error


def _unavailable(error: Exception, call: Call, limit_s: float) -> MetadataUnavailable:
    if isinstance(error, MetadataUnavailable):
        return error
    reason = f"no answer in {limit_s:.1f} s" if isinstance(error, trio.TooSlowError) else str(error)
    return MetadataUnavailable(reason, outcome_unknown=call.sent)


def _addresses(bookies: Leases) -> Iterator[Address]:
    """Yield where the registered bookies listen, as far as that can be understood."""
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
