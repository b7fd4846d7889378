"""The writer of one worker of a job: staged ledgers of each partition it has messages for.

    columns ──► cut ──► encode ──► the partition's staged ledger ──► sealed
                                   rolled like the topic's lanes

A repeated attempt at a part, after a failure or beside a slow worker, stages ledgers of its own;
the job shows the ledgers of one attempt.

Ledger ids. Message ids must rise along a lane even when many workers write it at once, and parts
are added to a lane in their order, whichever is done first. So part 3 must not take an id before
parts 0 to 2 have theirs. The first worker that needs an id reserves a share for its part and for
all parts before it:

    part      0        1        2        3
    ids       [──112──][──112──][──112──][──112──]     reserved by the worker that first used part 3
               └ a quarter of a share for each attempt at the part

The reserved ranges are a row of the job (metadata/jobs.py), changed by compare-and-set: later
shares have higher ids. A part that writes nothing takes no ids.

A share is bounded, so a part that writes very much makes its last ledgers larger than the topic's
roll size: from LARGER_FROM on each holds twice as much as the one before, and after ROLLS_MAX
nothing is rolled any more.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice, pairwise
from operator import le

import msgspec
import trio

from ledger_client.errors import (
    BadTopic,
    LedgerClosed,
    LedgerExists,
    MetadataBroken,
    PayloadTooLarge,
    SparkError,
    TopicError,
)
from ledger_client.jobs.staging.job import (
    JobStage,
    SealedLedger,
    StagedLedgerWriter,
    open_staged,
)
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.writer import Request, WriteDriver
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.written_ledger import Rolling
from metadata.errors import BadRecord, VersionConflict
from metadata.jobs import IdRun, JobIds, decode_ids, encode_job_row, ids_key
from metadata.records import LEDGER_COUNTER
from metadata.store import ABSENT, IDS_MAX, Put
from metadata.topics import PARTITIONS_MAX
from native.batch import Columns, cut, encode
from native.errors import TooLarge

PARTS_MAX = 100_000
"""Parts of a job."""
ATTEMPTS = 4
"""At a part, that begin at different ids and so seldom meet."""
ROLLS_MAX = 24
"""Ledgers of an attempt beside the first one of each partition."""
OPENED_MAX = PARTITIONS_MAX
"""First ledgers of an attempt, at most: one of each partition."""
AHEAD = 8
"""A run of ids is reserved for this many parts, or for an eighth of the parts before it."""

LARGER_FROM = 16
"""Ledgers of an attempt that roll at the topic's limits; later ones grow larger."""
BATCH_SIZE = 256 << 10
BATCH_COUNT = 10_000
AHEAD_SIZE = 16 << 20
"""Bytes sent and not acknowledged, of all ledgers together."""
SEALING = 8
"""Ledgers sealed at the same time."""


