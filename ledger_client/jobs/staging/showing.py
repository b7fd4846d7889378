"""Show what a job staged: one transaction adds all of its ledgers to their lanes, or none.

    sealed ledgers ──► a lane of each partition ──► ops of all lanes ──► one transaction,
                       held by LaneExtension                             staged rows deleted

The transaction names the version of every lane and of every staged row. It succeeds only while
the lanes are held and none of the ledgers was discarded; after any other change it is built
again from the lanes on. If its outcome is unknown, the staged rows decide: after success they
are gone and the ledgers are still there.

A lane is taken as its next writer would take it:

    lease ──► claim: epoch + 1 ──► recover the last ledger, read the lane's state ──► ops

so its previous writer is fenced. The job takes the lowest free lane, as a producer that shares
the partition would, so jobs add no lanes. It skips a lane whose last ledger id is higher than
those to be added, since message ids rise along a lane.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import (
    EventTimeBack,
    JobLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    NoSuchTopic,
    ProducerBusy,
    ProducerFenced,
    Retryable,
    SparkError,
    TopicError,
)
from ledger_client.jobs.staging.job import (
    JobStage,
    SealedLedger,
    Staged,
    create_staged,
    staged_ledgers,
)
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.lanes.lane_end import find_end
from ledger_client.topics.lanes.lane_lease import LaneLease, hold_lane
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneEnd, greater
from ledger_client.topics.retention.holdings import read_owners
from metadata.clock import StoreClock
from metadata.store import OPS_MAX, Check, Op, Put, Versioned
from metadata.topics import (
    LaneLedger,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
)

SHOW_S = 120.0
"""Time limit of all attempts together."""
PAUSE_S = 0.5
LANE_OPS = 2
"""Ops of a lane beside two for each ledger: its record, and a ledger that was left open."""
OTHER_OPS = 4
"""A check of the topic's record, and the mark."""


class CommitMark(Protocol):
    """A row beside the topic that records what a job has shown, put by the same transaction."""

    def key(self, topic: TopicRecord) -> str:
        """Return the key of the row."""

    def put(self, topic: TopicRecord, found: Versioned | None) -> Put | None:
        """Return the row that follows *found*, or `None` if *found* shows that all was shown.

        Raises:
            LedgerError: this job cannot follow what *found* records.
        """


