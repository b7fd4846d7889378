"""The interface that every metadata driver keeps, and its rules.

KEYS AND VERSIONS. A store maps keys to values. A value has a version, an
integer of 1 or more that is greater after every change of the key; versions are
compared, never counted, for they may skip. ABSENT (0) stands for "no such key".
A change that names the version it expects is made only when that version is
still there (compare-and-set). Every change is durable when the call returns.
Keys are ordered by code point. Nothing is cached: a read that starts after a
change returned sees that change, through whichever process it is made.

LEASES. A lease is a name that one owner holds for a time. Each grant has an
epoch, greater than every epoch granted under that name before. A lease is over
when its time ran out, when it was released, or when the same owner was granted
it again; from then on its epoch can neither be renewed nor pass a CheckLease.
A holder counts its time from before it asked, and may still be late (a pause,
a clock): so what must not happen twice is done in a transaction together with
CheckLease, which is what makes it safe; the time only makes it quick. Leases
and keys are two spaces: both may hold the same name.

TIME. A store has one clock, for all hosts: what decides over data (what is old
enough to be removed, who was idle for too long) compares the store's time with
the store's time, never with a host's. It is Unix time as far as the store knows,
and it never goes back: not when a wall clock is set, not when the store is
started anew, and not from one process to another that asked later. Leases do not
depend on it.

WATCHES are hints. A watch yields keys (and names of leases) that may have
changed since it began. A hint may be late, merged with another, or repeated, and
one equal to the watched prefix says that anything under it may have changed.
After a failure of the store the watch goes on by itself and says the latter. So
start watching, then read, and read again at each hint; and read again from time
to time, since no correctness may hang on a watch.

FAILURES. See metadata/errors.py. When a call raises, nothing was changed; only
MetadataUnavailable with outcome_unknown, and a call that was cancelled, leave
open whether the change was made or still will be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec
import trio

ABSENT = 0
"""The version of a key that does not exist."""


class Versioned(NamedTuple):
    """A value with the version that the next change of it should expect."""

    value: bytes
    version: int


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A grant. *expires_in_s* counts from when the store answered."""

    name: str
    owner: str
    epoch: int
    value: bytes
    expires_in_s: float


class Put(msgspec.Struct, frozen=True, tag=True):
    """Set *key*; *expected* None: whatever is there, ABSENT: it must not exist."""

    key: str
    value: bytes
    expected: int | None = None


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Remove *key*; without *expected* it need not exist."""

    key: str
    expected: int | None = None


class Check(msgspec.Struct, frozen=True, tag=True):
    """Go on only if *key* has the version *expected* (ABSENT: does not exist)."""

    key: str
    expected: int


class CheckLease(msgspec.Struct, frozen=True, tag=True):
    """Go on only if the lease *name* is live and still has *epoch*."""

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


class Changes(msgspec.Struct, frozen=True, tag=True):
    """What changed under a prefix, up to *revision*.

    *everything* says that the keys are not known (too many, or too long ago).
    """

    revision: int
    keys: list[str]
    everything: bool = False


class MetadataStore(Protocol):
    """Compare-and-set, transactions, listing, ids, leases and watches.

    Every call may raise MetadataUnavailable, BadStore and BadRequest (for what is beyond
    metadata/limits.py); others are named where they can happen. Calls may be
    made from many tasks at once. A change costs one durable transaction
    (milliseconds); a read costs less. None blocks the event loop.
    """

    async def get(self, key: str) -> Versioned | None:
        """Return the value of *key* and its version, or None when it does not exist."""

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Set *key* and return its new version.

        Args:
            key: 1 to 512 bytes of printable text.
            value: at most 1 MiB.
            expected: the version it must have; ABSENT: it must not exist; None:
                whatever is there is replaced.

        Raises:
            VersionConflict: it has another version.
        """

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove *key*. Without *expected* nothing happens when it does not exist.

        Raises:
            VersionConflict: it has another version than *expected*.
        """

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """Do all of *ops* in order, or none.

        Each sees what those before it did. At most 1024, with at most 4 MiB of
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

        A page may hold fewer than *limit* (1 to 1000): it ends early when its
        values grow beyond 2 MiB. The listing is over when a page is empty.
        Each page is a state of its own; keys may change between two.
        """

    async def next_id(self, counter: str, count: int = 1) -> int:
        """Return the first of *count* (1 to 1 000 000) fresh ids of *counter*.

        They start at 1, rise, and are never given twice; some may be lost.
        Counters are a space of their own.
        """

    async def now_ms(self) -> int:
        """Return the store's time in Unix milliseconds. It never goes back.

        metadata/clock.py estimates it without a call each time.
        """

    async def grant(self, name: str, owner: str, *, ttl_s: float, value: bytes = b"") -> Lease:
        """Take the lease *name* for *ttl_s* seconds (0.05 to 86 400), with a new epoch.

        The owner of a live lease may take it again; its former epoch is then
        over. So *owner* must name this very run of a process, not a role.
        *value* (at most 4096 bytes) is shown to whoever lists the leases.

        Raises:
            LeaseHeld: another owner has it.
        """

    async def renew(self, lease: Lease, *, value: bytes | None = None) -> Lease:
        """Make *lease* last for as long as it was granted for, counted from now.

        None leaves its value as it is; a value that differs is a change that
        watches tell.

        Raises:
            LeaseLost: it is over. An owner that still wants it asks for a grant.
        """

    async def release(self, lease: Lease) -> None:
        """End *lease* now. Nothing happens when it is over already."""

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """Return up to 1000 live leases whose name has *prefix* and is above *after*, in order."""

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """Wait up to *wait_s* (at most 60) for changes under *prefix* after revision *since*.

        The plumbing of watch. Without *since* it returns at once, with the revision to
        start from. No keys and everything False: nothing changed in time.
        """

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch what is under *prefix* from entering the context on.

        The receiving task does the work; nothing runs in the background. An
        expired lease is told as a change, up to a second late.

        Raises:
            MetadataUnavailable: on entering; later on the watch bears it.
        """

    async def aclose(self) -> None:
        """Let go of files and connections. Later calls raise MetadataUnavailable."""


async def pages(store: MetadataStore, prefix: str) -> AsyncIterator[Page]:
    """Yield every page under *prefix*, none empty, holding one at a time."""
    page = await store.list(prefix)
    while page:
        yield page
        page = await store.list(prefix, after=page[-1][0])
