"""The interface of metadata drivers, its rules and its limits.

KEYS AND VERSIONS. A store maps keys to values. A value has a version, an integer of 1 or more
that is greater after every change of the key. Versions may skip, so they are compared and never
counted. ABSENT (0) means "no such key". A change that expects a version is made only if the key
has that version (compare-and-set). Every change is durable when the call returns. Keys are
ordered by code point. Nothing is cached: a read that starts after a change returned sees that
change, in every process.

SESSIONS. A process opens one session and keeps it with one small call, at least once in its time
to live. A session is over when that time passed without such a call, or when it was ended. Then
all of its leases are over, at the same moment. A session that is over cannot be kept again.

LEASES. A lease is a name that belongs to a session. Each grant has an epoch, greater than
every earlier epoch of that name. A lease is over when its session is over, when it was released,
or when the same owner was granted it again; from then on its epoch cannot pass a CheckLease.
A holder counts its session's time from before its request, and may still act too
late after a pause. So a change that must not happen twice is made in one transaction with
CheckLease: that makes it safe, and the time only makes it quick. Leases and keys are separate:
both may use the same name.

TIME. A store has one clock for all hosts. Decisions about data (old enough to be removed, idle for
too long) compare the store's time with the store's time, never with a host's. It is close to
Unix time and never goes back: not when a wall clock is set, not when the store restarts, and not
between processes that ask one after the other. Leases do not depend on it.

WATCHES are hints. A watch yields keys (and names of leases) that may have changed since it began.
A hint may be late, merged with another, or repeated; a hint equal to the watched prefix means
that anything under it may have changed. After a failure of the store the watch continues by
itself with such a hint. So start watching, then read, and read again at each hint; and read again
from time to time, because no correctness may depend on a watch.

LIMITS. Every driver checks sizes, counts and times before it does anything (check_key() and so on),
so all drivers refuse the same requests, and a reply always fits a frame. Transactions are small:
256 ops, 512 KiB of values. ZooKeeper, for one, ends a connection at a message of 1 MiB. What is
larger is put in steps that count for nothing, and counts by one more change: a value by its row
(metadata/paged.py), rows by a pointer (metadata/pointers.py).

FAILURES. See metadata/errors.py. When a call raises, nothing was changed, with two exceptions:
after MetadataUnavailable with outcome_unknown, and after a cancelled call, the change may have
been made, or may be made later.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import trio

from metadata.errors import MetadataBroken, MetadataError
from metadata.watch import Changes as Changes, Watches

T = TypeVar("T")
send_within_s: ContextVar[float] = ContextVar("send_within_s", default=math.inf)
"""How long a call may wait for a connection before its change is sent.

A bookie sets it for the calls of clients, who can ask another bookie.
"""
ABSENT = 0
"""The version of a key that does not exist."""
KEY_SIZE_MAX = 512
VALUE_SIZE_MAX = 480 << 10  # larger values: metadata/paged.py
PAGE_COUNT_MAX = 1000
PAGE_SIZE_MAX = 2 << 20  # bytes of values in one page, unless it holds one item only
OPS_MAX = 256
OPS_SIZE_MAX = 512 << 10  # bytes of values in one transaction
IDS_MAX = 1_000_000
LEASE_VALUE_SIZE_MAX = 4096
TTL_S_MIN = 0.05
TTL_S_MAX = 86_400.0
WAIT_S_MAX = 60.0
INTEGER_MAX = (1 << 63) - 1


class Versioned(NamedTuple):
    """A value with the version that the next change of it should expect."""

    value: bytes
    version: int


class StoreSession(msgspec.Struct, frozen=True, tag=True):
    """What leases belong to. *epoch* is of this session alone; *ttl_s* is its time to live."""

    owner: str
    epoch: int
    ttl_s: float


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A grant, which belongs to *session* (its epoch).

    *expires_in_s* counts from the moment the store answered, unless the session is kept; a
    driver that does not know it says how long at most.
    """

    name: str
    owner: str
    epoch: int
    value: bytes
    expires_in_s: float
    session: int = 0


