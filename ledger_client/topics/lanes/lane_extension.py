"""A lane taken for a moment, to have ledgers that a job staged put behind its last.

    lease ──► claim: epoch + 1 ──► recover the last ledger, read the state ──► ops

The lane is taken as its next writer would take it, so whoever wrote it before adds nothing any
more. It is not written: what puts the ledgers there is one transaction, together with that of
other lanes. Whoever takes the lane next goes on behind them.

A job takes the lowest lane that is free, as a producer would that shares the partition, so
lanes do not become more by jobs. One whose last ledger has a higher id than those to come is
passed over: ids of messages rise along a lane.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec

from ledger_client.background import Background
from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.errors import EventTimeBack, RowsUnordered
from ledger_client.topics.jobs.staged_piece import StagedPiece
from ledger_client.topics.jobs.staging import JobStage, Staged, create_staged
from ledger_client.topics.lanes.lane_choice import hold_lane
from ledger_client.topics.lanes.lane_lease import LaneLease
from ledger_client.topics.lanes.lane_ledgers import LaneEnd, find_end
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import greater
from metadata.clock import StoreClock
from metadata.store import Op, Put
from metadata.topics import LaneLedger, TopicRecord, encode_row, lane_key, lane_ledger_key


class LaneExtension:
    """A lane that is held. Made by hold_extension()."""

    def __init__(self, rows: LaneRows, end: LaneEnd, clock: StoreClock) -> None:
        self.rows = rows
        self._clock = clock
        self.is_ordered = rows.topic.order == "event-time"
        self._end = end

    @property
    def wants_state(self) -> bool:
        """Whether the lane knows of producers what staged ledgers do not tell."""
        state = self._end.state
        state.forget(self._clock.now_ms())
        return bool(state.producers or state.routes)

    def check_times(self, pieces: Sequence[StagedPiece]) -> None:
        """Return if a lane ordered by event time can go on with *pieces*, in this order.

        Raises:
            EventTimeBack: a time is lower than one that the lane has.
            RowsUnordered: the pieces overlap, or come in another order.
        """
        topic, rows = self.rows.topic, self.rows
        last = self._end.state.last_event_time
        for number, piece in enumerate(pieces):
            first = piece.figures.first_event_time
            if last is not None and first is not None and first < last:
                if number > 0:
                    raise RowsUnordered(
                        topic.name, partition=rows.partition, event_time=first, before=last
                    )
                raise EventTimeBack(
                    topic.name,
                    partition=rows.partition,
                    lane=rows.lane,
                    event_time=first,
                    last_event_time=last,
                )
            last = greater(last, piece.figures.last_event_time)

    async def state_piece(
        self, client: Client, stage: JobStage, pieces: Sequence[StagedPiece]
    ) -> StagedPiece:
        """Stage a ledger that tells what the lane knew, to come behind *pieces*."""
        state = self._end.state.copy()
        for piece in pieces:
            state.last_event_time = greater(state.last_event_time, piece.figures.last_event_time)
        version = self._end.next_version + sum(piece.entries for piece in pieces)
        state.begin(epoch=self.rows.record.epoch, base_version=version)
        async with create_staged(client, stage, partition=self.rows.partition) as ledger:
            await ledger.append(state.encode(self._clock.now_ms()))
        return StagedPiece(
            ledger_id=ledger.id,
            partition=self.rows.partition,
            entries=1,
            size=ledger.metadata.length,
            created_ms=ledger.metadata.created_ms,
            figures=state.figures,
        )

    def ops(self, pieces: Sequence[StagedPiece], staged: Mapping[int, Staged]) -> list[Op]:
        """Return what puts *pieces* behind the lane's last ledger, and shows them.

        The transaction conflicts if somebody took the lane, or gave one of them up.
        """
        rows, record = self.rows, self.rows.record
        last_time = record.last_event_time
        number, version = record.current, self._end.next_version
        ops: list[Op] = []
        if self._end.unclosed is not None and self._end.end is not None:
            closed = self._end.end.close(self._end.unclosed, self._clock.now_ms())
            ops.append(Put(self._key(number), encode_row(closed)))
            last_time = greater(last_time, closed.last_event_time)
        for piece in pieces:
            number += 1
            row = self._row(piece, version, last_time)
            ops += [Put(self._key(number), encode_row(row), 0), staged[piece.ledger_id].shown]
            last_time = greater(last_time, piece.figures.last_event_time)
            version += piece.entries
        after = msgspec.structs.replace(
            record, current=number, next_version=version, last_event_time=last_time
        )
        key = lane_key(rows.topic.uid, rows.partition, rows.lane)
        return [Put(key, encode_row(after), rows.version), *ops]

    def _row(self, piece: StagedPiece, version: int, last_time: int | None) -> LaneLedger:
        figures = piece.figures
        first_time = figures.first_event_time
        is_shared = self.is_ordered and first_time is not None and first_time == last_time
        return LaneLedger(
            ledger_id=piece.ledger_id,
            state="closed",
            base_version=version,
            epoch=self.rows.record.epoch,
            created_ms=piece.created_ms,
            closed_ms=self._clock.now_ms(),
            entries=piece.entries,
            size=piece.size,
            shares_first=is_shared,
            **msgspec.structs.asdict(figures),
        )

    def _key(self, number: int) -> str:
        rows = self.rows
        return lane_ledger_key(rows.topic.uid, rows.partition, rows.lane, number)


@asynccontextmanager
async def hold_extension(
    client: Client, topic: TopicRecord, partition: int, *, first_id: int
) -> AsyncIterator[LaneExtension]:
    """Take a lane of a partition for the block, to extend it by ledgers from *first_id* on.

    Raises:
        ProducerBusy: somebody has the whole partition.
        ProducerFenced: somebody took the lane meanwhile.
        NoSuchTopic: the topic was deleted.
        RecoveryIncomplete, ReplicasUnavailable: the bookies of its last ledger are away.
        TailLost: they are there, and none has the end of it: a person decides.
        MetadataUnavailable: the store did not answer in time.
    """
    async with AsyncExitStack() as stack:
        while True:
            lease = await stack.enter_async_context(
                hold_lane(
                    client.store,
                    topic,
                    partition,
                    access="shared",
                    producer="",
                    lane=None,
                    limit_s=client.options.metadata_timeout_s,
                    is_closing=True,
                )
            )
            rows = LaneRows(client.catalogue, topic, partition, lease.lane)
            await rows.claim("", writer=lease.owner)
            last = await rows.row(rows.record.current)
            if last is None or last.ledger_id < first_id:
                break
        nursery = await stack.enter_async_context(Background())
        nursery.start_soon(_keep, lease, rows)
        yield LaneExtension(rows, await find_end(client, rows), client.clock)


async def _keep(lease: LaneLease, rows: LaneRows) -> None:
    """Keep the lease; whoever shows something learns by itself that it cannot."""
    with suppress(LedgerError):
        await lease.keep(rows)
