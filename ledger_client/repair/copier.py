"""Entries of one ledger, copied verbatim from any sound replicas to one bookie.

A window of entries (some MiB) is read while the one before is made durable at the target,
so memory is bounded and a slow target slows the reading down. Each entry's digest
is checked on the way; where a replica is damaged or late, the next one is asked.

    replicas ──► window ──► throttle ──► delivery ──► acknowledged
                 (next window is asked for meanwhile)
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator

from ledger_client.bookies import Bookies
from ledger_client.connection import BookieConnection
from ledger_client.creation import DIGESTS
from ledger_client.entries import EntryBatch
from ledger_client.errors import EntryLost, NoSuchEntry
from ledger_client.options import Options
from ledger_client.questions import BatchQuestion
from ledger_client.repair.delivery import SPAN_MAX, deliver
from ledger_client.repair.plan import Copy
from ledger_client.repair.presence import Presence
from ledger_client.repair.runs import Run, Runs, run_of
from ledger_client.repair.throttle import Throttle
from ledger_client.replicas import ReplicaRead
from ledger_client.source import LedgerSource
from metadata.records import LedgerRecord
from native.digest import Digest

Read = ReplicaRead[EntryBatch]
Lost = EntryLost | NoSuchEntry
LOST_MAX = 1000
"""Entries that cannot be had are stepped over up to so many times in one copy."""


class CopySource(LedgerSource):
    """The replicas of a ledger by what they hold, whatever the location list says."""

    def __init__(
        self,
        record: LedgerRecord,
        presence: Presence,
        *,
        target: str,
        bookies: Bookies,
        options: Options,
    ) -> None:
        digest = Digest(DIGESTS[record.digest], record.password_bytes)
        super().__init__(record, digest=digest, bookies=bookies, options=options)
        others = [(name, runs) for name, runs in presence.items() if name != target]
        start = record.ledger_id % max(len(others), 1)  # so that not one serves all repairs
        self._holders = others[start:] + others[:start]

    def replicas(self, entry_id: int) -> list[BookieConnection]:
        """Return who holds the entry; then those who did not say; then those who have it not.

        These may have it all the same: a report of damage may span sound entries.
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
        copy: Copy,
        on_copied: Callable[[int], None],
        *,
        mends: bool = False,
    ) -> None:
        """Make *copy* of entries that some bookies in *presence* hold.

        Args:
            record: the ledger.
            presence: who holds what; those who did not say are asked last.
            copy: which entries, to which bookie.
            on_copied: called with the payload bytes of each window that is durable.
            mends: entries that the target has otherwise are wrong there, and replaced.

        Raises:
            EntryLost, NoSuchEntry: an entry cannot be had, and the first one is named.
                The others are copied, unless there are too many such.
            ReplicasUnavailable: somebody who may hold an entry does not answer.
            BookieUnavailable: the target is away or refuses.
        """
        source = CopySource(
            record, presence, target=copy.target, bookies=self._bookies, options=self._options
        )
        left, lost = deque(copy.runs), list[Lost]()
        reads = _ask(source, left)
        try:
            while reads:
                batches = await _answers(reads, left, lost)
                source.learn_sizes(sum(b.size for b in batches), sum(len(b) for b in batches))
                reads = _ask(source, left)
                if batches:
                    await self._deliver(copy.target, batches, source, on_copied, mends)
        finally:
            for _, read in reads:
                read.abandon()
        if lost:
            raise lost[0]

    async def _deliver(
        self,
        target: str,
        batches: list[EntryBatch],
        source: CopySource,
        on_copied: Callable[[int], None],
        mends: bool,
    ) -> None:
        size = sum(batch.size for batch in batches)
        await self._throttle.take(size)
        await deliver(
            self._bookies.connection(target),
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
    """Ask for the next window of *left*, which is taken from it; each with its last entry."""
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
    """Wait for a window; what an answer was too short for goes back to *left*."""
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
