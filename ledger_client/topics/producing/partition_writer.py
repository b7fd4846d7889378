"""Drives one partition of a producer: performs the machine's actions with trio and a lane.

    put ──► machine ──► batches ──► encode ──► lane.append ──► machine ──► tickets
                                    up to APPENDS_MAX calls at a time

The states and their transitions are in partition_machine.py. The partitions of a producer share
its room and its linger, which are here too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeVar

import trio

from ledger_client.errors import LedgerError, NotSent, ProducerClosed, ProducerFailed, SendUnknown
from ledger_client.figures import SendFigures
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.lane_reports import LaneReports
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.routes import Route
from ledger_client.topics.producing.batch import NOWHERE, UNKNOWN, Batch
from ledger_client.topics.producing.lane_progress import Progress
from ledger_client.topics.producing.line import Line
from ledger_client.topics.producing.open_lane import Lane, OpenLane, TimestampSource
from ledger_client.topics.producing.partition_machine import PartitionMachine, Rules
from ledger_client.topics.producing.partition_states import Action, LanePhase
from ledger_client.topics.producing.room import Room
from metadata.time.calls import LaneReport
from native.batch import Columns, Compression, encode

NO_ROOM = "the buffer was full of messages that were not acknowledged"
UNHEARD_MAX = 1000
"""Failed batches that are kept while no task waits for them; flush() raises one failure."""
T = TypeVar("T")


class Encoding(NamedTuple):
    """The same for all batches of a producer."""

    compression: Compression
    batched: bool
    producer_name: str
    producer: bytes
    """the name, encoded"""
    now_ms: Callable[[], int]
    """the time that batches are stamped with: the store's, whatever this host's clock says"""


class Shared(NamedTuple):
    """Objects that the partitions of a producer share."""

    rules: Rules
    producer_name: str
    encoding: Encoding
    open_lane: OpenLane
    openings: trio.CapacityLimiter
    nursery: trio.Nursery
    room: Room
    linger: Linger
    routes: Callable[[], Sequence[Route]]
    """the boundaries of numbers that are agreed on; empty before that, and without a name"""
    end_producer: Callable[[ProducerFailed], None]
    figures: SendFigures
    timestamps: TimestampSource
    uid: int
    """of the topic"""
    reports: LaneReports | None


class PartitionWriter:
    """One partition of a producer.

    Attributes:
        machine: its states.
        lane: while it is open.
        found_routes: the boundaries that the lane knew when it was opened.
        line: the messages that it cannot accept yet.
    """

    def __init__(self, partition: int, shared: Shared) -> None:
        self.partition = partition
        self.machine = PartitionMachine(partition, shared.rules)
        self.lane: Lane | None = None
        self.found_routes: list[Route] = []
        self.line: Line[Ticket] = Line()
        self._shared = shared
        self._number: int | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._leave = trio.Event()
        self._closing_failure: LedgerError | None = None
        self._unheard: deque[Batch] = deque(maxlen=UNHEARD_MAX)
        self._progress = Progress()
        self._tasks = {
            Action.APPEND: self._append_waiting,
            Action.STAMP: self._stamp_waiting,
            Action.OPEN_LANE: self._keep_lane,
        }

    # --- sending ---------------------------------------------------------------------

    def put(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
        size: int,
    ) -> tuple[Batch, int]:
        """Accept a message of *size* bytes, for which room was taken. The machine is ready.

        Returns its batch and its place there; of a duplicate, those of the first.

        Raises:
            EventTimeBack: on an ordered topic. Nothing was accepted.
        """
        machine = self.machine
        if sequence is not None:
            known = machine.find_duplicate(sequence)
            if known is not None:
                self._shared.room.release(size)
                return known
        batch, place = machine.admit(value, key, event_time, headers, sequence, size)
        if batch.count == 1:
            batch.began = time.perf_counter()
        if machine.actions or machine.settled:
            self.perform()
        return batch, place

    def put_encoded(self, batch: Batch) -> None:
        """Accept a batch that is encoded, behind all that was accepted before."""
        batch.began = time.perf_counter()
        self.machine.put_encoded(batch)
        self.perform()

    def overdue(self, batch: Batch, place: int, size: int, timeout_s: float) -> LedgerError:
        """Take back a message of *size* bytes whose time is over, if that can be; free its room.

        Returns NotSent, or SendUnknown if its outcome is open.
        """
        reason = self.hindrance(batch)
        topic = self._shared.rules.topic
        if self.machine.withdraw(batch, place, size):
            self._shared.room.release(size)
            self.perform()
            return NotSent(topic, timeout_s=timeout_s, reason=reason)
        lane = -1 if self._number is None else self._number
        reason = f"no acknowledgement in {timeout_s:g} s; {reason}"
        return SendUnknown(topic, partition=self.partition, lane=lane, count=1, reason=reason)

    def hindrance(self, batch: Batch | None = None) -> str:
        """Say what a message of *batch* waits for, or without it one that is not accepted yet."""
        machine = self.machine
        if batch is None and machine.is_ready:
            return NO_ROOM
        gathers = batch is not None and batch is machine.gathering
        needs_no_lane = gathers and machine.phase is LanePhase.CLOSED  # until it is sealed
        if machine.phase is not LanePhase.OPEN and not needs_no_lane:
            why = "" if machine.lane_failure is None else f" ({machine.lane_failure})"
            return f"the lane is being opened{why}"
        if batch is None and machine.is_held:
            return "its partition is taken by a call of send_many, or partitions are being added"
        if batch is not None and batch in machine.handed:
            return "its bookies have not acknowledged it yet"
        if machine.handed:
            return "earlier messages wait for their acknowledgement"
        if machine.rules.is_timed and not gathers:
            return "its batch waits for timestamps"
        return "its batch was to gather more messages"

    def seal(self) -> None:
        """Close the gathering batch to further messages and send it behind those that wait."""
        self.machine.seal()
        self.perform()

    async def wait_ready(self) -> None:
        """Return when put() may be called. Raises LedgerError if the lane cannot be opened."""
        machine = self.machine
        while not machine.is_ready:
            if not machine.is_held:
                await self.open()
                continue
            refusals = machine.refusals
            await self._changed.park()
            if machine.refusals > refusals and machine.refusal is not None:
                raise machine.refusal.with_traceback(None)

    async def last_number(self) -> int:
        """Wait for what was accepted; return the last number that is kept. Raises as open()."""
        machine = self.machine
        while True:
            await self.wait_ready()
            number = machine.next_number - 1
            self.seal()
            pending = list(machine.unsettled())
            for batch in pending:
                batch.is_shared = True  # not to be taken back from now on
            for batch in pending:
                await batch.done.wait()
            if all(batch.failure is None for batch in pending):
                return number

    async def flush(self) -> None:
        """Wait until everything that was accepted is acknowledged.

        Raises the failure of a batch, also an earlier one that no task was waiting for.
        """
        self.seal()
        waited = list(self.machine.unsettled())
        for batch in waited:
            await batch.done.wait()
        failed = [batch for batch in self._unheard if not batch.followed]  # also those since then
        self._unheard.clear()
        for batch in (*failed, *waited):
            if batch.failure is not None:
                raise batch.failure.with_traceback(None)

    # --- actions ---------------------------------------------------------------------

    def perform(self) -> None:
        """Do what the machine says is next. Called after each event."""
        machine, shared = self.machine, self._shared
        if machine.settled:
            settled, machine.settled = machine.settled, []
            self._resolve(settled)
        actions, machine.actions = machine.actions, []
        for action in actions:
            if action is Action.LINGER:
                if machine.gathering is not None:
                    shared.linger.begin(self, machine.gathering)
            elif action in self._tasks:
                shared.nursery.start_soon(self._tasks[action])
            elif action is Action.WAKE:
                self._changed.unpark_all()
            elif action is Action.LEAVE_LANE:
                self.lane = None
                self._leave.set()
            elif machine.final is not None:
                shared.end_producer(machine.final)

    def _resolve(self, settled: Sequence[Batch]) -> None:
        shared = self._shared
        for batch in settled:
            if batch.failure is not None:
                shared.figures.failed[type(batch.failure).__name__] += batch.count
                if not batch.followed and not batch.waiting:
                    self._unheard.append(batch)
            shared.room.release(batch.room)
            batch.done.set()

    async def _append_waiting(self) -> None:
        machine = self.machine
        machine.go_alone()
        # Nothing waits between take() and the call of append: see take().
        while batches := machine.take():
            assert self.lane is not None
            await self._append(self.lane, batches)
            if machine.is_alone:
                await trio.lowlevel.checkpoint()  # who was just told may have another message
                machine.go_alone()
        if machine.actions:
            self.perform()

    async def _stamp_waiting(self) -> None:
        machine = self.machine
        while count := machine.ask():
            progress, source = self._progress, self._shared.timestamps
            progress.asked_from = source.greatest
            try:
                found = await source.allocate(count)
            except LedgerError as failure:
                machine.unstamped(failure)
            else:
                machine.stamped(found.first)
            progress.asked_from = None
            self.perform()
        if machine.actions:
            self.perform()

    async def _append(self, lane: Lane, batches: list[Batch]) -> None:
        machine, figures = self.machine, self._shared.figures
        opening = machine.openings
        sealed: list[SealedBatch] = []
        size = 0
        for batch in batches:
            sealed.append(sealed_of(batch, self._shared.encoding, lane.epoch))
            size += sealed[-1].size
        figures.under_way += size
        try:
            places = await lane.append(sealed)
        except LedgerError as failure:
            self._progress.doubt(opening)
            machine.fail(batches, failure)
            machine.lane_lost(failure, opening)
        except BaseException:
            self._progress.doubt(opening)
            machine.fail(batches, self._unknown(lane, batches))
            raise
        else:
            now = time.perf_counter()
            for batch, each in zip(batches, sealed, strict=True):
                figures.acknowledge(each.count, each.size, now - batch.began, each.last_timestamp)
            machine.acknowledged(batches, places)
            if machine.rules.is_timed and opening == machine.openings:
                self._progress.version = max(
                    self._progress.version, *map(lane.version_after, places[-1:])
                )
        finally:
            figures.under_way -= size
            self.perform()

    def report(self, fresh: int) -> LaneReport | None:
        """Say how far the lane is acknowledged, None while it is not open; see TimedLane."""
        machine, lane = self.machine, self.lane
        if lane is None or machine.phase is not LanePhase.OPEN:
            return None
        timestamp = self._progress.complete(machine, fresh)
        if timestamp is None:
            return None
        shared, version = self._shared, self._progress.version
        return LaneReport(shared.uid, self.partition, lane.lane, lane.epoch, timestamp, version)

    def _unknown(self, lane: Lane, batches: Sequence[Batch]) -> SendUnknown:
        return SendUnknown(
            self._shared.rules.topic,
            partition=self.partition,
            lane=lane.lane,
            count=sum(batch.count for batch in batches),
            reason="the producer was left before they were acknowledged",
        )

    # --- the lane --------------------------------------------------------------------

    async def open(self) -> Lane:
        """Wait until the lane is open; return it. Raises LedgerError if it cannot be opened."""
        machine = self.machine
        refusals = machine.lane_refusals
        while self.lane is None:
            if machine.final is not None:
                raise machine.final.with_traceback(None)
            if machine.lane_failure is not None and machine.lane_refusals > refusals:
                raise machine.lane_failure.with_traceback(None)
            self.start_opening()
            await self._changed.park()
        return self.lane

    def start_opening(self) -> None:
        """Have the lane opened, unless it is open."""
        self.machine.want_lane()
        self.perform()

    async def _keep_lane(self) -> None:
        """Open the lane, and hold it until it is to be left.

        A lane is a block, so one task enters and leaves it.
        """
        machine, shared = self.machine, self._shared
        opened = False
        try:
            async with AsyncExitStack() as stack:
                if shared.reports is not None:
                    stack.callback(shared.reports.discard, self)
                    shared.reports.add(self)
                async with shared.openings:
                    opening = shared.open_lane(self.partition, self._number)
                    lane = await stack.enter_async_context(opening)
                opened = True
                self._begin(lane)
                await self._leave.wait()
        except LedgerError as failure:
            if not opened:
                machine.lane_refused(failure)
            else:
                if not machine.lane_is_lost:
                    self._closing_failure = failure
                machine.lane_left()
        except BaseException:  # cancelled: the producer's block ends
            machine.end(ProducerClosed(shared.rules.topic))
            machine.lane_left()
            raise
        else:
            machine.lane_left()
        finally:
            self.lane = None
            self.perform()

    def _begin(self, lane: Lane) -> None:
        name = self._shared.producer_name
        self.lane, self._number, self._leave = lane, lane.lane, trio.Event()
        last_number = -1
        if name:
            last_number = lane.last_sequence(name)
            self.found_routes = list(lane.routes(name))
            self.set_routes()
        self.machine.lane_opened(lane.lane, lane.last_event_time, last_number)
        self._progress.begin(self.machine.openings, lane.version_after(NOWHERE))
        self.perform()

    def set_routes(self) -> None:
        """Have the lane, if it is open, keep the boundaries once they are agreed on."""
        routes = self._shared.routes()
        if self.lane is not None and routes:
            self.lane.set_routes(self._shared.producer_name, routes)

    async def write_boundary(self, routes: Sequence[Route]) -> None:
        """Make *routes*, with a boundary that is new, durable in the lane.

        Raises:
            LedgerError: the lane cannot be opened, or failed and may know the boundary or not.
        """
        lane = await self.open()
        opening = self.machine.openings
        try:
            await lane.keep_routes(self._shared.producer_name, routes)
        except LedgerError as failure:
            self.machine.lane_lost(failure, opening)
            self.perform()
            raise

    # --- the end ---------------------------------------------------------------------

    def end(self) -> None:
        """Leave the lane for good, and fail what is not handed to it: flush first."""
        self.machine.end(ProducerClosed(self._shared.rules.topic))
        self.perform()

    async def closed(self) -> None:
        """Wait until the lane is left.

        Raises the error of closing it, unless it was left for a failure that was raised before.
        """
        while self.machine.phase not in {LanePhase.CLOSED, LanePhase.ENDED}:
            await self._changed.park()
        if self._closing_failure is not None:
            raise self._closing_failure


class Linger:
    """Sends a batch that does not fill, *delay_s* after its first message.

    One task for all batches of a producer. They wait equally long, so the first is due first.
    """

    def __init__(self, nursery: trio.Nursery, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: deque[tuple[float, PartitionWriter, Batch]] = deque()
        self._nursery = nursery
        self._is_running = False

    def begin(self, writer: PartitionWriter, batch: Batch) -> None:
        """Let *batch* gather messages from now on."""
        due = self._due
        while len(due) > 1 and due[-1][1].machine.gathering is not due[-1][2]:
            due.pop()  # the task waits for the first
        due.append((trio.current_time() + self._delay_s, writer, batch))
        if not self._is_running:
            self._is_running = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._due:
            due, writer, batch = self._due[0]
            if writer.machine.gathering is batch:
                await trio.sleep_until(due)
            self._due.popleft()
            if writer.machine.gathering is batch:
                writer.seal()
        self._is_running = False


class Ticket:
    """A message under way: ``await ticket.message_id()``, at any time, any number of times."""

    __slots__ = ("_batch", "_place", "_size", "_writer", "sequence")

    def __init__(self, writer: PartitionWriter, batch: Batch, place: int, size: int) -> None:
        """*size*: bytes of room that the message took."""
        self._writer = writer
        self._batch = batch
        self._place = place
        self._size = size
        self.sequence = batch.sequence + max(place, 0) if batch.sequence >= 0 else -1
        """its number, when the producer has a name; else -1"""

    async def message_id(self) -> MessageId:
        """Wait until the message is durable, and return its id.

        Raises:
            SendUnknown: it may or may not be kept.
            ProducerFenced: another producer took the lane over.
            LedgerError: it was not sent, for this reason.
        """
        return await message_id(self._batch, self._place)

    @property
    def done(self) -> bool:
        """True once the message is durable or has failed."""
        return self._batch.is_settled


async def message_id(batch: Batch, place: int) -> MessageId:
    """Wait for the acknowledgement; return the id of the message at *place*.

    Raises the failure of the batch. A cancellation changes nothing.
    """
    batch.waiting += 1
    try:
        await batch.done.wait()
    finally:
        batch.waiting -= 1
    return settled_id(batch, place)


def settled_id(batch: Batch, place: int) -> MessageId:
    """Return the id of the message at *place* of a batch that is durable or failed.

    Raises the failure of the batch.
    """
    if batch.failure is not None:
        batch.followed = True
        # One error, many tasks that wait: each begins a trace of its own.
        raise batch.failure.with_traceback(None)
    if place == UNKNOWN:
        return MessageId(*NOWHERE, batch.partition, NOT_BATCHED)
    if batch.withdrawn:
        place = batch.final_place(place)
    ledger_id, entry_id = batch.place
    return MessageId(ledger_id, entry_id, batch.partition, place)


def sealed_of(batch: Batch, encoding: Encoding, epoch: int) -> SealedBatch:
    """Return the batch encoded, with its timestamps; no message can be added any more."""
    sealed = batch.sealed or _seal(batch, encoding, epoch)
    if batch.first_timestamp:
        sealed = sealed.stamped(batch.first_timestamp)
    return sealed


def _seal(batch: Batch, encoding: Encoding, epoch: int) -> SealedBatch:
    values, keys, event_times, headers = batch.columns
    batch.columns = ([], [], [], [])
    columns = Columns.of(
        values,
        keys=_unless_empty(keys),
        event_times=_unless_empty(event_times),
        headers=_unless_empty(headers),
    )
    payload = encode(
        columns,
        0,
        batch.count,
        compression=encoding.compression,
        batched=encoding.batched,
        producer=encoding.producer,
        sequence=batch.sequence,
        epoch=epoch,
        created_ms=encoding.now_ms(),
    )
    first_time = last_time = None
    if columns.event_times is not None:
        times = [time for time in event_times if time is not None]
        first_time, last_time = int(min(times)), int(max(times))
    # The same fields as SealedBatch.of() would read from the payload.
    batch.sealed = SealedBatch(
        payload=payload,
        count=batch.count,
        size=len(payload),
        first_event_time=first_time,
        last_event_time=last_time,
        producer=encoding.producer_name,
        sequence=batch.sequence + batch.count - 1 if batch.sequence >= 0 else -1,
    )
    return batch.sealed


def _unless_empty(column: Sequence[T | None]) -> Sequence[T | None] | None:
    """Return the column, None if it holds only nulls: then it costs no bytes."""
    return column if column.count(None) < len(column) else None
