"""Reading a ledger, closed or, opened with recover=False, while it is written.

A reader never returns an entry above the last confirmed one. In an open ledger that is the
greatest that a bookie has reported; renew it with refresh(), or use follow(). Entries that a
writer left unconfirmed can be read once the ledger is recovered.

A follower first reads what is there in batches. Then it parks a long poll at one bookie,
which answers as soon as it learns that new entries are confirmed. Without news it rests: all
bookies of the ledger report it, each by one call for all ledgers that rest there
(wire/followed.py). A bookie may learn nothing, because the writer has replaced it, and only the
metadata says that the ledger ended. So the follower also watches the record, and reads it once a
minute. Where it cannot rest it reads the record and asks the other bookies every few seconds.

    LedgerReader ─┬─ BatchReads ─┐              the record, and the last confirmed entry:
                  └─ Follower ───┴─► LedgerView  both age, and are renewed on demand
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import trio

from ledger_client.background import OneTaker
from ledger_client.errors import (
    EntryLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchEntry,
    ReplicasUnavailable,
)
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.entries import (
    Entries,
    Entry,
    EntryBatch,
    Unsound,
    Verdict,
    check_code,
    sound_entries,
)
from ledger_client.ledgers.replica_reads import LedgerSource, Parts, ask_confirmed
from ledger_client.opening import Openable
from ledger_client.wire.bookies import BookieConnection
from ledger_client.wire.inflight import Reply, move_on_after
from metadata.errors import MetadataError
from metadata.records import LedgerRecord, LedgerState
from native import frame
from native.frame import Code

POLL_COUNT_MAX = 4096
POLL_SIZE_MAX = 1 << 20
PAUSE_S = 0.02
"""After a poll without news: bookies answer at once for an empty or a fenced ledger."""
REST_S = 600.0
"""The record of a quiet ledger is read about so often, in case a hint was lost."""
ANOTHERS_REST_S = 2.0
"""And so often if BookKeeper's client wrote it: what that changes in ZooKeeper brings no hint."""


class LedgerReader(Openable):
    """One ledger, opened for reading by Ledgers.open."""

    def __init__(self, view: LedgerView) -> None:
        self._view = view

    @property
    def id(self) -> int:
        """Id of the ledger; it may be reused after a deletion."""
        return self._view.source.ledger_id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record when it was last read."""
        return self._view.source.record

    @property
    def closed(self) -> bool:
        """True if the ledger is known to be closed: it will not grow."""
        return self._view.closed

    @property
    def last_confirmed(self) -> int:
        """The greatest entry known to be readable; -1 for none."""
        return self._view.last_confirmed

    async def refresh(self) -> int:
        """Ask the metadata and the bookies again; return the last confirmed entry.

        Raises:
            ReplicasUnavailable: no bookie of the open ledger answered.
            MetadataUnavailable: the store did not answer in time.
            NoSuchLedger: the ledger was deleted.
        """
        await self._view.refresh()
        return self.last_confirmed

    async def read(self, first: int, last: int) -> Entries:
        """Return entries *first* to *last*, both included, all at once.

        All of them are held in memory as received; an Entry is built when it is accessed.
        Use read_batches() for more than fits in memory.

        Raises:
            NoSuchEntry: *last* is past the last confirmed entry.
            EntryLost: no replica of an entry is sound.
            ReplicasUnavailable: no replica could be asked for read_timeout_s.
            MetadataUnavailable: the listed bookies lack an entry; others may have it.
            NoSuchLedger: the ledger was deleted, and no copy of an entry is left.
        """
        return Entries([batch async for batch in self.read_batches(first, last)])

    def read_batches(self, first: int, last: int) -> BatchReads:
        """Return entries *first* to *last* as an async iterator of EntryBatch.

        Holds about read_batch_size * reads_in_flight bytes. Raises as read().
        """
        return BatchReads(self._view, first, last)

    def follow(self, start: int = 0) -> Follower:
        """Return an async iterator over entries from *start* on.

        It waits for new ones and ends after the last entry of a closed ledger.
        Raises as read(), and NoSuchLedger when the ledger is deleted meanwhile.
        """
        if start < 0:
            raise NoSuchEntry(ledger_id=self.id, entry_id=start, last_confirmed=self.last_confirmed)
        return Follower(self._view, start)

    async def close(self) -> None:
        """Let go of the ledger. Harmless if that was done; the block's end does it in any case."""
        self.unwatch()
        if self._held is not None:
            await self._held.leave()

    def unwatch(self) -> None:
        """Stop watching the record for followers."""
        self._view.close()


