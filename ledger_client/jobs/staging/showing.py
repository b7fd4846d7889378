"""Show what a job staged: all of its ledgers become part of their lanes at once, or none.

    sealed ledgers ──► a lane of each partition ──► ops of all lanes ─┬─► one transaction
                       held by LaneExtension                          └─► steps, and a pointer

A small result is shown by one transaction, which names the version of every lane and of every
staged row, and deletes the staged rows. A large one is put in steps that no reader counts, and
shown by one change of a pointer (metadata/pointers.py); then its rows are settled. Either way it
is shown only while the lanes are held and none of the ledgers was discarded; after any other
change all is built again from the lanes on. If the outcome is unknown, the pointer decides, or
the staged rows: after success they are gone and the ledgers are still there.

A lane is taken as its next writer would take it:

    lease ──► claim: epoch + 1 ──► recover the last ledger, read the lane's state ──► ops

so its previous writer is fenced. The job takes the lowest free lane, as a producer that shares
the partition would, so jobs add no lanes. It skips a lane whose last ledger id is higher than
those to be added, since message ids rise along a lane.

In a topic with timesync all that is shown at once has one timestamp, in the rows of the ledgers:

    lanes held ──► one of them holds ticks ──► timestamp ──► rows ──► shown, ticks go on

The timestamp is greater than all that the lanes have, since their writers were fenced before. It
is allotted after ticks are held, so the leader, which looks for that after it has taken the
timestamp of a tick, makes no tick at it or above before the messages are there. If the job dies,
the leader claims the lane, and after that nothing of the job can be shown.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple, Protocol

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import (
    EventTimeBack,
    JobLost,
    LedgerError,
    MetadataBroken,
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
from ledger_client.ledgers.leader_calls import LeaderCalls
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.lanes.lane_end import find_end
from ledger_client.topics.lanes.lane_lease import LaneLease, hold_lane
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneEnd, greater
from ledger_client.topics.retention.holdings import read_owners
from ledger_client.topics.timestamps import Timestamps
from metadata.clock import StoreClock
from metadata.errors import VersionConflict
from metadata.paged import read_value, stage_value
from metadata.pointers import STEP_COUNT, finish, open_pointer
from metadata.store import OPS_MAX, Check, Op, Put, Versioned, fits
from metadata.time.tick_rows import lanes_changed
from metadata.topics import (
    LaneLedger,
    LaneRecord,
    PendingEnd,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
)

SHOW_S = 120.0
"""Time limit of all attempts together."""
PAUSE_S = 0.5
SETTLE_S = 120.0
"""Time limit for settling or undoing what a pointer decided; the leader does the rest."""
LET_GO_S = 2.0
"""Time limit for letting ticks go on after a failure; the leader does that too, later."""
SHOWN_MAX = 100_000
"""Ledgers that a job can show; they are all in memory, about a kilobyte each."""
DIRECT_OPS_MAX = OPS_MAX
"""A result with more ops is shown by a pointer."""
_log = logging.getLogger(__name__)


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
            TopicError: more than SHOWN_MAX ledgers.
            ProducerBusy: a producer still holds a whole partition after SHOW_S.
            NoSuchTopic: the topic was deleted.
            MessagesLost: the end of a lane is lost, and an operator must decide.
            MetadataUnavailable: the outcome is unknown; if the transaction failed, the ledgers
                are still staged. Also raised when lanes kept changing for SHOW_S, or nobody
                allots the timestamp.
            MetadataBroken: the timestamp is not above those of a lane.
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
        if await self._finish():
            return True  # by an attempt whose outcome was unknown
        ops: list[Op] = []
        if self._mark is not None:
            marking = await self._marking(self._mark)
            if marking is None:
                return False
            ops += marking
        staged = await self._staged()
        if staged is None:
            return True
        topic, topic_version = await self._topic()
        check = Check(topic_key(topic.name), topic_version)
        async with AsyncExitStack() as stack:
            additions = await self._additions(topic, stack)
            wanted = {row.ledger_id for each in additions for row in each.rows}
            if not wanted <= staged.keys():  # lanes' states were staged meanwhile
                staged = await self._by_id()
            if not wanted <= staged.keys():
                return None
            ops += lanes_changed(topic)
            direct = [*ops, check, *(op for each in additions for op in each.direct(staged))]
            if len(direct) <= DIRECT_OPS_MAX and fits(direct):
                return await self._show(direct)
            return await self._show_by_pointer([*ops, check], check, additions, staged)

    async def _show(self, ops: Sequence[Op]) -> bool | None:
        self._is_doubtful = True
        done = await self._ledgers.catalogue.transact(ops)
        self._is_doubtful = False
        return None if done is None else True

    async def _show_by_pointer(
        self,
        ops: Sequence[Op],
        check: Check,
        additions: Sequence[LaneAddition],
        staged: Mapping[int, Staged],
    ) -> bool | None:
        """Put the rows of all lanes, and show them with *ops* in one transaction."""
        catalogue, uid = self._ledgers.catalogue, self._stage.topic.uid
        try:
            pointer = await catalogue.ask(
                lambda store: open_pointer(store, uid, self._stage.job_id, [check])
            )
        except VersionConflict:
            return None
        for each in additions:
            versions = await catalogue.transact([pointer.check, *each.locking(pointer.name)])
            if versions is None:
                return None
            locked = Check(each.key, versions[1])
            for step in each.steps(pointer.name, staged):
                if await catalogue.transact([pointer.check, locked, *step]) is None:
                    return None
        if await self._show([pointer.shown, *ops]) is None:
            return None
        try:
            await self._finish()
        except LedgerError as failure:  # readers see it all; the leader settles the rest
            _log.warning("the result of a job is shown, and settled later: %s", failure)
        return True

    async def _finish(self) -> bool:
        """End an attempt by pointer; return True if it has shown the result."""
        with translated(SETTLE_S):
            return await finish(self._ledgers.store, self._stage.topic.uid, self._stage.job_id)

    async def _additions(self, topic: TopicRecord, stack: AsyncExitStack) -> list[LaneAddition]:
        """Hold the lanes until *stack* ends, and return what is added to each."""
        extended: list[tuple[LaneExtension, Sequence[SealedLedger]]] = []
        for partition, sealed in sorted(self._sealed.items()):
            lane = await stack.enter_async_context(
                hold_extension(self._ledgers, topic, partition, first_id=sealed[0].ledger_id)
            )
            extended.append((lane, await self._extend(lane, sealed)))
        stamp = 0
        if topic.timesync and extended:
            await stack.enter_async_context(held_ticks(extended[0][0].rows))
            stamp = await _allot(self._ledgers)
        return [lane.addition(sealed, stamp) for lane, sealed in extended]

    async def _extend(
        self, lane: LaneExtension, sealed: Sequence[SealedLedger]
    ) -> Sequence[SealedLedger]:
        """Return the ledgers to be added to a lane, the one with its state included."""
        if lane.is_ordered:
            lane.check_times(sealed)
        if not lane.wants_state:
            return sealed
        return [*sealed, await lane.state_ledger(self._ledgers, self._stage, sealed)]

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

    async def _marking(self, mark: CommitMark) -> list[Op] | None:
        """Return the ops that put the mark, or `None` if it shows that all was shown before."""
        topic, store = self._stage.topic, self._ledgers.store
        with translated(self._ledgers.options.metadata_timeout_s):
            put = mark.put(topic, await read_value(store, mark.key(topic)))
            if put is None:
                return None
            value = await stage_value(store, put.key, put.value)
        return [Put(put.key, value.row, put.expected), *value.checks]

    def _check_count(self) -> None:
        if self._count > SHOWN_MAX:
            raise TopicError.too_many(
                self._stage.topic.name,
                count=self._count,
                count_max=SHOWN_MAX,
                what="ledgers of a job",
            )


class AddedRow(NamedTuple):
    """The row of a ledger that is added to a lane."""

    key: str
    ledger: LaneLedger

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self.ledger.ledger_id


class LaneAddition(NamedTuple):
    """Ledgers to be added to the end of a lane that is held."""

    key: str
    """of the lane's record"""
    version: int
    """of that record"""
    before: LaneRecord
    """the record without the ledgers, but with the lane's last ledger closed"""
    end: PendingEnd
    """the end of the lane with them"""
    closing: list[Op]
    """close the lane's last ledger, if that was left open"""
    rows: list[AddedRow]

    def direct(self, staged: Mapping[int, Staged]) -> list[Op]:
        """Return the ops that add the ledgers and delete their staged rows.

        The transaction conflicts if another writer took the lane or a ledger was discarded.
        """
        after = msgspec.structs.replace(self.before, pending=self.end).ended
        ops: list[Op] = [Put(self.key, encode_row(after), self.version), *self.closing]
        for row in self.rows:
            ops += [Put(row.key, encode_row(row.ledger), 0), staged[row.ledger_id].shown]
        return ops

    def locking(self, pointer: str) -> list[Op]:
        """Return the ops that give the lane a pending end; the first is for the lane's record."""
        end = msgspec.structs.replace(self.end, pointer=pointer)
        locked = msgspec.structs.replace(self.before, pending=end)
        return [Put(self.key, encode_row(locked), self.version), *self.closing]

    def steps(self, pointer: str, staged: Mapping[int, Staged]) -> Iterator[list[Op]]:
        """Yield the ops that put the rows where the *pointer* shows them, step by step."""
        for start in range(0, len(self.rows), STEP_COUNT):
            ops: list[Op] = []
            for key, ledger in self.rows[start : start + STEP_COUNT]:
                row = msgspec.structs.replace(ledger, state="prepared", pointer=pointer)
                ops.append(Put(key, encode_row(row), 0))
                ops.append(staged[ledger.ledger_id].named(pointer))
            yield ops


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

    def addition(self, sealed: Sequence[SealedLedger], stamp: int = 0) -> LaneAddition:
        """Return the rows that add *sealed* to the end of the lane, all with one timestamp.

        Raises:
            MetadataBroken: the lane has a later timestamp.
        """
        self._check_stamp(stamp)
        record, version = self.rows.record, self._end.next_version
        number, last_time = record.current, record.last_event_time
        closing: list[Op] = []
        if self._end.unclosed is not None and self._end.end is not None:
            closed = self._end.end.close(self._end.unclosed, self._clock.now_ms())
            closing.append(Put(self._key(number), encode_row(closed)))
            last_time = greater(last_time, closed.last_event_time)
        before = msgspec.structs.replace(record, next_version=version, last_event_time=last_time)
        rows: list[AddedRow] = []
        for ledger in sealed:
            number += 1
            row = self._row(ledger, version, last_time)
            rows.append(AddedRow(self._key(number), stamped(row, stamp)))
            last_time = greater(last_time, ledger.figures.last_event_time)
            version += ledger.entries
        end = PendingEnd(
            pointer="", current=number, next_version=version, last_event_time=last_time
        )
        place = self.rows.topic.uid, self.rows.partition, self.rows.lane
        return LaneAddition(lane_key(*place), self.rows.version, before, end, closing, rows)

    def _check_stamp(self, stamp: int) -> None:
        last = self._end.state.figures.last_timestamp
        if 0 < stamp <= last:
            raise MetadataBroken(
                f"the oracle allotted timestamp {stamp}, but a lane of {self.rows.topic.name} has "
                f"{last}: its time was set back"
            )

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
                    ledgers.session,
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


