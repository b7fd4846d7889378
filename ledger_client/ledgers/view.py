"""A reader's knowledge of one ledger: its record, its replicas, and its last confirmed entry.

The record and the last confirmed entry age from the moment they are read. They are renewed
on demand, and the record is watched while a follower is waiting.

A read tries the replicas of an entry one after the other, beginning with the last of the
list. A replica that lately failed, was late or lacked an entry moves to the end for a while,
so that a dead bookie delays one read and not every read.
"""

from __future__ import annotations

import bisect

import trio

from ledger_client.errors import NoSuchEntry, NoSuchLedger, ReplicasUnavailable
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies
from ledger_client.wire.connection import BookieConnection
from ledger_client.wire.inflight import LedgerName, Reply
from metadata.errors import MetadataError
from metadata.records import Fragment, LedgerRecord, LedgerState
from native import frame
from native.digest import Digest
from native.frame import Code

SHUN_S = 10.0
GUESSED_ENTRY_SIZE = 1024
BATCH_COUNT_MAX = 16384
STRIPED_COUNT_MAX = 128
"""READs sent at once in a striped ledger."""


class LedgerSource:
    """The replicas of one ledger's entries, and the condition of its bookies.

    Attributes:
        record: lists the bookies.
        last_confirmed: the greatest entry known to be acknowledged.
    """

    def __init__(
        self, record: LedgerRecord, *, digest: Digest, bookies: Bookies, options: Options
    ) -> None:
        self.record = record
        self.digest = digest
        self.options = options
        self.last_confirmed = record.last_entry
        self._bookies = bookies
        self._shunned: dict[str, float] = {}
        self._entry_size = float(GUESSED_ENTRY_SIZE)
        if record.last_entry >= 0:
            self._entry_size = record.length / (record.last_entry + 1)

    @property
    def ledger_id(self) -> int:
        """Id of the ledger, without its incarnation; see `name`."""
        return self.record.ledger_id

    @property
    def name(self) -> LedgerName:
        """Id and incarnation: another ledger may get the same id."""
        return LedgerName(self.record.ledger_id, self.record.incarnation)

    @property
    def striped(self) -> bool:
        """True if no bookie has all of the entries."""
        return self.record.ensemble_size > self.record.write_quorum

    def replicas(self, entry_id: int) -> list[BookieConnection]:
        """Return the bookies that should hold the entry, the best one first."""
        bookies = self._fragment(entry_id).bookies
        start = entry_id % len(bookies)
        count = self.record.write_quorum
        chosen = [bookies[(start + i) % len(bookies)] for i in reversed(range(count))]
        if not self.striped:
            chosen = bookies[::-1]  # the same one for every entry, so that it can read ahead
        return self._by_condition(chosen)

    def newest_ensemble(self) -> list[BookieConnection]:
        """Return the bookies of the last fragment, the best one first."""
        return self._by_condition(self.record.fragments[-1].bookies[::-1])

    def shun(self, bookie_id: str) -> None:
        """Ask this bookie last for SHUN_S."""
        self._shunned[bookie_id] = trio.current_time() + SHUN_S

    def suspect(self, bookie_id: str, since: float) -> None:
        """Drop the connection to a bookie that sent nothing after *since*."""
        self._bookies.connection(bookie_id).suspect(since)

    def learn_sizes(self, size: int, count: int) -> None:
        """Expect the next entries to be as large as these."""
        if count > 0:
            self._entry_size = size / count

    def part_end(self, first: int, last: int) -> int:
        """Return the last entry, at most *last*, to read together with *first*.

        The entries lie in one fragment and have about read_batch_size bytes.
        """
        size = min(self.options.read_batch_size, 2 << 20)
        count = int(size / max(self._entry_size, 1.0))
        count_max = STRIPED_COUNT_MAX if self.striped else BATCH_COUNT_MAX
        end = first + max(1, min(count, count_max)) - 1
        after = bisect.bisect_right(self._starts(), first)
        if after < len(self.record.fragments):
            end = min(end, self.record.fragments[after].first_entry - 1)
        return min(end, last)

    def _fragment(self, entry_id: int) -> Fragment:
        return self.record.fragments[max(bisect.bisect_right(self._starts(), entry_id) - 1, 0)]

    def _starts(self) -> list[int]:
        return [fragment.first_entry for fragment in self.record.fragments]

    def _by_condition(self, bookie_ids: list[str]) -> list[BookieConnection]:
        connections = [self._bookies.connection(bookie_id) for bookie_id in bookie_ids]
        if not self._shunned and all(connection.standing for connection in connections):
            return connections  # the common case, checked for each entry of a striped ledger
        now = trio.current_time()
        return sorted(
            connections, key=lambda c: c.paused or self._shunned.get(c.bookie_id, 0.0) > now
        )


