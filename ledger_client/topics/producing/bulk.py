"""One call of send_many: many messages through C, a few MiB ahead of the lanes.

    columns ─► chunk ─► shares ──────► cut ─► encode ─► writer ─► lane
               few MiB  rows of a             batch     at most AHEAD_SIZE
                        partition                       not acknowledged

On a topic ordered by event time, and for a producer with a name, no other task sends to the
call's partitions meanwhile: times and numbers of a call follow each other.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import le
from typing import NamedTuple

import trio

from ledger_client.errors import ProducerClosed
from ledger_client.message_id import NOT_BATCHED, IdRange, MessageIds
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.producing.batch import NOWHERE, Batch
from ledger_client.topics.producing.line import Line, Turn
from ledger_client.topics.producing.message_columns import MessageColumns
from ledger_client.topics.producing.open_lane import Lane
from ledger_client.topics.producing.partition_writer import Encoding, PartitionWriter, Ticket
from ledger_client.topics.producing.routing import Routing, Share
from native.batch import Columns, cut, encode
from native.route import NO_PARTITION

AHEAD_SIZE = 4 << 20
TURN_SIZE = 256 * 1024
"""Bytes that are encoded before other tasks get a turn."""
STEP = 65536


class Form(NamedTuple):
    """The limits and encoding of a call's batches."""

    encoding: Encoding
    size_max: int
    count_max: int


class Bulk:
    """One call; *targets* are the partitions that it may send to."""

    def __init__(
        self,
        messages: MessageColumns,
        routing: Routing,
        targets: Sequence[PartitionWriter],
        form: Form,
    ) -> None:
        self._messages = messages
        self._routing = routing
        self._targets = targets
        self._form = form
        self._lanes: dict[PartitionWriter, Lane] = {}
        self._batches: list[Batch] = []
        self._rows: list[tuple[int, array[int]]] = []
        self._under_way: deque[tuple[Batch, int]] = deque()
        self._ahead = self._since_turn = 0
        self._first_number = 0
        self._turns: list[tuple[Line[Ticket], Turn[Ticket]]] = []

    async def run(self, sequence: int | None) -> MessageIds:
        """Send everything; return the ids once all is durable.

        *sequence*: the number of the first message; then there is one target.
        Raises the failure of a batch; the first messages may be kept then.
        """
        await self._hold()
        try:
            try:
                first = 0 if sequence is None else self._skip_duplicates(sequence)
                if self._targets[0].machine.rules.is_ordered:
                    check_times(self._messages, first, self._targets, self._routing)
                else:
                    self._messages.check_times()
                await self._send_from(first)
            finally:
                for target in self._targets:
                    target.machine.release()
                    target.perform()
                self._leave_lines()
            await self._settle(0)
        except trio.Cancelled:
            for batch in self._batches:
                batch.followed = False  # the next flush raises what fails
            raise
        return self._ids()

    async def _hold(self) -> None:
        """Hold all partitions, behind the sends that wait already."""
        if any(target.line.turns or not target.machine.is_ready for target in self._targets):
            self._turns = [(each.line, each.line.join(_not_by_others)) for each in self._targets]
            try:
                await self._wait_turns()
            except BaseException:
                self._leave_lines()
                raise
        for target in self._targets:
            target.machine.hold()
            if target.machine.strict and target.lane is not None:
                self._lanes[target] = target.lane

    async def _wait_turns(self) -> None:
        for _, turn in self._turns:
            await turn.news.wait()
            if turn.failure is not None:
                raise turn.failure.with_traceback(None)
        while not all(target.machine.is_ready for target in self._targets):
            for target in self._targets:
                await target.wait_ready()

    def _leave_lines(self) -> None:
        """Let those go on that came after this call."""
        turns, self._turns = self._turns, []
        for line, turn in turns:
            line.leave(turn)

    def _skip_duplicates(self, sequence: int) -> int:
        """Return the number of leading messages that were accepted before. Raises SequenceBack."""
        machine = self._targets[0].machine
        count = min(max(machine.next_number - sequence, 0), self._messages.count)
        if count:
            machine.check_kept(sequence, count)
            # Their batches may be under way still, and must not be taken back from now on.
            for batch in machine.unsettled():
                batch.is_shared = True
                self._under_way.append((batch, 0))
            known = Batch(machine.partition, trio.Event())
            known.count = count
            self._batches.append(known)
        self._first_number = sequence  # taken with the first batch: the call may fail its checks
        return count

    async def _send_from(self, first: int) -> None:
        for chunk in self._messages.chunks(first):
            for share in self._shares(chunk.columns):
                if share.rows is not None:
                    self._rows.append((chunk.start, share.rows))
                await self._send(chunk.columns, share)
            self._leave_lines()

    def _shares(self, columns: Columns) -> list[Share]:
        if len(self._targets) == 1:
            return [Share(0, None)]
        return self._routing.shares(columns)

    async def _send(self, columns: Columns, share: Share) -> None:
        encoding, size_max, count_max = self._form
        start = 0
        for end in cut(
            columns,
            size_max=size_max,
            count_max=count_max,
            rows=share.rows,
            producer=encoding.producer,
        ):
            place = self._routing.next_in_turn() if share.place is None else share.place
            target = self._targets[place]
            lane = await self._lane_of(target)
            sequence = -1
            if target.machine.rules.is_named:
                sequence = max(target.machine.next_number, self._first_number)
            payload = encode(
                columns,
                start,
                end,
                rows=share.rows,
                compression=encoding.compression,
                batched=encoding.batched,
                producer=encoding.producer,
                sequence=sequence,
                epoch=lane.epoch,
                created_ms=encoding.now_ms(),
            )
            self._put(target, payload, sequence)
            start = end
            await self._wait_turn(len(payload))

    async def _lane_of(self, target: PartitionWriter) -> Lane:
        """Return the lane to write. If strict, the call ends when its lane failed."""
        if not target.machine.strict:
            return await target.open()
        lane = self._lanes[target]
        if target.lane is not lane:
            await self._settle(0)
            raise target.machine.lane_failure or ProducerClosed(self._routing.topic)
        return lane

    def _put(self, target: PartitionWriter, payload: bytes, sequence: int) -> None:
        sealed = SealedBatch.of(payload)
        batch = Batch(target.partition, trio.Event(), sequence=sequence, sealed=sealed)
        batch.followed = True
        self._batches.append(batch)
        self._under_way.append((batch, batch.size))
        self._ahead += batch.size
        target.put_encoded(batch)

    async def _wait_turn(self, size: int) -> None:
        """Let other tasks run, and the lanes catch up."""
        await self._settle(AHEAD_SIZE)
        self._since_turn += size
        if self._since_turn > TURN_SIZE:
            self._since_turn = 0
            await trio.lowlevel.checkpoint()

    async def _settle(self, ahead_max: int) -> None:
        """Wait until at most *ahead_max* bytes are not acknowledged. Raises a batch's failure."""
        while self._under_way and (self._ahead > ahead_max or not ahead_max):
            batch, size = self._under_way[0]
            if not batch.is_settled:
                await batch.done.wait()
            self._under_way.popleft()
            self._ahead -= size
            if batch.failure is not None:
                raise batch.failure.with_traceback(None)

    def _ids(self) -> MessageIds:
        first = 0 if self._form.encoding.batched else NOT_BATCHED
        runs = [
            IdRange(*batch.place, batch.partition, first, batch.count)
            if batch.place != NOWHERE
            else IdRange(*NOWHERE, batch.partition, NOT_BATCHED, batch.count)
            for batch in self._batches
        ]
        return MessageIds(runs, self._rows or None)


