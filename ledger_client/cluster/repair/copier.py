"""Copies entries of a ledger, byte for byte, from its sound replicas to one bookie.

A window of entries (a few MiB) is read while the previous one becomes durable at the target,
so memory is bounded and a slow target slows reading down. Each entry's digest is checked
on the way; if a replica is damaged or late, the next one is asked.

    replicas ──► window ──► throttle ──► delivery ──► acknowledged
                 (the next window is requested meanwhile)
"""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import trio

from ledger_client.cluster.repair.plan import Presence, RepairCopy, Run, Runs, run_of, without
from ledger_client.errors import BookieUnavailable, EntryLost, LedgerError, NoSuchEntry
from ledger_client.ledgers.entries import BatchQuestion, EntryBatch
from ledger_client.ledgers.replica_reads import BATCH_COUNT_MAX, LedgerSource, ReplicaRead
from ledger_client.options import Options
from ledger_client.wire.bookies import BookieConnection, Bookies
from ledger_client.wire.inflight import LedgerName
from metadata.records import DamagedRun, LedgerRecord
from native.digest import Digest
from native.frame import Flag
from native.link import Writer, readd

Read = ReplicaRead[EntryBatch]
Lost = EntryLost | NoSuchEntry
LOST_MAX = 1000
"""A copy skips at most this many unreadable entries before it gives up."""


class CopySource(LedgerSource):
    """A ledger's replicas chosen by what they hold, whatever the location list says."""

    def __init__(
        self,
        record: LedgerRecord,
        presence: Presence,
        *,
        target: str,
        bookies: Bookies,
        options: Options,
    ) -> None:
        super().__init__(record, bookies=bookies, options=options)
        others = [(name, runs) for name, runs in presence.items() if name != target]
        start = record.ledger_id % max(len(others), 1)  # spread repairs over all replicas
        self._holders = others[start:] + others[:start]

    def replicas(self, entry_id: int) -> list[BookieConnection]:
        """Return holders of the entry first, then bookies that did not answer, then the rest.

        The rest may have it all the same: a report of damage may span sound entries.
        """
        sure = [name for name, runs in self._holders if runs is not None and _has(runs, entry_id)]
        maybe = [name for name, runs in self._holders if runs is None]
        rest = [name for name, _ in self._holders if name not in (*sure, *maybe)]
        return [bookie for names in (sure, maybe, rest) for bookie in self._by_condition(names)]


class Copier:
    """Copies for one worker, at the worker's rate.

    Attributes:
        copied_size: payload bytes copied so far.
    """

    def __init__(self, bookies: Bookies, throttle: Throttle, options: Options) -> None:
        self._bookies = bookies
        self._throttle = throttle
        self._options = options
        self.copied_size = 0

    async def copy(
        self,
        record: LedgerRecord,
        presence: Presence,
        copy: RepairCopy,
        on_copied: Callable[[int], None],
        *,
        mends: bool = False,
    ) -> None:
        """Make *copy* of entries that some bookies in *presence* hold.

        Args:
            record: the ledger.
            presence: what each bookie holds; those that did not answer are asked last.
            copy: which entries, to which bookie.
            on_copied: called with the payload bytes of each window that is durable.
            mends: replace entries that differ at the target, as its own are known bad.

        Raises:
            EntryLost, NoSuchEntry: an entry is unreadable everywhere; the error names the
                first such entry. The others were copied, unless too many are unreadable.
            ReplicasUnavailable: a bookie that may hold an entry does not answer.
            BookieUnavailable: the target is unreachable or refuses.
        """
        source = CopySource(
            record, presence, target=copy.target, bookies=self._bookies, options=self._options
        )
        use = partial(self._deliver, copy.target, source, on_copied, mends)
        await self._read(source, copy.runs, use)

    async def check(self, record: LedgerRecord, presence: Presence) -> None:
        """Read all entries of a closed ledger from the bookies in *presence*; raises as copy()."""
        source = CopySource(
            record, presence, target="", bookies=self._bookies, options=self._options
        )
        await self._read(source, run_of(0, record.last_entry), self._throttle_only)

    async def _read(
        self,
        source: CopySource,
        runs: Runs,
        use: Callable[[list[EntryBatch]], Awaitable[None]],
    ) -> None:
        left, lost = deque(runs), list[Lost]()
        reads = _ask(source, left)
        try:
            while reads:
                batches = await _answers(reads, left, lost)
                source.learn_sizes(sum(b.size for b in batches), sum(len(b) for b in batches))
                reads = _ask(source, left)
                if batches:
                    await use(batches)
        finally:
            for _, read in reads:
                read.abandon()
        if lost:
            raise lost[0]

    async def _throttle_only(self, batches: list[EntryBatch]) -> None:
        await self._throttle.take(sum(batch.size for batch in batches))

    async def _deliver(
        self,
        target: str,
        source: CopySource,
        on_copied: Callable[[int], None],
        mends: bool,
        batches: list[EntryBatch],
    ) -> None:
        size = sum(batch.size for batch in batches)
        await self._throttle.take(size)
        await deliver(
            self._bookies.connections[target],
            batches,
            source.digest,
            name=source.name,
            mends=mends,
            token=self._bookies.new_token(),
            timeout_s=self._options.append_timeout_s,
        )
        self.copied_size += size
        on_copied(size)