class Put(msgspec.Struct, frozen=True, tag=True):
    """Set *key*. *expected* is a version, None for any, or ABSENT if it must not exist."""

    key: str
    value: bytes
    expected: int | None = None


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Remove *key*; without *expected* it need not exist."""

    key: str
    expected: int | None = None


class Check(msgspec.Struct, frozen=True, tag=True):
    """Fail unless *key* has the version *expected* (ABSENT: does not exist)."""

    key: str
    expected: int


class CheckLease(msgspec.Struct, frozen=True, tag=True):
    """Fail unless the lease *name* is live and has *epoch*."""

    name: str
    owner: str
    epoch: int

    @classmethod
    def of(cls, lease: Lease) -> CheckLease:
        """Return the check for a lease that was granted to the caller."""
        return cls(lease.name, lease.owner, lease.epoch)


Op = Put | Delete | Check | CheckLease
Item = tuple[str, Versioned]
Page = list[Item]
Versions = list[int]
Leases = list[Lease]


class MetadataStore(Protocol):
    """Compare-and-set, transactions, listing, ids, sessions, leases and watches.

    A driver has one Watches, which watch() uses; PollSource makes it of changes().

    Every call may raise MetadataUnavailable, MetadataBroken and MetadataBroken (beyond one of the
    limits); other errors are listed at each call. Many tasks may call at once. A change costs one
    durable transaction (milliseconds); a read costs less. No call blocks the event loop.
    """

    @property
    def watches(self) -> Watches:
        """All watches of this store; subscribe() there watches a prefix without a task."""

    async def get(self, key: str) -> Versioned | None:
        """Return the value of *key* and its version, or None if it does not exist."""

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Set *key* and return its new version.

        Args:
            key: 1 to 512 bytes of printable text.
            value: at most 480 KiB.
            expected: the version that the key must have, ABSENT if it must not exist, or None
                to replace any version.

        Raises:
            VersionConflict: the key has another version.
        """

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove *key*. Without *expected* it need not exist.

        Raises:
            VersionConflict: it has another version than *expected*.
        """

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """Do all of *ops* in order, or none.

        Each op sees the changes of those before it. At most 256 ops, with at most 512 KiB of
        values in all.

        Returns:
            For each op a number: the new version for Put, ABSENT for Delete, the
            version found for Check, the epoch for CheckLease.

        Raises:
            VersionConflict: for the first op whose key has another version.
            LeaseLost: a CheckLease failed.
        """

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """Return keys that start with *prefix* and are greater than *after*, in order.

        A page may hold fewer than *limit* keys (1 to 1000), because it ends before its values
        exceed 2 MiB. is_last() tells whether keys follow. Each page is consistent in itself; keys
        may change between two pages.
        """

    async def next_id(self, counter: str, count: int = 1) -> int:
        """Return the first of *count* (1 to 1 000 000) fresh ids of *counter*.

        Ids start at 1, rise, and are never issued twice; some may be lost. Counters are separate
        from keys and leases.
        """

    async def now_ms(self) -> int:
        """Return the store's time in Unix milliseconds. It never goes back.

        metadata/clock.py estimates it without a call each time.
        """

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        """Open a session that lives *ttl_s* seconds (0.05 to 86 400) unless it is kept.

        *owner* says whose it is; sessions of the same owner do not disturb each other.
        """

    async def keep_session(self, session: StoreSession) -> None:
        """Let *session* live for its full time, counted from now.

        Raises:
            SessionOver: it is over, and so are its leases.
        """

    async def end_session(self, session: StoreSession) -> None:
        """End *session* and all of its leases now, if it is not over already."""

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        """Take the lease *name* for as long as *session* lives, with a new epoch.

        Args:
            name: as a key.
            session: what the lease belongs to.
            owner: who may take the live lease again, which ends its former epoch. So it
                must identify this run of a process, not a role. Default: the session's.
            value: at most 4096 bytes, part of listings.

        Raises:
            LeaseHeld: another owner has it.
            SessionOver: *session* is over.
        """

    async def update(self, lease: Lease, value: bytes) -> Lease:
        """Set the value of *lease*, which watches report.

        Raises:
            LeaseLost: it is over; only a new grant can bring it back.
        """

    async def release(self, lease: Lease) -> None:
        """End *lease* now, if it is not over already."""

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """Return up to 1000 live leases under *prefix* with names above *after*, in order.

        Fewer than PAGE_COUNT_MAX mean that there are no more.
        """

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be changes of which changes() cannot know at present.

        It is noticed within seconds, and by no call of its own.
        """

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """Wait up to *wait_s* (at most 60) for changes under *prefix* after revision *since*.

        Without *since* it returns at once, with the revision to start from. If nothing changed
        in time, keys is empty and everything False. With many keys, the revision may be that of
        the last one returned; ask again for the rest.
        """

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch keys and leases under *prefix* for the length of the context.

        One of the receiving tasks does the work for all; nothing runs in the background. An
        expired lease is reported as a change, up to a second late.

        Raises:
            MetadataUnavailable: on entering; later the watch retries by itself.
        """

    async def aclose(self) -> None:
        """Close files and connections. Later calls raise MetadataUnavailable."""


def is_last(page: Page, limit: int = PAGE_COUNT_MAX) -> bool:
    """Return True if no keys follow a page that was asked for with *limit*."""
    size = sum(len(found.value) for _, found in page)
    return len(page) < limit and size + VALUE_SIZE_MAX <= PAGE_SIZE_MAX


async def pages(store: MetadataStore, prefix: str) -> AsyncIterator[Page]:
    """Yield every page under *prefix* that is not empty, one in memory at a time."""
    page = await store.list(prefix)
    while page:
        yield page
        page = [] if is_last(page) else await store.list(prefix, after=page[-1][0])


async def items_under(store: MetadataStore, prefix: str) -> list[Item]:
    """Return all keys with *prefix*, in order, with their values. Raises MetadataError."""
    return [item async for page in pages(store, prefix) for item in page]


async def leases_under(store: MetadataStore, prefix: str) -> Leases:
    """Return all live leases under *prefix*, in order of their names. Raises MetadataError."""
    page = await store.leases(prefix)
    found = list(page)
    while len(page) == PAGE_COUNT_MAX:
        page = await store.leases(prefix, after=page[-1].name)
        found += page
    return found


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of reads that wait together, which a store answers faster.

    The caller bounds their number. Raises the first MetadataError, once all have ended.
    """
    results: dict[int, T] = {}
    failures: list[MetadataError] = []

    async def make(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[number] = await call()
        except MetadataError as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(make, number, call)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(calls))]


