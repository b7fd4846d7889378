"""One call of send_many: many messages through C, a few MiB ahead of the lanes.

    given ─► piece ─► shares ──────► cut ─► encode ─► outbox ─► lane
             few MiB  rows of a             batch     at most AHEAD_SIZE that
                      partition                       are not acknowledged

On a topic ordered by event time, and for a producer with a name, nobody else sends to its
partitions while the call does: times and numbers of a call follow each other.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

import trio

from ledger_client.topics.errors import ProducerClosed
from ledger_client.topics.message_id import NOT_BATCHED
from ledger_client.topics.message_ids import MessageIds, Run
from ledger_client.topics.producing.batching import NOWHERE, Batch, Manner
from ledger_client.topics.producing.keeper import Lane
from ledger_client.topics.producing.outbox import Outbox
from ledger_client.topics.producing.pieces import Given
from ledger_client.topics.producing.routing import Routing, Share
from ledger_client.topics.producing.time_order import check_times
from native.batch import Columns, cut, encode

AHEAD_SIZE = 4 << 20
TURN_SIZE = 256 * 1024
"""So many bytes are encoded before other tasks have a turn."""


class Form(NamedTuple):
    """What a call's batches are to be like."""

    manner: Manner
    size_max: int
    count_max: int


class Bulk:
    """One call; *targets* are the outboxes that it may send to."""

    def __init__(self, given: Given, routing: Routing, targets: list[Outbox], form: Form) -> None:
        self._given = given
        self._routing = routing
        self._targets = targets
        self._form = form
        self._lanes: dict[Outbox, Lane] = {}
        self._batches: list[Batch] = []
        self._rows: list[tuple[int, array[int]]] = []
        self._under_way: deque[tuple[Batch, int]] = deque()
        self._ahead = self._since_turn = 0
        self._first_number = 0

    async def run(self, sequence: int | None) -> MessageIds:
        """Send everything; return the ids once all is durable.

        *sequence*: the number of the first message; then there is one target.
        Raises why something is not acknowledged; the first messages may be kept then.
        """
        await self._hold()
        try:
            first = 0 if sequence is None else self._skip_duplicates(sequence)
            if self._targets[0].admission.ordered:
                check_times(self._given, first, self._targets, self._routing)
            else:
                self._given.check_times()
            await self._send_from(first)
        except trio.Cancelled:
            self._disown()
            raise
        finally:
            for outbox in self._targets:
                outbox.let_go()
        await self._settle(0)
        return self._ids()

    async def _hold(self) -> None:
        while not all(outbox.ready for outbox in self._targets):
            for outbox in self._targets:
                await outbox.wait_ready()
        for outbox in self._targets:
            outbox.hold()
            if outbox.strict and outbox.lane is not None:
                self._lanes[outbox] = outbox.lane

    def _skip_duplicates(self, sequence: int) -> int:
        """Return how many of the first messages were accepted before."""
        outbox = self._targets[0]
        numbering = outbox.admission.numbering
        assert numbering is not None
        count = min(max(numbering.next - sequence, 0), self._given.count)
        if count:  # they may be under way still
            self._under_way.extend((batch, 0) for batch in outbox.dispatch.pending)
            known = Batch(outbox.partition)
            known.count = count
            known.acknowledge(NOWHERE)
            self._batches.append(known)
        self._first_number = sequence  # taken with the first batch: a call may be refused yet
        return count

    async def _send_from(self, first: int) -> None:
        for piece in self._given.pieces(first):
            for share in self._shares(piece.columns):
                if share.rows is not None:
                    self._rows.append((piece.start, share.rows))
                await self._send(piece.columns, share)

    def _shares(self, columns: Columns) -> list[Share]:
        if len(self._targets) == 1:
            return [Share(self._targets[0], None)]
        return self._routing.shares(columns)

    async def _send(self, columns: Columns, share: Share) -> None:
        manner, size_max, count_max = self._form
        start = 0
        for end in cut(
            columns,
            size_max=size_max,
            count_max=count_max,
            rows=share.rows,
            producer=manner.producer,
        ):
            outbox = share.outbox or self._routing.next_in_turn()
            lane = await self._lane_of(outbox)
            sequence = -1
            if (numbering := outbox.admission.numbering) is not None:
                sequence = max(numbering.next, self._first_number)
            payload = encode(
                columns,
                start,
                end,
                rows=share.rows,
                compression=manner.compression,
                batched=manner.batched,
                producer=manner.producer,
                sequence=sequence,
                epoch=lane.epoch,
                created_ms=manner.now_ms(),
            )
            self._put(outbox, Batch.of(payload, outbox.partition, sequence=sequence))
            start = end
            await self._wait_turn(len(payload))

    async def _lane_of(self, outbox: Outbox) -> Lane:
        """Return the lane to write; if strict, one that failed ends the call."""
        if not outbox.strict:
            return await outbox.open()
        lane = self._lanes[outbox]
        if outbox.lane is not lane:
            await self._settle(0)
            raise outbox.dispatch.keeper.failure or ProducerClosed(self._routing.topic)
        return lane

    def _put(self, outbox: Outbox, batch: Batch) -> None:
        batch.followed = True
        self._batches.append(batch)
        self._under_way.append((batch, batch.size))
        self._ahead += batch.size
        outbox.put_encoded(batch)

    async def _wait_turn(self, size: int) -> None:
        """Let others work, and the lanes catch up."""
        await self._settle(AHEAD_SIZE)
        self._since_turn += size
        if self._since_turn > TURN_SIZE:
            self._since_turn = 0
            await trio.lowlevel.checkpoint()

    async def _settle(self, ahead_max: int) -> None:
        """Wait until at most so many bytes are not acknowledged. Raises why one is not."""
        while self._under_way and (self._ahead > ahead_max or not ahead_max):
            batch, size = self._under_way[0]
            if not batch.done.is_set():
                await batch.done.wait()
            self._under_way.popleft()
            self._ahead -= size
            if batch.failure is not None:
                raise batch.failure.with_traceback(None)

    def _disown(self) -> None:
        """Nobody waits any more: what fails is told by the next flush."""
        for batch in self._batches:
            batch.followed = False

    def _ids(self) -> MessageIds:
        first = 0 if self._form.manner.batched else NOT_BATCHED
        runs = [
            Run(*batch.place, batch.partition, first, batch.count)
            if batch.place != NOWHERE
            else Run(*NOWHERE, batch.partition, NOT_BATCHED, batch.count)
            for batch in self._batches
        ]
        return MessageIds(runs, self._rows or None)