class JobPart(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a part of a job; *attempt* counts from 0."""

    index: int
    attempt: int = 0


@asynccontextmanager
async def open_staged_writer(
    ledgers: Ledgers, stage: JobStage, *, part: JobPart, producer: str = ""
) -> AsyncIterator[StagedWriter]:
    """Write a part of a job for the block; without finish() its ledgers are never shown.

    Args:
        ledgers: whose bookies and metadata.
        stage: the job's.
        part: the part, and the attempt at it.
        producer: the producer's name that readers see.

    Raises:
        TopicError: the job has more than PARTS_MAX parts.
    """
    ids = PartIds(ledgers, stage, part=part.index, attempt=part.attempt).ids()
    async with aclosing(ids) as rising:
        writer = StagedWriter(ledgers, stage, rising, producer=producer)
        try:
            yield writer
        finally:
            writer.give_up()


class StagedWriter:
    """Writes messages to staged ledgers; for one task."""

    def __init__(
        self, ledgers: Ledgers, stage: JobStage, ids: AsyncIterator[int], *, producer: str = ""
    ) -> None:
        """*ids* are rising ledger ids for new ledgers; some may be taken."""
        self._ledgers = ledgers
        self._stage = stage
        self._ids = ids
        self._producer = producer.encode()
        self._rolls = 0
        self._topic = stage.topic
        self._ordered = stage.topic.order == "event-time"
        self._rolling = Rolling(stage.topic.roll, ordered=self._ordered)
        self._open: dict[int, StagedLedgerWriter] = {}
        self._last_times: dict[int, int] = {}
        self._ended: list[StagedLedgerWriter] = []
        self._under_way: deque[tuple[Request, int]] = deque()
        self._ahead = 0

    async def write(self, partition: int, columns: Columns, rows: array[int] | None = None) -> None:
        """Append messages to a partition: all of *columns*, or those at *rows*.

        Returns once at most AHEAD_SIZE bytes are not acknowledged.

        Raises:
            SparkError: the topic is ordered by event time, and the messages are not.
            BadTopic: the topic is ordered by event time, and a message has none.
            PayloadTooLarge: a message does not fit a frame.
            WriterFailed, OutcomeUnknown, NotEnoughBookies, MetadataUnavailable: this attempt
                has failed; another may succeed.
        """
        if self._ordered:
            self._check_times(partition, columns, rows)
        await self._ledgers.catalogue.refresh_clock()
        start = 0
        for end in self._cut(columns, rows):
            payload = encode(
                columns,
                start,
                end,
                rows=rows,
                compression=self._topic.compression,
                producer=self._producer,
                created_ms=self._ledgers.clock.now_ms(),
            )
            await self._put(partition, SealedBatch.of(payload))
            start = end

    async def finish(self) -> list[SealedLedger]:
        """Seal all ledgers; return them in the order in which they were created.

        Raises as write().
        """
        for partition in list(self._open):
            self._end(partition)
        limit = trio.CapacityLimiter(SEALING)
        async with trio.open_nursery() as nursery:
            for ledger in self._ended:
                nursery.start_soon(ledger.seal, limit)
        for ledger in self._ended:
            if ledger.failure is not None:
                raise ledger.failure
        ledgers = [ledger.sealed() for ledger in self._ended]
        return sorted(ledgers, key=lambda ledger: ledger.ledger_id)

    def give_up(self) -> None:
        """Stop writing; the job discards what was staged."""
        for ledger in [*self._open.values(), *self._ended]:
            ledger.writer.fail(LedgerClosed(ledger.writer.id))

    # --- inside ------------------------------------------------------------------------

    def _cut(self, columns: Columns, rows: array[int] | None) -> array[int]:
        try:
            return cut(columns, size_max=BATCH_SIZE, count_max=BATCH_COUNT, rows=rows)
        except TooLarge as wrong:
            size, size_max = wrong.size, wrong.size_max
            raise PayloadTooLarge.message(self._topic.name, size=size, size_max=size_max) from wrong

    async def _put(self, partition: int, batch: SealedBatch) -> None:
        ledger = self._open.get(partition)
        if ledger is not None and self._is_due(ledger, batch):
            self._end(partition)
            self._rolls += 1
            ledger = None
        if ledger is None:
            ledger = self._open[partition] = StagedLedgerWriter(
                await self._make(partition), partition
            )
        self._under_way.append((ledger.send(batch), batch.size))
        self._ahead += batch.size
        await self._settle(AHEAD_SIZE)

    def _is_due(self, ledger: StagedLedgerWriter, following: SealedBatch) -> bool:
        """Whether a ledger ends here; it grows so that the part's ids suffice."""
        if self._rolls >= ROLLS_MAX:
            return False
        if not self._rolling.is_due_before(ledger, ledger.age_s, following.first_event_time):
            return False
        ledger.due_size = ledger.due_size or ledger.size
        return ledger.size >= ledger.due_size << max(self._rolls - LARGER_FROM, 0)

    async def _settle(self, ahead_max: int) -> None:
        """Wait until at most *ahead_max* bytes are not acknowledged; raise a send's failure."""
        while self._ahead > ahead_max:
            request, size = self._under_way[0]
            await request.done.wait()
            if request.failure is not None:
                raise request.failure
            self._under_way.popleft()
            self._ahead -= size

    def _end(self, partition: int) -> None:
        ledger = self._open.pop(partition)
        ledger.append_state(self._ledgers.clock.now_ms())
        self._ended.append(ledger)

    async def _make(self, partition: int) -> WriteDriver:
        async for ledger_id in self._ids:
            try:
                return await open_staged(
                    self._ledgers, self._stage, partition=partition, ledger_id=ledger_id
                )
            except LedgerExists:  # of another attempt
                continue
        count = len(self._ended) + len(self._open)
        name = self._topic.name
        raise TopicError.too_many(name, count=count + 1, count_max=count, what="ledgers of a task")

    def _check_times(self, partition: int, columns: Columns, rows: array[int] | None) -> None:
        times = _times(columns, rows)
        if times is None:
            raise BadTopic("ordered by event time: every message needs one", topic=self._topic.name)
        if not times:
            return
        last = self._last_times.get(partition, times[0])
        if last <= times[0] and all(map(le, times, islice(times, 1, None))):
            self._last_times[partition] = times[-1]
            return
        before, late = next((a, b) for a, b in pairwise([last, *times]) if b < a)
        name = self._topic.name
        raise SparkError.unordered(name, partition=partition, event_time=late, before=before)


def _times(columns: Columns, rows: array[int] | None) -> Sequence[int] | None:
    """Return the event times in the order of the messages, or `None` if one is missing."""
    times = columns.event_times
    if times is None or (columns.event_time_validity is not None and _has_null(columns, rows)):
        return None
    return times if rows is None else list(map(times.__getitem__, rows))


def _has_null(columns: Columns, rows: array[int] | None) -> bool:
    missing = {i for i, time in enumerate(columns.event_times_list()) if time is None}
    return bool(missing if rows is None else missing.intersection(rows))


class PartIds:
    """Ids for the ledgers of one attempt at a part."""

    def __init__(self, ledgers: Ledgers, stage: JobStage, *, part: int, attempt: int) -> None:
        """Raise TopicError if there are fewer parts."""
        if part >= PARTS_MAX:
            raise TopicError.too_many(
                stage.topic.name, count=part + 1, count_max=PARTS_MAX, what="tasks"
            )
        self._ledgers = ledgers
        self._stage = stage
        self._part = part
        self._attempt = attempt

    async def ids(self) -> AsyncGenerator[int, None]:
        """Yield rising ids; the ledger of one may be another attempt's.

        Raises:
            MetadataUnavailable, MetadataBroken: as they say.
        """
        run = await self._reserved()
        share = run.share
        begin = run.first_id + (self._part - run.first_part) * share
        for ledger_id in range(
            begin + self._attempt % ATTEMPTS * (share // ATTEMPTS), begin + share
        ):
            yield ledger_id

    async def _reserved(self) -> IdRun:
        """Return the run that the part's share is in."""
        store, limit_s = self._ledgers.store, self._ledgers.options.metadata_timeout_s
        key = ids_key(self._stage.topic.uid, self._stage.job_id)
        while True:
            with translated(limit_s):
                found = await store.get(key)
                version = ABSENT if found is None else found.version
                try:
                    runs = [] if found is None else decode_ids(key, found.value).runs
                except BadRecord as wrong:
                    raise MetadataBroken(f"metadata: {wrong}") from wrong
                for run in runs:
                    if run.first_part <= self._part < run.first_part + run.parts:
                        return run
                longer = JobIds(runs=[*runs, await self._reserve(runs)])
                try:
                    await store.transact([Put(key, encode_job_row(longer), version)])
                except VersionConflict:
                    continue  # another part was faster; these ids are nobody's

    async def _reserve(self, runs: list[IdRun]) -> IdRun:
        """Take ids behind all *runs*, for parts behind theirs."""
        count = sum(run.parts for run in runs)
        share = share_of(self._stage)
        wanted = max(self._part + 1 - count, min(count, AHEAD), count // AHEAD)
        parts = min(wanted, PARTS_MAX - count, IDS_MAX // share)
        first_id = await self._ledgers.store.next_id(LEDGER_COUNTER, parts * share)
        return IdRun(first_part=count, parts=parts, share=share, first_id=first_id)


def share_of(stage: JobStage) -> int:
    """Return how many ids a part of a job has, for all attempts at it."""
    opened = min(len(stage.topic.partition_indexes), OPENED_MAX)
    return ATTEMPTS * (opened + ROLLS_MAX)