# --- limits ------------------------------------------------------------------------------


def check_key(key: str, what: str = "key") -> None:
    """Raise MetadataBroken unless *key* has 1 to 512 bytes, all printable."""
    if not key:
        raise MetadataBroken(f"the {what} is empty")
    check_prefix(key, what)


def check_prefix(prefix: str, what: str = "prefix") -> None:
    """Raise MetadataBroken unless *prefix* has at most 512 bytes, all printable."""
    if not prefix.isprintable():
        raise MetadataBroken(f"the {what} {prefix[:40]!a} has characters that cannot be printed")
    size = len(prefix.encode())
    if size > KEY_SIZE_MAX:
        raise MetadataBroken(f"the {what} has {size} bytes; at most {KEY_SIZE_MAX} are allowed")


def check_size(size: int, size_max: int, what: str) -> None:
    """Raise MetadataBroken when *size* bytes are more than *size_max*."""
    if size > size_max:
        raise MetadataBroken(f"{what} has {size} bytes; at most {size_max} are allowed")


def check_value(key: str, value: bytes) -> None:
    """Raise MetadataBroken for a value that no store takes."""
    check_size(len(value), VALUE_SIZE_MAX, f"the value of {key}")


def check_range(number: float, lowest: float, highest: float, what: str) -> None:
    """Raise MetadataBroken unless *number* lies between the two, both included."""
    if not lowest <= number <= highest:
        raise MetadataBroken(f"{what} is {number}; allowed are {lowest} to {highest}")


def check_expected(expected: int | None) -> None:
    """Raise MetadataBroken unless *expected* is None or can be a version."""
    if expected is not None:
        check_range(expected, 0, INTEGER_MAX, "the expected version")


def check_ops(ops: Sequence[Op]) -> None:
    """Raise MetadataBroken if a transaction has too many ops, too large values or a bad key."""
    check_range(len(ops), 0, OPS_MAX, "the number of ops")
    size = 0
    for op in ops:
        if isinstance(op, CheckLease):
            check_lease(op)
            continue
        check_key(op.key)
        check_expected(op.expected)
        if isinstance(op, Put):
            check_value(op.key, op.value)
            size += len(op.value)
    check_size(size, OPS_SIZE_MAX, "the transaction")


def fits(ops: Sequence[Op]) -> bool:
    """Return whether one transaction can have *ops*."""
    size = sum(len(op.value) for op in ops if isinstance(op, Put))
    return len(ops) <= OPS_MAX and size <= OPS_SIZE_MAX


def check_page(prefix: str, after: str, limit: int = PAGE_COUNT_MAX) -> None:
    """Check the arguments of a listing of keys or leases. Raises MetadataBroken."""
    check_prefix(prefix)
    check_prefix(after, "key to go on after")
    check_range(limit, 1, PAGE_COUNT_MAX, "the limit")


def check_ids(counter: str, count: int) -> None:
    """Check a request for fresh ids. Raises MetadataBroken."""
    check_key(counter, "counter")
    check_range(count, 1, IDS_MAX, "the count of ids")


def check_opening(owner: str, ttl_s: float) -> None:
    """Check a request for a session. Raises MetadataBroken."""
    check_key(owner, "owner")
    check_range(ttl_s, TTL_S_MIN, TTL_S_MAX, "the time to live")


def check_session(session: StoreSession) -> None:
    """Check a session that is kept, ended or used. Raises MetadataBroken."""
    check_opening(session.owner, session.ttl_s)
    check_range(session.epoch, 1, INTEGER_MAX, "the session's epoch")


def check_grant(name: str, session: StoreSession, owner: str, value: bytes) -> None:
    """Check a request for a lease. Raises MetadataBroken."""
    check_key(name, "lease name")
    check_session(session)
    check_key(owner or session.owner, "owner")
    check_size(len(value), LEASE_VALUE_SIZE_MAX, "the value")


def check_lease(lease: Lease | CheckLease, value: bytes = b"") -> None:
    """Check the lease of an update or release, and its new value. Raises MetadataBroken."""
    check_key(lease.name, "lease name")
    check_key(lease.owner, "owner")
    check_range(lease.epoch, 1, INTEGER_MAX, "the epoch")
    check_size(len(value), LEASE_VALUE_SIZE_MAX, "the value")


def check_changes(prefix: str, since: int | None, wait_s: float) -> None:
    """Check the arguments of changes(). Raises MetadataBroken."""
    check_prefix(prefix)
    check_range(since or 0, 0, INTEGER_MAX, "the revision")
    check_range(wait_s, 0, WAIT_S_MAX, "the wait")