def stamped(row: LaneLedger, stamp: int) -> LaneLedger:
    """Return the row of a ledger whose messages have one timestamp, 0 for none."""
    if not row.messages:
        return row
    return msgspec.structs.replace(row, stamp=stamp, first_timestamp=stamp, last_timestamp=stamp)


@asynccontextmanager
async def held_ticks(rows: LaneRows) -> AsyncIterator[None]:
    """Hold the ticks of a lane's topic until the lane's record changes, or the block ends.

    Raises:
        ProducerFenced: another client has the lane by now.
        MetadataUnavailable: the store did not answer; the leader lets ticks go on.
    """
    if not await rows.hold_ticks():
        raise ProducerFenced(rows.topic.name, partition=rows.partition, lane=rows.lane)
    try:
        yield
    finally:
        # After the lane was extended its record has another version, and this changes nothing.
        with trio.move_on_after(LET_GO_S, shield=True), suppress(LedgerError):
            await rows.hold_ticks(hold=False)


async def _allot(ledgers: Ledgers) -> int:
    """Return a timestamp greater than all that anybody has. Raises MetadataUnavailable."""
    calls = LeaderCalls(ledgers.store, ledgers.bookies)
    async with Background() as nursery:
        limit_s = ledgers.options.metadata_timeout_s
        timestamps = Timestamps(calls, nursery, ledgers.figures, timeout_s=limit_s)
        return (await timestamps.allocate()).first


async def _keep(lease: LaneLease, rows: LaneRows) -> None:
    """Renew the lease; without it the transaction that shows the ledgers fails."""
    with suppress(LedgerError):
        await lease.keep(rows)


async def check_free(ledgers: Ledgers, topic: TopicRecord) -> None:
    """Return if a job may write the topic now.

    Raises:
        ProducerBusy: a producer holds a whole partition.
    """
    with translated(ledgers.options.metadata_timeout_s):
        owners = await read_owners(ledgers.store, topic)
    for (partition, lane), owner in owners.items():
        if not (owner.shared or owner.closing):
            name = f"producer {owner.producer}" if owner.producer else "a producer"
            who = f"{name} (process {owner.process_id} on {owner.host})"
            raise ProducerBusy(topic.name, partition=partition, lane=lane, owner=who)