class Showing:
    """Shows the ledgers of one job.

    Args:
        ledgers: whose bookies and metadata.
        stage: the job's.
        sealed: in the order in which they are added to the lanes. Other staged ledgers of the
            job stay staged.
        mark: the row that records it, put by the same transaction.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        stage: JobStage,
        sealed: Sequence[SealedLedger],
        mark: CommitMark | None = None,
    ) -> None:
        self._ledgers = ledgers
        self._stage = stage
        self._topics = TopicCatalogue(ledgers.store, timeout_s=ledgers.options.metadata_timeout_s)
        self._mark = mark
        self._sealed: dict[int, list[SealedLedger]] = {}
        for ledger in sealed:
            self._sealed.setdefault(ledger.partition, []).append(ledger)
        self._count = len(sealed)
        self._is_doubtful = False

    async def run(self) -> bool:
        """Show all ledgers; return False, and do nothing, if the mark shows they were shown before.

        Raises:
            LedgerError: the mark cannot follow the one that is there, see CommitMark.
            JobLost: a ledger was discarded, since the job was taken for dead.
            EventTimeBack, SparkError: see LaneExtension.check_times().
            TopicError: more than one transaction can show.
            ProducerBusy: a producer still holds a whole partition after SHOW_S.
            NoSuchTopic: the topic was deleted.
            MessagesLost: the end of a lane is lost, and an operator must decide.
            MetadataUnavailable: the outcome is unknown; if the transaction failed, the ledgers
                are still staged. Also raised when lanes kept changing for SHOW_S.
            Retryable: bookies of a lane's last ledger are still away after SHOW_S.
        """
        self._check_count()
        until = trio.current_time() + SHOW_S
        while True:
            try:
                shown = await self._attempt()
                if shown is not None:
                    return shown
            except (ProducerBusy, ProducerFenced, Retryable):
                if trio.current_time() >= until:
                    raise
            if trio.current_time() >= until:
                reason = f"its lanes kept changing for {SHOW_S:g} s; the job's result is not shown"
                raise MetadataUnavailable(f"metadata: {reason}")
            await trio.sleep(PAUSE_S)

    async def _attempt(self) -> bool | None:
        """Return True if shown now, False if shown before, `None` if another change interfered."""
        ops: list[Op] = []
        if self._mark is not None:
            put = await self._marking(self._mark)
            if put is None:
                return False
            ops.append(put)
        staged = await self._staged()
        if staged is None:
            return True
        topic, topic_version = await self._topic()
        async with AsyncExitStack() as stack:
            ops.append(Check(topic_key(topic.name), topic_version))
            for partition in sorted(self._sealed):
                first_id = self._sealed[partition][0].ledger_id
                lane = await stack.enter_async_context(
                    hold_extension(self._ledgers, topic, partition, first_id=first_id)
                )
                ops += await self._extend(lane, self._sealed[partition], staged)
            self._is_doubtful = True
            done = await self._ledgers.catalogue.transact(ops)
            self._is_doubtful = False
        return None if done is None else True

    async def _extend(
        self, lane: LaneExtension, sealed: Sequence[SealedLedger], staged: Mapping[int, Staged]
    ) -> list[Op]:
        if lane.is_ordered:
            lane.check_times(sealed)
        if not lane.wants_state:
            return lane.ops(sealed, staged)
        state = await lane.state_ledger(self._ledgers, self._stage, sealed)
        return lane.ops([*sealed, state], await self._by_id())

    async def _staged(self) -> Mapping[int, Staged] | None:
        """Return the staged rows, or `None` if all is shown already. Raises JobLost."""
        staged = await self._by_id()
        wanted = [each.ledger_id for sealed in self._sealed.values() for each in sealed]
        missing = [ledger_id for ledger_id in wanted if ledger_id not in staged]
        if not missing:
            return staged
        if self._is_doubtful and await self._is_there(missing[0]):
            return None
        reason = f"ledger {missing[0]}, which it staged, was discarded"
        raise JobLost(self._stage.topic.name, job_id=self._stage.job_id, reason=reason)

    async def _is_there(self, ledger_id: int) -> bool:
        """Whether a ledger without a staged row exists, and so is part of the topic."""
        try:
            await self._ledgers.catalogue.get(ledger_id)
        except NoSuchLedger:
            return False
        return True

    async def _by_id(self) -> dict[int, Staged]:
        found = await staged_ledgers(self._ledgers, self._stage.topic.uid, self._stage.job_id)
        return {each.ledger.ledger_id: each for each in found}

    async def _topic(self) -> tuple[TopicRecord, int]:
        topic, version = await self._topics.get(self._stage.topic.name)
        if topic.uid != self._stage.topic.uid:
            raise NoSuchTopic(topic.name)
        return topic, version

    async def _marking(self, mark: CommitMark) -> Put | None:
        """Return the op for the mark, or `None` if the present mark shows that all is shown."""
        topic = self._stage.topic
        with translated(self._ledgers.options.metadata_timeout_s):
            return mark.put(topic, await self._ledgers.store.get(mark.key(topic)))

    def _check_count(self) -> None:
        lanes = len(self._sealed)
        count_max = ledgers_max(lanes)
        if self._count > count_max:
            raise TopicError.too_many(
                self._stage.topic.name,
                count=self._count,
                count_max=max(count_max, 0),
                what=f"ledgers in {lanes} partitions",
            )


def ledgers_max(partitions: int) -> int:
    """Return how many ledgers one transaction can show; below 0, the lanes alone are too many."""
    # Each lane may need one more ledger, for its state.
    return (OPS_MAX - OTHER_OPS - partitions * LANE_OPS) // 2 - partitions


class LaneExtension:
    """A lane that is held. Made by hold_extension()."""

    def __init__(self, rows: LaneRows, end: LaneEnd, clock: StoreClock) -> None:
        self.rows = rows
        self._clock = clock
        self.is_ordered = rows.topic.order == "event-time"
        self._end = end

    @property
    def wants_state(self) -> bool:
        """Whether the lane's state has producers that staged ledgers do not record."""
        state = self._end.state
        state.forget(self._clock.now_ms())
        return bool(state.producers or state.routes)

    def check_times(self, sealed: Sequence[SealedLedger]) -> None:
        """Return if the lane stays ordered by event time with *sealed* added in this order.

        Raises:
            EventTimeBack: the first ledger begins before the lane's last event time.
            SparkError: the ledgers overlap, or are in another order.
        """
        topic, rows = self.rows.topic, self.rows
        last = self._end.state.last_event_time
        for number, ledger in enumerate(sealed):
            first = ledger.figures.first_event_time
            if last is not None and first is not None and first < last:
                if number > 0:
                    raise SparkError.unordered(
                        topic.name, partition=rows.partition, event_time=first, before=last
                    )
                raise EventTimeBack(
                    topic.name,
                    partition=rows.partition,
                    lane=rows.lane,
                    event_time=first,
                    last_event_time=last,
                )
            last = greater(last, ledger.figures.last_event_time)

    async def state_ledger(
        self, ledgers: Ledgers, stage: JobStage, sealed: Sequence[SealedLedger]
    ) -> SealedLedger:
        """Stage a ledger with the lane's state, to be added after *sealed*."""
        state = self._end.state.copy()
        for ledger in sealed:
            state.last_event_time = greater(state.last_event_time, ledger.figures.last_event_time)
        version = self._end.next_version + sum(ledger.entries for ledger in sealed)
        state.begin(epoch=self.rows.record.epoch, base_version=version)
        async with create_staged(ledgers, stage, partition=self.rows.partition) as writer:
            await writer.append_many([state.encode(self._clock.now_ms())])
        return SealedLedger(
            ledger_id=writer.id,
            partition=self.rows.partition,
            entries=1,
            size=writer.metadata.length,
            created_ms=writer.metadata.created_ms,
            figures=state.figures,
        )

    def ops(self, sealed: Sequence[SealedLedger], staged: Mapping[int, Staged]) -> list[Op]:
        """Return the ops that add *sealed* to the end of the lane and delete their staged rows.

        The transaction conflicts if another writer took the lane or a ledger was discarded.
        """
        rows, record = self.rows, self.rows.record
        last_time = record.last_event_time
        number, version = record.current, self._end.next_version
        ops: list[Op] = []
        if self._end.unclosed is not None and self._end.end is not None:
            closed = self._end.end.close(self._end.unclosed, self._clock.now_ms())
            ops.append(Put(self._key(number), encode_row(closed)))
            last_time = greater(last_time, closed.last_event_time)
        for ledger in sealed:
            number += 1
            row = self._row(ledger, version, last_time)
            ops += [Put(self._key(number), encode_row(row), 0), staged[ledger.ledger_id].shown]
            last_time = greater(last_time, ledger.figures.last_event_time)
            version += ledger.entries
        after = msgspec.structs.replace(
            record, current=number, next_version=version, last_event_time=last_time
        )
        key = lane_key(rows.topic.uid, rows.partition, rows.lane)
        return [Put(key, encode_row(after), rows.version), *ops]

    def _row(self, ledger: SealedLedger, version: int, last_time: int | None) -> LaneLedger:
        figures = ledger.figures
        first_time = figures.first_event_time
        is_shared = self.is_ordered and first_time is not None and first_time == last_time
        return LaneLedger(
            ledger_id=ledger.ledger_id,
            state="closed",
            base_version=version,
            epoch=self.rows.record.epoch,
            created_ms=ledger.created_ms,
            closed_ms=self._clock.now_ms(),
            entries=ledger.entries,
            size=ledger.size,
            shares_first=is_shared,
            **msgspec.structs.asdict(figures),
        )

    def _key(self, number: int) -> str:
        rows = self.rows
        return lane_ledger_key(rows.topic.uid, rows.partition, rows.lane, number)