# --- event times -----------------------------------------------------------------------


def check_times(
    messages: MessageColumns, first: int, targets: Sequence[PartitionWriter], routing: Routing
) -> None:
    """Return if the messages from *first* on are in order in each lane, behind its last.

    A message that may go to any lane must not be lower than the last of any.

    Raises:
        EventTimeBack: naming the first that is lower.
        BadTopic: a message has no event time.
    """
    times = messages.times()
    if times is None:
        targets[0].machine.refuse_timeless()
    times = times[first:]
    if not times:
        return
    lasts = [target.machine.last_event_time for target in targets]
    behind = all(last is None or last <= times[0] for last in lasts)
    if behind and all(map(le, times, islice(times, 1, None))):
        return
    _check_each(times, _places(messages, first, len(targets), routing), targets)


def _not_by_others() -> None:
    """Accept nothing: who sends many messages does that itself."""


def _places(
    messages: MessageColumns, first: int, count: int, routing: Routing
) -> Iterator[int | None]:
    """Yield the target of each message; None if it may go to any."""
    by_key = messages.has_keys and routing.by_key
    for start in range(first, messages.count, STEP):
        stop = min(start + STEP, messages.count)
        if count == 1 or not by_key:
            yield from (0 if count == 1 else None for _ in range(start, stop))
        else:
            for place in routing.places_of(messages.keys(start, stop)):
                yield None if place == NO_PARTITION else place


def _check_each(
    times: memoryview, places: Iterator[int | None], targets: Sequence[PartitionWriter]
) -> None:
    last = [target.machine.last_event_time for target in targets]
    for time, place in zip(times, places, strict=True):
        for at in range(len(targets)) if place is None else (place,):
            before = last[at]
            if before is not None and time < before:
                targets[at].machine.refuse_time(time, before)
            last[at] = time