def _ask(source: CopySource, left: deque[Run]) -> list[tuple[int, Read]]:
    """Take the next window off *left* and request it; each read comes with its last entry."""
    return [
        (
            last,
            Read(source, BatchQuestion(source.name, first, last - first + 1, source.digest)),
        )
        for first, last in _window(source, left)
    ]


def _window(source: CopySource, left: deque[Run]) -> Iterator[Run]:
    if not left:
        return
    end = source.part_end(left[0][0], left[0][0] + SPAN_MAX - 1)
    while left and left[0][0] <= end:
        first, last = left.popleft()
        if last > end:
            left.appendleft((end + 1, last))
        yield first, min(last, end)


async def _answers(
    reads: list[tuple[int, Read]], left: deque[Run], lost: list[Lost]
) -> list[EntryBatch]:
    """Wait for a window; entries that an answer had no room for go back to *left*."""
    batches: list[EntryBatch] = []
    missing: Runs = []
    for last, read in reads:
        try:
            batch = await read.result()
        except (EntryLost, NoSuchEntry) as failure:
            lost.append(failure)
            if len(lost) > LOST_MAX:
                raise
            missing += run_of(failure.entry_id + 1, last)
        else:
            batches.append(batch)
            missing += run_of(batch.last_entry + 1, last)
    left.extendleft(reversed(missing))
    return batches


def _has(runs: Runs, entry_id: int) -> bool:
    at = bisect.bisect_right(runs, entry_id, key=lambda run: run[0])
    return at > 0 and runs[at - 1][1] >= entry_id


# --- Delivery to one bookie -------------------------------------------------------------
# The bytes go out as another bookie sent them: nothing is encoded again. A writer
# in C counts the acknowledgements; its own frames, empty entries of the same ids, are
# never sent.


FLAGS = Flag.RECOVERY | Flag.PRIORITY
"""A fenced bookie accepts such adds, and so does a read-only one, from its reserve."""
SPAN_MAX = 16384
"""At most this many ids lie between the first and the last entry of one delivery."""


async def deliver(
    connection: BookieConnection,
    batches: Sequence[EntryBatch],
    digest: Digest,
    *,
    name: LedgerName,
    mends: bool,
    token: int,
    timeout_s: float,
) -> None:
    """Add the entries of *batches*, in rising order, and return once the bookie synced them.

    The bookie refuses an entry that it already holds with other bytes, unless *mends* is set.

    Raises:
        BookieUnavailable: it is unreachable, silent for *timeout_s*, or refuses. Any of the
            entries may have been stored.
    """
    await connection.ready()
    delivery = _Delivery(connection.bookie_id, batches, digest, token)
    try:
        session = connection.attach(token, delivery.writer, 0, delivery, name)
        try:
            flags = FLAGS | Flag.MEND if mends else FLAGS
            for batch in batches:
                frames, _ = readd(digest.master_key, flags, _sound_part(batch))
                session.send(token, frames)
            with trio.fail_after(timeout_s):
                await delivery.settled.wait()
        finally:
            session.detach(token)
    except trio.TooSlowError:
        reason = f"acknowledged nothing within {timeout_s:g} s"
        raise BookieUnavailable(connection.bookie_id, reason) from None
    finally:
        delivery.writer.close()
    if delivery.failure is not None:
        raise delivery.failure