@asynccontextmanager
async def hold_extension(
    ledgers: Ledgers, topic: TopicRecord, partition: int, *, first_id: int
) -> AsyncIterator[LaneExtension]:
    """Hold a lane of a partition for the block, to add ledgers with ids from *first_id* on.

    Raises:
        ProducerBusy: a producer holds the whole partition.
        ProducerFenced: another writer took the lane meanwhile.
        NoSuchTopic: the topic was deleted.
        ReplicasUnavailable: the bookies of its last ledger are away.
        MessagesLost: they answer, and none has its end; an operator must decide.
        MetadataUnavailable: the store did not answer in time.
    """
    async with AsyncExitStack() as stack:
        while True:
            lease = await stack.enter_async_context(
                hold_lane(
                    ledgers.store,
                    topic,
                    partition,
                    access="shared",
                    producer="",
                    lane=None,
                    limit_s=ledgers.options.metadata_timeout_s,
                    is_closing=True,
                )
            )
            rows = LaneRows(ledgers.catalogue, topic, partition, lease.lane)
            await rows.claim("", writer=lease.owner)
            last = await rows.row(rows.record.current)
            if last is None or last.ledger_id < first_id:
                break
        nursery = await stack.enter_async_context(Background())
        nursery.start_soon(_keep, lease, rows)
        yield LaneExtension(rows, await find_end(ledgers, rows), ledgers.clock)


async def _keep(lease: LaneLease, rows: LaneRows) -> None:
    """Renew the lease; without it the transaction that shows the ledgers fails."""
    with suppress(LedgerError):
        await lease.keep(rows)


async def check_free(ledgers: Ledgers, topic: TopicRecord) -> None:
    """Raise ProducerBusy if a producer holds a whole partition now."""
    with translated(ledgers.options.metadata_timeout_s):
        owners = await read_owners(ledgers.store, topic)
    for (partition, lane), owner in owners.items():
        if not (owner.shared or owner.closing):
            name = f"producer {owner.producer}" if owner.producer else "a producer"
            who = f"{name} (process {owner.process_id} on {owner.host})"
            raise ProducerBusy(topic.name, partition=partition, lane=lane, owner=who)
