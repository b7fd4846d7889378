"""What one worker of a job writes: staged ledgers of each partition it has messages for.

    columns ──► cut ──► encode ──► the partition's staged ledger ──► sealed
                                   rolled as the lanes of the topic are

Whoever works on the same part of a job again, after a failure or beside a slow worker, stages
ledgers of its own, and the job shows those of one of them.

Ids of messages rise along a lane, also where a job writes it with many workers at once: each
part has a share of ledger ids (part_ids.py). A share is bounded, so a part that writes very much
makes its last ledgers larger than the topic's roll size: from LARGER_FROM on each one holds twice
as much as the one before, and behind ROLLS_MAX nothing is rolled any more.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice, pairwise
from operator import le

import msgspec
import trio

from ledger_client.appends import Request
from ledger_client.client import Client
from ledger_client.errors import LedgerClosed, LedgerExists
from ledger_client.topics.errors import BadTopic, MessageTooLarge, RowsUnordered, TooManyLedgers
from ledger_client.topics.jobs.part_ids import ROLLS_MAX, PartIds
from ledger_client.topics.jobs.staged_piece import PieceWriter, StagedPiece
from ledger_client.topics.jobs.staging import JobStage, open_staged
from ledger_client.topics.lanes.rolling import Rolling
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.writer import LedgerWriter
from native.batch import Columns, cut, encode
from native.errors import TooLarge

LARGER_FROM = 16
"""So many ledgers of an attempt are ended at the topic's limits, later ones when larger."""
BATCH_SIZE = 256 << 10
BATCH_COUNT = 10_000
AHEAD_SIZE = 16 << 20
"""Bytes that are sent and not acknowledged, for all ledgers together."""
SEALING = 8
"""Ledgers that are sealed at once."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job, as one worker does it; *attempt* counts those who did it."""

    index: int
    attempt: int = 0


@asynccontextmanager
async def open_staged_writer(
    client: Client, stage: JobStage, *, part: Part, producer: str = ""
) -> AsyncIterator[StagedWriter]:
    """Write a part of a job for the block; without finish() nothing comes of it.

    Args:
        client: whose bookies and metadata.
        stage: the job's.
        part: which part of the job.
        producer: whose the messages are, as readers see it.

    Raises:
        TooManyLedgers: the job has more parts than can be.
    """
    ids = PartIds(client, stage, part=part.index, attempt=part.attempt).ids()
    async with aclosing(ids) as rising:
        writer = StagedWriter(client, stage, rising, producer=producer)
        try:
            yield writer
        finally:
            writer.give_up()


class StagedWriter:
    """Writes messages to staged ledgers. One task calls it."""

    def __init__(
        self, client: Client, stage: JobStage, ids: AsyncIterator[int], *, producer: str = ""
    ) -> None:
        """*ids*: of the ledgers to be made, rising; some may be taken."""
        self._client = client
        self._stage = stage
        self._ids = ids
        self._producer = producer.encode()
        self._rolls = 0
        self._topic = stage.topic
        self._ordered = stage.topic.order == "event-time"
        self._rolling = Rolling(stage.topic.roll, ordered=self._ordered)
        self._open: dict[int, PieceWriter] = {}
        self._last_times: dict[int, int] = {}
        self._ended: list[PieceWriter] = []
        self._under_way: deque[tuple[Request, int]] = deque()
        self._ahead = 0

    async def write(self, partition: int, columns: Columns, rows: array[int] | None = None) -> None:
        """Add messages of a partition behind those before: all, or those at *rows*.

        Returns when little of it is not acknowledged.

        Raises:
            RowsUnordered: the topic is ordered by event time, and they are not.
            BadTopic: it is, and a message has no event time.
            MessageTooLarge: a message does not fit a frame.
            WriterFailed, OutcomeUnknown, NotEnoughBookies, MetadataUnavailable: this
                attempt has failed; another may do better.
        """
        if self._ordered:
            self._check_times(partition, columns, rows)
        await self._client.catalogue.refresh_clock()
        start = 0
        for end in self._cut(columns, rows):
            payload = encode(
                columns,
                start,
                end,
                rows=rows,
                compression=self._topic.compression,
                producer=self._producer,
                created_ms=self._client.clock.now_ms(),
            )
            await self._put(partition, SealedBatch.of(payload))
            start = end

    async def finish(self) -> list[StagedPiece]:
        """Seal all ledgers; return them in the order in which they were begun.

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
        pieces = [ledger.piece() for ledger in self._ended]
        return sorted(pieces, key=lambda piece: piece.ledger_id)

    def give_up(self) -> None:
        """Write nothing any more; what was staged is the job's to give up."""
        for ledger in [*self._open.values(), *self._ended]:
            ledger.writer.fail(LedgerClosed(ledger.writer.id))

    # --- inside ------------------------------------------------------------------------

    def _cut(self, columns: Columns, rows: array[int] | None) -> array[int]:
        try:
            return cut(columns, size_max=BATCH_SIZE, count_max=BATCH_COUNT, rows=rows)
        except TooLarge as wrong:
            size, size_max = wrong.size, wrong.size_max
            raise MessageTooLarge(self._topic.name, size=size, size_max=size_max) from wrong

    async def _put(self, partition: int, batch: SealedBatch) -> None:
        ledger = self._open.get(partition)
        if ledger is not None and self._is_due(ledger, batch):
            self._end(partition)
            self._rolls += 1
            ledger = None
        if ledger is None:
            ledger = self._open[partition] = PieceWriter(await self._make(partition), partition)
        self._under_way.append((ledger.send(batch), batch.size))
        self._ahead += batch.size
        await self._settle(AHEAD_SIZE)

    def _is_due(self, ledger: PieceWriter, following: SealedBatch) -> bool:
        """Whether a ledger ends here, at a size that leaves ids for all that may follow."""
        if not self._rolling.is_due(ledger, ledger.age_s, following) or self._rolls >= ROLLS_MAX:
            return False
        ledger.due_size = ledger.due_size or ledger.size
        return ledger.size >= ledger.due_size << max(self._rolls - LARGER_FROM, 0)

    async def _settle(self, ahead_max: int) -> None:
        """Wait until at most so many bytes are not acknowledged. Raises why one is not."""
        while self._ahead > ahead_max:
            request, size = self._under_way[0]
            await request.done.wait()
            if request.failure is not None:
                raise request.failure
            self._under_way.popleft()
            self._ahead -= size

    def _end(self, partition: int) -> None:
        ledger = self._open.pop(partition)
        ledger.tell_state(self._client.clock.now_ms())
        self._ended.append(ledger)

    async def _make(self, partition: int) -> LedgerWriter:
        async for ledger_id in self._ids:
            try:
                return await open_staged(
                    self._client, self._stage, partition=partition, ledger_id=ledger_id
                )
            except LedgerExists:  # of another attempt
                continue
        count = len(self._ended) + len(self._open)
        name = self._topic.name
        raise TooManyLedgers(name, count=count + 1, count_max=count, what="ledgers of a task")

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
        raise RowsUnordered(name, partition=partition, event_time=late, before=before)


def _times(columns: Columns, rows: array[int] | None) -> Sequence[int] | None:
    """Return the event times of messages in their order; None: one has none."""
    times = columns.event_times
    if times is None or (columns.event_time_validity is not None and _has_null(columns, rows)):
        return None
    return times if rows is None else list(map(times.__getitem__, rows))


def _has_null(columns: Columns, rows: array[int] | None) -> bool:
    missing = {i for i, time in enumerate(columns.event_times_list()) if time is None}
    return bool(missing if rows is None else missing.intersection(rows))