class _Delivery:
    """Settled once every entry is acknowledged, or none will be any more."""

    def __init__(
        self, bookie_id: str, batches: Sequence[EntryBatch], digest: Digest, token: int
    ) -> None:
        first, self._last = batches[0].first_entry, batches[-1].last_entry
        self._bookie_id = bookie_id
        self.failure: BookieUnavailable | None = None
        self.settled = trio.Event()
        self.writer = Writer(batches[0].ledger_id, 1, 1, 1, digest, first_entry=first, token=token)
        self.writer.add([b""] * (self._last - first + 1))
        if sum(map(len, batches)) <= self._last - first:
            self._acknowledge_gaps(batches)

    def acknowledged(self) -> None:
        """Check the writer's progress after each batch of acknowledgements."""
        state = self.writer.state()
        if state.refused:
            reason = f"refused entries with code {state.code}"
            self.failure = BookieUnavailable(self._bookie_id, reason)
        if state.refused or state.lac >= self._last:
            self.settled.set()

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """Give up: the connection is gone."""
        self.failure = failure
        self.settled.set()

    def bookie_left(self, index: int) -> None:
        """Do nothing: every entry is acknowledged."""

    def _acknowledge_gaps(self, batches: Sequence[EntryBatch]) -> None:
        """Count the ids between the batches, which are never sent, as acknowledged."""
        for before, after in pairwise(batches):
            for entry_id in range(before.last_entry + 1, after.first_entry):
                self.writer.acknowledge(0, entry_id)


def _sound_part(batch: EntryBatch) -> memoryview:
    """Return the sound entries of *batch*, each preceded by its size; damage may follow."""
    return memoryview(batch.body)[: batch.offsets[-1] + batch.sizes[-1]]


# --- Throttle ---------------------------------------------------------------------------


class Throttle:
    """Limits *rate* in bytes a second, first come, first served.

    A request passes at once if the line is free, and the next one waits for as long as it
    took: large requests are never split. Idle time earns no credit.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = float("-inf")

    async def take(self, size: int) -> None:
        """Wait until *size* bytes may pass."""
        now = trio.current_time()
        starts_at = max(self._free_at, now)
        self._free_at = starts_at + size / self._rate
        await trio.sleep_until(starts_at)


# --- Second reads of damaged entries ----------------------------------------------------
# A disk that could not read an entry may read it the next time, and a report of damage may
# span sound entries. If no other bookie has a copy, only a second read ends the mark.
#
# It counts only if it comes from an entry log and its digest matches: an entry in the
# memtable proves nothing about the disk, and may not even be synced. An entry that the
# bookie denies, or does not answer for, stays damaged.


FAILURES_MAX = 1000
"""After this many failed reads on one bookie, the rest stays marked as damaged."""


class Rereads:
    """Reads damaged entries again for one worker, at the worker's rate."""

    def __init__(self, bookies: Bookies, throttle: Throttle, options: Options) -> None:
        self._bookies = bookies
        self._throttle = throttle
        self._options = options

    async def still_damaged(
        self, record: LedgerRecord, damaged: Sequence[DamagedRun]
    ) -> list[DamagedRun]:
        """Return *damaged* less the entries whose copy on that very bookie proved sound."""
        failures: Counter[str] = Counter()
        left: list[DamagedRun] = []
        for run in damaged:
            sound = await self._sound(record, run, failures)
            rest = without([(run.first_entry, run.last_entry)], sound)
            left += [DamagedRun(run.bookie_id, first, last) for first, last in rest]
        return left

    async def _sound(self, record: LedgerRecord, run: DamagedRun, failures: Counter[str]) -> Runs:
        name = run.bookie_id
        source = CopySource(
            record, {name: None}, target="", bookies=self._bookies, options=self._options
        )
        sound: Runs = []
        first = run.first_entry
        while first <= run.last_entry and failures[name] < FAILURES_MAX:
            count = min(run.last_entry - first + 1, BATCH_COUNT_MAX)
            question = BatchQuestion(source.name, first, count, source.digest, from_log=True)
            try:
                batch = await ReplicaRead(source, question).result()
            except (EntryLost, NoSuchEntry):
                failures[name] += 1
                first += 1
            except LedgerError:
                failures[name] = FAILURES_MAX  # no answer, or another ledger by this id
            else:
                sound.append((first, batch.last_entry))
                first = batch.last_entry + 1
                await self._throttle.take(batch.size)
        return sound
