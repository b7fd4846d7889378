"""A replay in parts: what a worker does of it, in whatever process.

    part: marks of all lanes ──► merged ──► shared out ──► a staged ledger of each partition

A part is what comes between two cuts in the order of the replay (cuts.py): so one part behind
the other is the same sequence as if one process had sent it all, in each partition of the
target too. Nothing that a worker does is seen before its part is shown (rounds.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.client import Client
from ledger_client.replay.order import time_of
from ledger_client.replay.shares import indexes_of, shares_of
from ledger_client.replay.source import open_source
from ledger_client.replay.target import WHOLE, sent_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.jobs.staged_piece import StagedPiece
from ledger_client.topics.jobs.staged_writer import Part, open_staged_writer
from ledger_client.topics.jobs.staging import JobStage
from ledger_client.topics.reading.merging import Run
from metadata.replays import LaneMark, Order, Sent
from metadata.topics import TopicRecord
from native.checksum import Checksum


class PartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a replay. Plain values: it can be pickled."""

    index: int
    """of the part in its round; parts are shown in this order"""
    begin: list[LaneMark]
    end: list[LaneMark]
    until: int | None = None
    """the time at which it was cut, in the unit of the order: all of it is before; None: the cut
    is right whatever the times are"""


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a part."""

    index: int
    pieces: list[StagedPiece] = []
    sent: list[Sent] = []
    """checksums by partition of the target, and of all"""
    bytes: int = 0
    passed: int | None = None
    """a time in it that is not before its end: the cut is wrong, and nothing was written"""


class PartWork(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a round have in common. Plain values."""

    topics: Sequence[TopicRecord]
    order: Order
    stage: JobStage
    run: str
    partitions: int
    one_to_one: bool
    keep_ids: bool


async def copy_part(
    source: TopicClient, target: Client, work: PartWork, plan: PartPlan, *, attempt: int = 0
) -> PartResult:
    """Stage the messages of a part.

    A chunk of the source and what is sent and not acknowledged are in memory, however large
    the part is.

    Raises:
        LedgerError: as reading, and as StagedWriter.write().
    """
    from ledger_client.replay.columns import Given, with_ids  # pyarrow

    indexes = indexes_of(work.partitions)
    watch = _Watch(work.order, plan.until)
    sums: dict[int, Checksum] = {WHOLE: Checksum()}
    size = 0
    part = Part(index=plan.index, attempt=attempt)
    async with (
        open_staged_writer(target, work.stage, part=part, producer=work.run) as writer,
        open_source(
            source, work.topics, work.order, begin=plan.begin, end=plan.end, watch=watch.see
        ) as lanes,
    ):
        while (chunk := await lanes.chunk()) is not None:
            if watch.passed is not None:
                return PartResult(index=plan.index, passed=watch.passed)
            batch = chunk.record_batch()
            given = Given(with_ids(batch) if work.keep_ids else batch)
            columns = given.columns
            sums[WHOLE] = sums[WHOLE].add(columns)
            for index, rows in shares_of(batch, columns, indexes, one_to_one=work.one_to_one):
                sums[index] = sums.get(index, Checksum()).add(columns, rows)
                await writer.write(index, columns, rows)
            size += given.size
        pieces = await writer.finish()
    return PartResult(index=plan.index, pieces=pieces, sent=sent_of(sums), bytes=size)


class _Watch:
    """Sees the messages of a part, and notes a time that belongs behind its end."""

    def __init__(self, order: Order, until: int | None) -> None:
        self.passed: int | None = None
        self._order = order
        self._until = until

    def see(self, run: Run) -> None:
        """Look at the times of messages that come next."""
        if self._until is None or self.passed is not None:
            return
        for piece in run.slices:
            if self._order == "event-time":
                last = piece.batch.rising_times[piece.stop - 1]
            else:
                last = time_of(piece)
            if last >= self._until:
                self.passed = last
                return
