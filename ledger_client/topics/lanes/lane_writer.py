"""Writing a lane: the driver of the lane's machine.

    append ──► machine ──► ledger n ──────► acknowledged ──► machine ──► callers wake, in order
                  │  ▲
       step due   ▼  │ outcome
                 run(): one step at a time; each ledger ends, is recovered or gives way to the next

lane_machine.py decides which batches are accepted, when a ledger ends and which batches are sent
again. This driver performs its actions: entries go to ledgers, steps change the lane's rows.
Appending waits for no step: entries leave within the call. From the end of a ledger on, or its
failure, the lane has append_timeout_s to go on; then it fails, and the outcome of sent batches is
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import (
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    PayloadTooLarge,
    ProducerClosed,
    Retryable,
    WriterFailed,
)
from ledger_client.ledgers.catalogue import CHANGE_S, RETRY_S
from ledger_client.ledgers.ledgers import LedgerPlan, Ledgers, new_record
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.ledgers.writer import Request, WriteDriver
from ledger_client.topics.lanes.lane_actions import (
    Begin,
    Close,
    Drain,
    GiveUp,
    LookAgain,
    MarkBoundary,
    NoteStart,
    Prepare,
    Recover,
    Step,
    Turn,
)
from ledger_client.topics.lanes.lane_machine import LaneMachine, State
from ledger_client.topics.lanes.lane_rows import Found, LaneRows
from ledger_client.topics.lanes.lane_state import LaneEnd, SealedBatch
from ledger_client.topics.lanes.routes import Route
from ledger_client.topics.lanes.slower_copies import SLOWER_S, SlowerCopies
from ledger_client.topics.lanes.written_ledger import Append, Send, WrittenLedger
from metadata.records import LedgerRecord
from metadata.topics import TopicRecord

OPENING_ATTEMPTS = 3
"""Attempts to make the first ledger, while bookies fail."""
PAUSE_S = 2.0
PAUSE_URGENT_S = 0.5
"""The longest pause between two attempts at a step; urgent: while batches cannot go out."""


class LaneWriter:
    """One lane, being written. Made by open_lane(); any task may append.

    Attributes:
        lane: its number in the partition.
        epoch: rises with every writer of the lane.
    """

    def __init__(
        self, ledgers: Ledgers, rows: LaneRows, last: LaneEnd, nursery: trio.Nursery
    ) -> None:
        self.lane = rows.lane
        self.epoch = rows.record.epoch
        self._limit_s = ledgers.options.append_timeout_s
        self._machine = LaneMachine(
            rows.topic,
            partition=rows.partition,
            lane=rows.lane,
            epoch=self.epoch,
            last=last,
            limit_s=self._limit_s,
        )
        self._ledgers = ledgers
        self._rows = rows
        self._nursery = nursery
        self._now_ms = ledgers.clock.now_ms
        self._figures = ledgers.figures.sending(rows.topic.name)
        self._takes_over = last.unclosed is not None
        self._slower = SlowerCopies(ledgers.catalogue, nursery)
        self._writers: dict[int, WriteDriver] = {}
        self._begun: LaneRequest | None = None
        """the first entry of the following ledger"""
        self._found: Found | None = None
        self._news, self._ended = trio.Event(), trio.Event()
        self._has_timer = True
        self._scope = trio.CancelScope()
        self._why: LedgerError | None = None
        self._pauses = 0

    # --- for producers -----------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The name of the topic, as namespace/name."""
        return self._rows.topic.name

    @property
    def partition(self) -> int:
        """Index of the partition, -1 for the only one."""
        return self._rows.partition

    @property
    def last_event_time(self) -> int | None:
        """The greatest that was appended, now or ever; `None` if there is none."""
        return self._machine.last_event_time

    def last_sequence(self, producer: str) -> int:
        """Return the greatest sequence number appended for *producer*, now or ever; -1: none."""
        return self._machine.last_sequence(producer)

    def routes(self, producer: str) -> Sequence[Route]:
        """Return the routes of the producer's numbers, as far as the lane knows them."""
        return self._machine.known.routes.get(producer, [])

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Keep the routes in the lane: durable before the batches that are appended next."""
        self._machine.set_routes(producer, routes)

    async def keep_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Make the routes of numbers durable in the lane. Costs one entry.

        Afterwards the lane's next writer knows them, and no other writer took the lane before.

        Raises:
            SendUnknown: the lane failed; it may know them or not.
            LedgerError: as append(); the lane does not know them.
        """
        self._machine.check_open()
        self.set_routes(producer, routes)
        await self._wait_for(Waiting([], is_state=True))

    def version_after(self, place: tuple[int, int]) -> int:
        """Return a version after *place*, which is acknowledged; all before it is durable."""
        row = self._machine.row
        assert row is not None
        # Batches go to the ledger of the row, so those of another one lie before it.
        return row.base_version + (place[1] + 1 if place[0] == row.ledger_id else 0)

    async def append(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        """Add batches, one entry each, and return ledger and entry of each, once all are durable.

        Calls keep the order in which they are made. Nothing is copied: the caller bounds the
        bytes that wait. Cancelled, the batches are written nevertheless.

        Raises:
            EventTimeBack: the topic is ordered by event time, and a time is lower than one
                appended before; nothing of the call was sent.
            PayloadTooLarge: a payload does not fit a frame; nothing of the call was sent.
            SendUnknown: the lane failed, and the first of the batches may be in it; the cause
                is the reason.
            ProducerFenced: it was taken over; nothing of the call is in it.
            ProducerClosed: it was closed.
            LedgerError: the lane failed for another reason, and nothing of the call is in
                it. It takes nothing any more, but the partition's lane may be opened again.
        """
        if not batches:
            self._machine.check_open()
            await trio.lowlevel.checkpoint()
            return []
        return await self._wait_for(Waiting(list(batches)))

    async def _wait_for(self, append: Waiting) -> list[tuple[int, int]]:
        self.submit(append)
        await append.done.wait()
        if append.failure is not None:
            raise append.failure
        return append.places

    def submit(self, append: Append) -> None:
        """Send batches behind all others and return; `append.finish()` is called at their end.

        Raises as append(), where nothing of the call was sent; then nothing is called.
        """
        for batch in append.batches:
            if len(batch.payload) > PAYLOAD_SIZE_MAX:
                size = len(batch.payload)
                raise PayloadTooLarge.message(self.topic, size=size, size_max=PAYLOAD_SIZE_MAX)
        now = trio.current_time()
        writer = self._writers.get(self._machine.ledger.id)
        if writer is not None and writer.failure is not None:
            self._notice_failures(now)
        self._machine.append(append, now, self._now_ms())
        self._perform(now)

    def roll(self, ledger_id: int) -> None:
        """Go on in another ledger soon if the lane is in this one. No append notices it."""
        self._machine.roll(ledger_id)
        self._perform(trio.current_time())

    # --- actions -----------------------------------------------------------------------

    def _perform(self, now: float) -> None:
        """Perform the machine's actions, and wake run() if a step is due."""
        machine = self._machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                if isinstance(action, Send):
                    self._send(action)
                elif isinstance(action, GiveUp):
                    self._give_up(action.ledger)
                else:
                    self._nursery.start_soon(self._look_again, action)
        if self._scope.deadline > machine.deadline:
            self._scope.deadline = machine.deadline  # of the step that is under way
        # With the first batch of a ledger its age begins to count: run() sets a timer.
        if machine.due(now) is not None or (machine.ledger.batches and not self._has_timer):
            self._news.set()

    def _send(self, send: Send) -> None:
        request = LaneRequest(self, send)
        if send.ledger is self._machine.following:
            self._begun = request
        try:
            self._writers[send.ledger.id].submit(request)
        except LedgerError as failure:  # it was not sent, as recovery will find out
            request.fail(failure)

    def _give_up(self, ledger: WrittenLedger) -> None:
        """Count nothing any more; the ledger stays open for the lane's next writer."""
        writer = self._writers.pop(ledger.id, None)
        if writer is not None:
            writer.fail(LedgerClosed(ledger.id))

    async def _look_again(self, action: LookAgain) -> None:
        await trio.sleep_until(action.at)
        now = trio.current_time()
        self._machine.send(now, self._now_ms())
        self._perform(now)

    def acknowledged(self, request: LaneRequest) -> None:
        """The entries of *request* are durable, as all before."""
        now = trio.current_time()
        send = request.send
        finished = self._machine.acknowledged(send.ledger, send.last_entry, now, self._now_ms())
        for append in finished:
            append.finish()
        self._perform(now)

    def ledger_lost(self, ledger: WrittenLedger) -> None:
        """The writer of *ledger* failed, and not everything is acknowledged."""
        now = trio.current_time()
        self._machine.lost(ledger, now)
        self._perform(now)

    def _notice_failures(self, now: float) -> None:
        """Report writers that failed while nothing was under way: no request reports those."""
        machine = self._machine
        for ledger in (machine.ledger, machine.following):
            if ledger is not None:
                writer = self._writers.get(ledger.id)
                if writer is not None and writer.failure is not None:
                    machine.lost(ledger, now)

    # --- the loop ----------------------------------------------------------------------

    async def run(self) -> None:
        """Take one step after the other until the lane is closed or failed."""
        machine = self._machine
        while not machine.is_over:
            self._news = trio.Event()
            step = self._next_step()
            if step is not None:
                await self._take(step)
                continue
            self._has_timer = machine.ledger.batches > 0
            with trio.move_on_after(machine.due_in_s(trio.current_time())):
                await self._news.wait()
            self._has_timer = True
        self._ended.set()

    def _next_step(self) -> Step | None:
        now = trio.current_time()
        self._notice_failures(now)
        step = self._machine.take_step(now, self._now_ms())
        if step is not None:
            self._perform(now)
        return step

    async def _take(self, step: Step) -> None:
        with trio.CancelScope(deadline=self._machine.deadline) as self._scope:
            try:
                await self._carry_out(step)
                self._pauses = 0
            except (WriterFailed, OutcomeUnknown) as why:
                self._why = why  # the machine knows, and another step is due
            except Retryable as why:
                self._why = why
                await self._pause()
            except LedgerError as failure:
                self.fail(await self._named(failure))
        if self._scope.cancelled_caught:
            reason = "" if self._why is None else f": {self._why}"
            late = f"the lane did not go on within {self._limit_s:g} s{reason}"
            self.fail(MetadataUnavailable(late))
        elif self._machine.deadline == math.inf:
            self._why = None

    async def _carry_out(self, step: Step) -> None:
        match step:
            case Prepare():
                await self._prepare(step)
            case Begin():
                await self._begin(step)
            case Drain():
                await self._drain(step)
            case Recover():
                await self._recover()
            case Turn():
                await self._turn(step)
            case Close():
                await self._close(step)
            case MarkBoundary():
                row = await self._rows.share_first(step.row)
                self._notice_failures(trio.current_time())
                self._machine.marked(row, trio.current_time(), self._now_ms())
            case NoteStart():
                self._machine.noted(
                    await self._rows.note_start(step.row, self._machine.known.figures)
                )
        self._perform(trio.current_time())

    async def _pause(self) -> None:
        """Wait for a while, longer each time; while nothing can be sent, not for long."""
        longest_s = PAUSE_S if self._machine.deadline == math.inf else PAUSE_URGENT_S
        await trio.sleep(min(RETRY_S * 2.0**self._pauses, longest_s))
        self._pauses = min(self._pauses + 1, 30)

    async def _named(self, failure: LedgerError) -> LedgerError:
        """Return the cause of *failure*: a ledger is gone when its topic was deleted."""
        if isinstance(failure, NoSuchLedger):
            try:
                await self._rows.verify(limit_s=CHANGE_S)
            except LedgerError as cause:
                return cause
        return failure

    # --- steps -------------------------------------------------------------------------

    async def _prepare(self, step: Prepare) -> None:
        """Make the next ledger and connect to its bookies.

        Raises:
            NotEnoughBookies: fewer than the topic's replication take writes.
            NoSuchTopic, ProducerFenced: see LaneRows.
            MetadataUnavailable: nothing was changed.
        """
        rows, record = self._rows, self._rows.take_claimed()
        if record is None:
            await rows.renew_topic()
            record = await new_ledger(self._ledgers, rows.partition, rows.lane, rows.topic)
            await rows.prepare(record, instead_of=step.instead_of)
        writer = self._writers[record.ledger_id] = self._ledgers.writers.open(record)
        self._machine.prepared(writer.id, record.created_ms, trio.current_time())

    async def _begin(self, step: Begin) -> None:
        """Read the ledger's record, which shows that the store answers, while entries settle."""
        machine, writer = self._machine, self._writers[self._machine.ledger.id]
        try:
            async with Background() as nursery:
                settled = trio.Event()
                nursery.start_soon(_settle, writer, settled)
                self._found = await self._rows.look(writer.id)
                is_quiet = step.entries == machine.ledger.next_entry
                with trio.move_on_after(CHANGE_S if is_quiet else 0):
                    await settled.wait()
        except MetadataUnavailable:
            machine.not_begun(step)
            self._perform(trio.current_time())
            raise
        now = trio.current_time()
        self._notice_failures(now)
        machine.begun(step, now, self._now_ms())

    async def _drain(self, step: Drain) -> None:
        """Wait until all is durable; slower bookies have time once the lane has gone on."""
        ledger = self._machine.ledger
        writer = self._writers[ledger.id]
        if not step.with_slower:
            await self._slower.wait()  # the copies of at most one ledger are undecided
        await writer.settle()
        if writer.failure is not None:
            self._machine.lost(ledger, trio.current_time())
            raise writer.failure
        if step.with_slower:
            await writer.settle(slower_s=SLOWER_S)
        reason = writer.doubt()
        is_slow = reason == "check" and not step.with_slower
        if not is_slow:
            writer.fail(LedgerClosed(ledger.id))
        self._machine.drained(writer.confirmed_length, None if is_slow else reason)

    async def _recover(self) -> None:
        """Have the ledger closed, which shows the entries that it holds."""
        await self._rows.verify(limit_s=CHANGE_S)
        info = await self._ledgers.recover(self._machine.ledger.id)
        self._machine.recovered(info.last_entry, info.length, self._now_ms())

    async def _turn(self, step: Turn) -> None:
        """Go on in the next ledger, once its first entry is durable."""
        machine, old = self._machine, self._machine.ledger
        assert self._begun is not None
        await self._begun.done.wait()
        if self._begun.failure is not None:
            raise self._begun.failure
        try:
            await self._rows.turn(step.current, step.end, step.following, found=self._found)
        except (LedgerFenced, LedgerClosed):  # another client recovers it
            machine.end_refused()
            return
        now = trio.current_time()
        if machine.state is State.ENDED:
            self._figures.roll_times.add_s(now - machine.ending_since)
            self._figures.recoveries += old.is_lost
        self._found = None
        finished = machine.turned(step, self._rows.topic, now, self._now_ms())
        ended = self._writers.pop(old.id, None)
        if ended is not None and ended.failure is None:
            self._slower.watch(ended)
        for append in finished:
            append.finish()

    async def _close(self, step: Close) -> None:
        """Leave the lane without an open ledger."""
        await self._slower.wait()
        end, writer = step.end, self._writers.get(self._machine.ledger.id)
        if end is not None and writer is not None and writer.failure is None:
            await writer.settle(slower_s=SLOWER_S)  # another ledger was to follow at first
            end = msgspec.structs.replace(end, reason=writer.doubt())
        try:
            await self._rows.close(step.current, end)
        except (LedgerFenced, LedgerClosed):
            self._machine.end_refused()
        else:
            if writer is not None:
                writer.fail(LedgerClosed(self._machine.ledger.id))
            self._machine.closed()

    # --- the end -----------------------------------------------------------------------

    def fail(self, failure: LedgerError) -> None:
        """End for good. Open appends fail, with SendUnknown if some batches were sent."""
        failed = self._machine.fail(failure)
        self._perform(trio.current_time())
        for append in failed:
            append.finish()
        self._news.set()
        self._ended.set()

    async def open(self) -> None:
        """Begin this writer's first ledger, and close the last one of the writer before.

        Raises as a step, and WriterFailed or OutcomeUnknown if the bookies of its ledgers fail.
        """
        attempts = OPENING_ATTEMPTS
        try:
            while self._machine.state is State.OPENING:
                step = self._next_step()
                assert step is not None
                try:
                    await self._carry_out(step)
                except (WriterFailed, OutcomeUnknown):
                    attempts -= 1
                    if not attempts:
                        raise
        except BaseException:
            self._machine.give_up_following()
            self._perform(trio.current_time())
            raise
        self._figures.takeovers += self._takes_over

    async def close(self) -> None:
        """Wait until all is settled, then close the ledger; the lane has no writer then.

        Raises the failure of the lane, unless it was taken over while nothing was under way.
        """
        now = trio.current_time()
        self._machine.close(now)
        self._perform(now)
        await self._ended.wait()
        if self._machine.failure is not None:
            raise self._machine.failure

    async def abort(self, limit_s: float) -> None:
        """Once run() has ended, close if nothing is under way.

        Else the lane stays as it is, for its next writer.
        """
        machine = self._machine
        machine.close(trio.current_time())
        if machine.is_leaving and machine.failure is None and not self._rows.is_changing:
            with trio.move_on_after(limit_s):
                await self.run()
        self.fail(ProducerClosed(self.topic))


async def new_ledger(
    ledgers: Ledgers, partition: int, lane: int, topic: TopicRecord
) -> LedgerRecord:
    """Return the record of a new ledger for a lane, without storing it.

    Raises:
        NotEnoughBookies: fewer than the topic's replication take writes.
        MetadataUnavailable: the store did not answer.
    """
    plan = LedgerPlan(
        ensemble_size=topic.replication,
        write_quorum=topic.replication,
        ack_quorum=topic.ack_quorum,
        custom={"topic": topic.name, "partition": str(partition), "lane": str(lane)},
    )
    return await new_record(plan, catalogue=ledgers.catalogue, placement=ledgers.placement)


class Waiting(Append):
    """Batches and an event for the task that waits for them."""

    __slots__ = ("done",)

    def __init__(self, batches: Sequence[SealedBatch], *, is_state: bool = False) -> None:
        super().__init__(batches, is_state=is_state)
        self.done = trio.Event()

    def finish(self) -> None:
        """Wake the caller, which reads `places` or raises `failure`."""
        self.done.set()


class LaneRequest(Request):
    """Entries on their way to a ledger of the lane."""

    __slots__ = ("send", "writer")

    def __init__(self, writer: LaneWriter, send: Send) -> None:
        super().__init__(send.payloads)
        self.writer = writer
        self.send = send

    def succeed(self) -> None:
        """Report the entries as durable to the lane: all of them are confirmed."""
        self.done.set()
        self.writer.acknowledged(self)

    def fail(self, failure: LedgerError) -> None:
        """Report the ledger as lost to the lane: its end must be recovered."""
        super().fail(failure)
        self.writer.ledger_lost(self.send.ledger)


async def _settle(writer: WriteDriver, settled: trio.Event) -> None:
    await writer.settle()
    settled.set()