IsWritten = Callable[[], Awaitable[bool]]
"""Returns False if the ledger's writer is gone, as its lease is over."""
Settle = Callable[["LedgerView", IsWritten], Awaitable[int]]
"""settling.settle(), which is above this module."""


async def settle(reader: LedgerReader, is_written: IsWritten) -> int:
    """Return the last entry acknowledged before this call, -1 for none; see settling.py."""
    return await reader._view.settle(reader._view, is_written)


class BatchReads:
    """An async iterator over the batches of a range of entries, wherever their copies have moved.

    Repair and rebalancing move copies while readers hold an older record, and delete the old
    copies after that. So if no listed bookie serves an entry, the record is read again; if it
    lists other bookies, they are asked. Without the metadata it is unknown whether an entry
    is lost or only somewhere else. Raises as LedgerReader.read(), and Busy if another task is
    taking.
    """

    def __init__(self, view: LedgerView, first: int, last: int) -> None:
        self._view = view
        self._record = view.source.record
        self._position = first
        self._last = last
        self._parts: Parts | None = None
        self._taker = OneTaker("iterator")

    def __aiter__(self) -> BatchReads:
        return self

    async def __anext__(self) -> EntryBatch:
        with self._taker:
            return await self._next()

    async def _next(self) -> EntryBatch:
        parts, self._parts = self._parts, None  # begun again if this is cancelled or fails
        if parts is None:
            if self._position <= self._last:
                await self._view.check_range(self._position, self._last)
            parts = self._begin()
        while True:
            try:
                batch = await parts.next()
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                if not await self._moved(failure):
                    raise
                parts = self._begin()
                continue
            if batch is None:
                raise StopAsyncIteration
            self._position = batch.last_entry + 1
            self._parts = parts
            return batch

    def _begin(self) -> Parts:
        self._record = self._view.source.record
        return Parts(self._view.source, self._position, self._last)

    async def _moved(self, failure: LedgerError) -> bool:
        try:
            return await self._view.moved_since(self._record)
        except MetadataUnavailable:
            if isinstance(failure, ReplicasUnavailable):
                return False  # it already means that the entry may exist
            raise