NOTHING_KNOWN = -1
STRAGGLER_S = 0.5
"""How long to wait for the others once one bookie has answered."""


async def ask_confirmed(source: LedgerSource) -> int:
    """Return the greatest last confirmed entry that the bookies know, -1 for none.

    Any of them may lag, and none can be ahead: an entry that a bookie calls confirmed was
    acknowledged. So the greatest answer counts; it may be out of date, but is never wrong.
    Waits for all bookies, but only STRAGGLER_S once one has answered.

    Raises:
        ReplicasUnavailable: none of them answered.
        NoSuchLedger: it was deleted, and another one has its id now.
    """
    replies = _ask_all(source)
    with trio.move_on_after(source.options.request_timeout_s):
        await replies.wait_for(1)
    with trio.move_on_after(STRAGGLER_S):
        await replies.wait_for(len(replies.asked))
    answers = [lac for reply in replies.asked if (lac := _judge(reply)) is not None]
    for reply in replies.asked:
        reply.abandon()
        if reply.response is not None and reply.response.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(source.ledger_id)
    if not answers:
        raise ReplicasUnavailable(
            ledger_id=source.ledger_id,
            entry_id=source.record.fragments[-1].first_entry,
            reasons={reply.bookie_id: _reason(reply) for reply in replies.asked},
        )
    floor = source.record.fragments[-1].first_entry - 1
    return max(floor, *answers)


class _Replies:
    """Replies of several bookies to wait for together."""

    def __init__(self) -> None:
        self.asked: list[Reply] = []
        self._news = trio.Event()

    def wake(self) -> None:
        self._news.set()

    async def wait_for(self, good: int) -> None:
        """Wait for *good* answers, or until all have arrived, good or not."""
        while True:
            answered = sum(_judge(reply) is not None for reply in self.asked)
            if answered >= good or all(reply.arrived for reply in self.asked):
                return
            self._news = trio.Event()
            await self._news.wait()


def _ask_all(source: LedgerSource) -> _Replies:
    replies = _Replies()
    for bookie in source.newest_ensemble():
        request_id = bookie.next_request_id()
        request = frame.read_wait(
            source.ledger_id,
            0,
            request_id=request_id,
            count_max=0,
            size_max=0,
            known_lac=NOTHING_KNOWN,
            wait_ms=0,
        )
        replies.asked.append(bookie.ask(request, request_id, replies.wake, source.name))
    return replies


def _judge(reply: Reply) -> int | None:
    """Return the last confirmed entry in the answer; None without a good answer."""
    if reply.response is None:
        return None
    if reply.response.code in (Code.NO_LEDGER, Code.NO_ENTRY):
        return NOTHING_KNOWN
    return reply.response.lac if reply.response.code == Code.OK else None


def _reason(reply: Reply) -> str:
    if reply.failure is not None:
        return reply.failure.reason
    if reply.response is not None:
        return f"answered with code {reply.response.code}"
    return "no answer"


WATCH_RETRY_S = 1.0


class LedgerView:
    """The known state of one ledger, shared by its reader and followers."""

    def __init__(self, source: LedgerSource, catalogue: Catalogue, nursery: trio.Nursery) -> None:
        self.source = source
        self._catalogue = catalogue
        self._nursery = nursery
        self._watch_scope: trio.CancelScope | None = None
        self._hinted = trio.Event()

    @property
    def closed(self) -> bool:
        """True if the ledger is known to be closed: it will not grow."""
        return self.source.record.state is LedgerState.CLOSED

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that may be read; -1 for none."""
        return self.source.last_confirmed

    @property
    def hinted(self) -> trio.Event:
        """Set when the record may have changed since the last reload."""
        return self._hinted

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
        if self._hinted.is_set():
            self._hinted = trio.Event()
        self.source.record, _ = await self._catalogue.get(*self.source.name)
        if self.closed:
            self.source.last_confirmed = self.source.record.last_entry

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
        """Start to watch the record, unless that was done."""
        if self._watch_scope is None:
            self._watch_scope = trio.CancelScope()
            self._nursery.start_soon(self._watch, self._watch_scope)

    def close(self) -> None:
        """End the watch; followers go on with their polls alone."""
        if self._watch_scope is not None:
            self._watch_scope.cancel()

    async def _watch(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self.closed:
                try:
                    async with self._catalogue.watch(self.source.ledger_id) as changes:
                        self._hinted.set()  # for changes before the watch began
                        async for _ in changes:
                            self._hinted.set()
                except MetadataError:
                    await trio.sleep(WATCH_RETRY_S)  # followers poll meanwhile
