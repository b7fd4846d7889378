"""A metadata store in memory: the whole contract, and outages on demand.

Every change is made at one moment of the loop. Whoever waits for changes is woken by
the change itself, or when the next lease runs out: nobody polls, so that a simulated
hour of waiting costs nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import takewhile

import trio
from memory_leases import MemoryLeases
from sortedcontainers import SortedDict

from metadata import store as contract
from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.moving import Floors, Snapshot, check_floors, live_view
from metadata.records import BookieRecord, bookie_lease, encode_record
from metadata.watch import PollSource, Watches

Keys = list[str]
CHANGES_MAX = 10_000
KEYS_TOLD_MAX = 1000


def trio_clock_ms() -> int:
    """Return milliseconds of trio's clock, which a test may have in its hands."""
    return round(trio.current_time() * 1000)


class MemoryStore:
    """A MetadataStore of this process. *clock_ms* is the clock of its leases."""

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int] = trio_clock_ms,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """*wall_ms*: the store's time.

        By default it is that of the host at the first call, and goes on with *clock_ms*.
        """
        self.wall_ms = wall_ms
        self._wall_offset_ms: int | None = None
        self._time_floor_ms = 0
        self._sorted = SortedDict()
        self.values: dict[str, contract.Versioned] = self._sorted
        self.bookies: dict[str, BookieRecord] = {}
        """Bookies that are registered for ever, without a lease."""
        self.available = True
        self.before_put: Callable[[str], None] = lambda _key: None
        """Called before a put looks at the key: where a rival slips in."""
        self.on_change: Callable[[str, contract.Versioned | None], None] = lambda _key, _value: None
        """Called with each change of a key; None: it was deleted."""
        self.hints = True
        """False: whoever waits for changes is not woken by them."""
        self._clock_ms = clock_ms
        self._leases = MemoryLeases(clock_ms, self._record_change)
        self._log: deque[tuple[int, str]] = deque(maxlen=CHANGES_MAX)
        self._revision = 0
        self._counters: dict[str, int] = {}
        self._news = trio.lowlevel.ParkingLot()
        self._closed = False
        self.watches = Watches(PollSource(self))
        self.is_cut_off = False

    # --- keys ------------------------------------------------------------------------

    async def get(self, key: str) -> contract.Versioned | None:
        contract.check_key(key)
        await self._reach()
        return self.values.get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        (version,) = await self.transact([contract.Put(key, value, expected)])
        return version

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        await self.transact([contract.Delete(key, expected)])

    async def transact(self, ops: Sequence[contract.Op]) -> contract.Versions:
        ops = tuple(ops)
        contract.check_ops(ops)
        await self._reach()
        for op in ops:
            if isinstance(op, contract.Put):
                self.before_put(op.key)
        self._leases.sweep()
        before = {
            op.key: self.values.get(op.key)
            for op in ops
            if isinstance(op, contract.Put | contract.Delete)
        }
        changed = Keys()
        try:
            versions = [self._apply(op, changed) for op in ops]
        except BaseException:
            self._put_back(before)
            raise
        for key in changed:
            self._record_change(key)
        for key in dict.fromkeys(changed):
            self.on_change(key, self.values.get(key))
        return versions

    def _put_back(self, before: dict[str, contract.Versioned | None]) -> None:
        for key, found in before.items():
            if found is None:
                self.values.pop(key, None)
            else:
                self.values[key] = found

    def change(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Put at once."""
        self._check(key, expected)
        self.values[key] = contract.Versioned(value, self._record_change(key))
        self.on_change(key, self.values[key])
        return self._revision

    def set_back(self, keys: Iterable[str], counter: str, next_id: int) -> None:
        """Lose *keys* and the ids from *next_id* on, as a restore from a backup does."""
        self._counters[counter] = next_id
        for key in keys:
            del self.values[key]
            self._record_change(key)
            self.on_change(key, None)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> contract.Page:
        contract.check_page(prefix, after, limit)
        await self._reach()
        found: list[contract.Item] = []
        size = 0
        for key in self._sorted.irange(max(prefix, after)):
            if key == after and after:
                continue
            size += len(self.values[key].value)
            is_full = len(found) == limit or (found and size > contract.PAGE_SIZE_MAX)
            if is_full or not key.startswith(prefix):
                break
            found.append((key, self.values[key]))
        return found

    async def next_id(self, counter: str, count: int = 1) -> int:
        contract.check_ids(counter, count)
        await self._reach()
        first = self._counters.get(counter, 1)
        self._counters[counter] = first + count
        return first

    async def now_ms(self) -> int:
        await self._reach()
        if self.wall_ms is not None:
            return max(self.wall_ms(), self._time_floor_ms)
        if self._wall_offset_ms is None:
            self._wall_offset_ms = time.time_ns() // 1_000_000 - self._clock_ms()
        return self._clock_ms() + self._wall_offset_ms

    # --- leases ----------------------------------------------------------------------

    async def open_session(self, owner: str, *, ttl_s: float) -> contract.StoreSession:
        contract.check_opening(owner, ttl_s)
        await self._reach()
        return self._leases.open(owner, ttl_s)

    async def keep_session(self, session: contract.StoreSession) -> None:
        contract.check_session(session)
        await self._reach()
        self._leases.keep(session)

    async def end_session(self, session: contract.StoreSession) -> None:
        contract.check_session(session)
        await self._reach()
        self._leases.end(session)

    def end_sessions(self) -> None:
        """End all sessions; their processes hear nothing of it."""
        self._leases.end_all()

    async def grant(
        self, name: str, session: contract.StoreSession, *, owner: str = "", value: bytes = b""
    ) -> contract.Lease:
        contract.check_grant(name, session, owner, value)
        await self._reach()
        return self._leases.grant(name, session, owner or session.owner, value)

    async def update(self, lease: contract.Lease, value: bytes) -> contract.Lease:
        contract.check_lease(lease, value)
        await self._reach()
        return self._leases.update(lease, value)

    async def release(self, lease: contract.Lease) -> None:
        contract.check_lease(lease)
        await self._reach()
        self._leases.release(lease)

    async def leases(self, prefix: str, *, after: str = "") -> contract.Leases:
        contract.check_page(prefix, after)
        await self._reach()
        found = self._leases.live(prefix)
        found += [
            contract.Lease(bookie_lease(name), name, 1, encode_record(record), 10.0, 1)
            for name, record in self.bookies.items()
            if bookie_lease(name).startswith(prefix)
        ]
        above = [lease for lease in found if lease.name > after]
        return sorted(above, key=lambda lease: lease.name)[: contract.PAGE_COUNT_MAX]

    # --- watches ---------------------------------------------------------------------

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> contract.Changes:
        contract.check_changes(prefix, since, wait_s)
        await self._reach()
        found = self._changes(prefix, since)
        with trio.move_on_after(wait_s):
            while since is not None and not (found.keys or found.everything):
                await self._wait_news()
                found = self._changes(prefix, since)
        return found

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        return self.watches.watch(prefix)

    # --- moving house ----------------------------------------------------------------

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        return live_view(self)

    async def floors(self) -> Floors:
        time_ms = await self.now_ms()
        return Floors(counters=dict(self._counters), time_ms=time_ms, revision=self._revision)

    async def raise_floors(self, floors: Floors) -> None:
        check_floors(floors)
        time_ms = await self.now_ms()
        for name, following in floors.counters.items():
            self._counters[name] = max(self._counters.get(name, 1), following)
        if self._revision < floors.revision:
            self._revision = floors.revision - 1
            self._record_change("")
        self._time_floor_ms = floors.time_ms
        if time_ms < floors.time_ms and self._wall_offset_ms is not None:
            self._wall_offset_ms += floors.time_ms - time_ms

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    # --- inside ----------------------------------------------------------------------

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise MetadataUnavailable("the store is closed")
        if not self.available:
            raise MetadataUnavailable("the store is away")

    def _apply(self, op: contract.Op, changed: Keys) -> int:
        if isinstance(op, contract.CheckLease):
            return self._leases.check(op)
        found = self._check(op.key, op.expected)
        if isinstance(op, contract.Check):
            return found
        if isinstance(op, contract.Delete):
            if self.values.pop(op.key, None) is not None:
                changed.append(op.key)
            return contract.ABSENT
        changed.append(op.key)
        version = self._revision + len(changed)  # as _record_change will count
        self.values[op.key] = contract.Versioned(op.value, version)
        return version

    def _check(self, key: str, expected: int | None) -> int:
        found = self.values[key].version if key in self.values else contract.ABSENT
        if expected is not None and found != expected:
            raise VersionConflict(key=key, expected=expected, found=found)
        return found

    def _record_change(self, key: str) -> int:
        self._revision += 1
        self._log.append((self._revision, key))
        if self.hints:
            self._news.unpark_all()
        return self._revision

    async def _wait_news(self) -> None:
        """Wait for a change, or until a lease may be over."""
        over_ms = self._leases.next_over_ms()
        left_s = float("inf") if over_ms is None else max(over_ms - self._clock_ms(), 1) / 1000
        with trio.move_on_after(left_s):
            await self._news.park()

    def _changes(self, prefix: str, since: int | None) -> contract.Changes:
        self._leases.sweep()
        newest = self._revision
        if since is None or since == newest:
            return contract.Changes(newest, [])
        if since > newest or since < newest - len(self._log):
            return contract.Changes(newest, [], everything=True)
        later = takewhile(lambda each: each[0] > since, reversed(self._log))
        told = [each for each in later if each[1].startswith(prefix)][::-1]
        if len(told) > KEYS_TOLD_MAX:
            told = told[:KEYS_TOLD_MAX]
            newest = told[-1][0]
        return contract.Changes(newest, list(dict.fromkeys(key for _, key in told)))