class LedgerView:
    """The known state of one ledger, shared by its reader and followers."""

    def __init__(self, source: LedgerSource, catalogue: Catalogue, settle: Settle) -> None:
        self.source = source
        self.catalogue = catalogue
        self.settle = settle
        self._is_watching = False
        self._hinted = False
        self._alarms: set[trio.Event] = set()

    @property
    def closed(self) -> bool:
        """True if the ledger is known to be closed: it will not grow."""
        return self.source.record.state is LedgerState.CLOSED

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that may be read; -1 for none."""
        return self.source.last_confirmed

    @property
    def hinted(self) -> bool:
        """True if the record may have changed since the last reload."""
        return self._hinted

    @contextmanager
    def waking(self, alarm: trio.Event) -> Iterator[None]:
        """During the block, set *alarm* when the record may have changed."""
        self._alarms.add(alarm)
        try:
            yield
        finally:
            self._alarms.discard(alarm)

    def raise_confirmed(self, last_confirmed: int) -> None:
        """Record that a bookie calls entries up to *last_confirmed* confirmed."""
        if not self.closed:  # otherwise the record decides, not the bookies
            self.source.last_confirmed = max(self.source.last_confirmed, last_confirmed)

    async def reload(self) -> None:
        """Read the record again: there may be new fragments, or the ledger may be closed.

        Raises:
            NoSuchLedger: it was deleted.
            MetadataUnavailable: the store did not answer.
        """
        self._hinted = False
        try:
            self.source.record, _ = await self.catalogue.get(*self.source.name)
        except BaseException:
            self._hinted = True  # as far as is known, the record has changed all the same
            raise
        if self.closed:
            self.source.last_confirmed = self.source.record.last_entry
            self.close()

    async def moved_since(self, record: LedgerRecord) -> bool:
        """Read the record again; return True if it lists other bookies than *record*.

        Raises as reload().
        """
        await self.reload()
        return self.source.record.fragments != record.fragments

    async def refresh(self) -> None:
        """Read the record again and, for an open ledger, ask its bookies.

        Raises as reload(), and ReplicasUnavailable when no bookie answered.
        """
        await self.reload()
        await self.learn_confirmed()

    async def learn_confirmed(self) -> None:
        """Ask the bookies of an open ledger for its last confirmed entry.

        Raises:
            ReplicasUnavailable: none of them answered.
        """
        if not self.closed:
            self.raise_confirmed(await ask_confirmed(self.source))

    async def check_range(self, first: int, last: int) -> None:
        """Raise NoSuchEntry unless entries *first* to *last* may be read."""
        if last > self.last_confirmed and not self.closed:
            await self.refresh()
        if first < 0 or last > self.last_confirmed:
            raise NoSuchEntry(
                ledger_id=self.source.ledger_id,
                entry_id=first if first < 0 else max(first, self.last_confirmed + 1),
                last_confirmed=self.last_confirmed,
            )

    def watch(self) -> None:
        """Start to watch the record, unless that was done or it will not change."""
        if not (self._is_watching or self.closed):
            self._is_watching = True
            with suppress(MetadataError):  # followers look at the record from time to time
                self.catalogue.watch(self.source.ledger_id, self)

    def notify(self, _prefix: str, _hint: str) -> None:
        """Note that the record may have changed."""
        self._hinted = True
        for alarm in self._alarms:
            alarm.set()

    def close(self) -> None:
        """End the watch; followers go on with their polls alone."""
        if self._is_watching:
            self.catalogue.unwatch(self.source.ledger_id, self)


class Follower:
    """An async iterator over entries from a position on; waits for new ones."""

    def __init__(self, view: LedgerView, start: int) -> None:
        self._view = view
        self._source = view.source
        self._position = start
        self._reads: BatchReads | None = None
        self._entries: Iterator[Entry] = iter(())
        self._looked_at = float("-inf")
        self._is_quiet = False
        """a long poll ended without news, so other bookies are asked too"""
        self._informed: BookieConnection | None = None
        """the bookie that had news while this one rested"""
        self._silent_since: float | None = None
        self._taker = OneTaker("follower")

    @property
    def position(self) -> int:
        """Id of the first entry that is not in a batch yet."""
        return self._position

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Entry:
        while True:
            for entry in self._entries:
                return entry
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._entries = iter(batch)

    async def next_batch(self) -> EntryBatch | None:
        """Wait for the next entries; None means that the ledger has ended.

        After an error or a cancellation the position is unchanged.

        Raises:
            Busy: another task is waiting for them.
            EntryLost, NoSuchEntry: no replica has the next entry.
            ReplicasUnavailable: no bookie answered for read_timeout_s.
            MetadataUnavailable: the listed bookies lack it; others may have it.
            NoSuchLedger: the ledger was deleted.
        """
        with self._taker:
            while True:
                if self._has_backlog():
                    batch = await self._read_on()
                elif self._view.closed:
                    return None
                else:
                    batch = await self._wait()
                if batch is not None:
                    self._position = batch.last_entry + 1
                    return batch

    def _has_backlog(self) -> bool:
        return self._position <= self._view.last_confirmed

    async def _read_on(self) -> EntryBatch | None:
        reads, self._reads = self._reads, None  # dropped if this is cancelled or fails
        if reads is None:
            reads = BatchReads(self._view, self._position, self._view.last_confirmed)
        try:
            batch = await reads.__anext__()
        except StopAsyncIteration:
            return None
        self._reads = reads
        return batch

    async def _wait(self) -> EntryBatch | None:
        """Wait for at most one long poll; return the entries in its answer, if any."""
        self._reads = None
        self._view.watch()
        is_hinted = self._view.hinted
        if is_hinted and await self._has_reloaded():
            return None
        if not is_hinted and self._is_quiet and await self._rest():
            return None
        bookie = self._informed or self._source.informant()
        self._informed = None
        batch, unsound = None, None
        asked_at = trio.current_time()
        try:
            batch = await self._poll(bookie)
        except Unsound as wrong:
            unsound = wrong
        if unsound is not None:
            self._give_up(bookie, unsound)
        if batch is None and not self._has_backlog() and not self._view.hinted:
            waited_s = trio.current_time() - asked_at
            if unsound is None and waited_s >= self._source.options.poll_s / 2:
                self._is_quiet = True
            if not (self._is_quiet and self._resting_places()):
                await self._look_elsewhere(bookie)
            await trio.sleep(PAUSE_S)
        elif is_hinted:
            await trio.sleep(PAUSE_S)
        return batch

    async def _has_reloaded(self) -> bool:
        """Read the record; False if the store does not answer. Reading goes on without it."""
        try:
            await self._view.reload()
        except MetadataUnavailable:
            return False
        return True

    def _resting_places(self) -> list[BookieConnection]:
        """Return the bookies that can report news of the ledger while the follower rests."""
        return [
            bookie
            for bookie in self._source.newest_ensemble()
            if bookie.standing and bookie.followed.takes
        ]

    async def _rest(self) -> bool:
        """Wait until some bookie has news, or the record; False if a poll should follow.

        A quiet ledger costs nothing meanwhile: its bookies report it with all other ledgers that
        rest. The record is read after REST_S, since hints may be lost.
        """
        # Only our own clients draw an incarnation.
        rest_s = REST_S if self._source.record.incarnation else ANOTHERS_REST_S
        news = trio.Event()
        places = self._resting_places()
        self._is_quiet = False
        if not places:
            return False
        wakes = [(bookie, partial(self._wake, bookie, news)) for bookie in places]
        with self._view.waking(news), trio.move_on_after(rest_s * random.uniform(0.75, 1.25)):
            try:
                for bookie, wake in wakes:
                    bookie.followed.follow(self._source.ledger_id, self._view.last_confirmed, wake)
                await news.wait()
            finally:
                for bookie, wake in wakes:
                    bookie.followed.leave(self._source.ledger_id, wake)
        if self._informed is not None and not self._informed.standing:
            self._informed = None  # it has no news: its connection broke
        elif self._informed is None and all(bookie.standing for bookie in places):
            self._is_quiet = True  # and goes on to rest, once the record was read
            if not self._view.hinted:
                with suppress(MetadataUnavailable):
                    await self._view.reload()
            return True
        return False

    def _wake(self, bookie: BookieConnection, news: trio.Event) -> None:
        self._informed = bookie
        news.set()

    async def _poll(self, bookie: BookieConnection) -> EntryBatch | None:
        """Park one long poll. Raises Unsound for a bad answer or none."""
        news = trio.Event()
        reply = self._ask(bookie, news)
        options = self._source.options
        try:
            limit_s = options.poll_s + options.speculative_s
            with self._view.waking(news), move_on_after(limit_s) as scope:
                await news.wait()
            if scope.cancelled_caught and not reply.arrived:
                bookie.suspect(reply.sent_at)
                raise Unsound(Verdict.UNAVAILABLE, "no answer")
            return self._take(reply) if reply.arrived else None
        finally:
            reply.abandon()

    def _ask(self, bookie: BookieConnection, news: trio.Event) -> Reply:
        request_id = bookie.next_request_id()
        request = frame.read_wait(
            self._source.ledger_id,
            self._position,
            request_id=request_id,
            count_max=0 if self._source.striped else POLL_COUNT_MAX,
            size_max=POLL_SIZE_MAX,
            known_lac=self._view.last_confirmed,
            wait_ms=int(self._source.options.poll_s * 1000),
        )
        return bookie.ask(request, request_id, news.set, self._source.name)

    def _take(self, reply: Reply) -> EntryBatch | None:
        """Record the last confirmed entry in the answer; return its entries."""
        response = reply.response
        if response is None:
            assert reply.failure is not None
            raise Unsound(Verdict.UNAVAILABLE, reply.failure.reason)
        self._silent_since = None
        if response.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return None  # no entry was written yet
        if response.code == Code.TOO_MANY and self._resting_places():
            self._is_quiet = True  # it has no place for a poll, which says that it has no news
            return None
        check_code(response)
        self._view.raise_confirmed(response.lac)
        batch = sound_entries(
            response, self._source.digest, self._position, POLL_COUNT_MAX, reply.bookie_id
        )
        return batch if len(batch) else None

    async def _look_elsewhere(self, bookie: BookieConnection) -> None:
        """Ask the metadata and the other bookies, which may know more than *bookie*."""
        now = trio.current_time()
        if now - self._looked_at < self._source.options.poll_s:
            return
        self._looked_at = now
        with suppress(MetadataUnavailable, ReplicasUnavailable):  # the poll itself decides
            await self._view.refresh()
        if self._has_backlog():
            self._source.shun(bookie.bookie_id)

    def _give_up(self, bookie: BookieConnection, unsound: Unsound) -> None:
        """Shun *bookie*; raise if no bookie has answered for read_timeout_s."""
        self._source.shun(bookie.bookie_id)
        now = trio.current_time()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= self._source.options.read_timeout_s:
            self._silent_since = None  # the next call gets the full time again
            raise ReplicasUnavailable(
                ledger_id=self._source.ledger_id,
                entry_id=self._position,
                reasons={bookie.bookie_id: unsound.reason},
            )


# --- opening ----------------------------------------------------------------------------
