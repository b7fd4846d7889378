"""Several lanes as one sequence of messages: as they come, or by event time.

As they come: slice after slice, one lane after the other.

By event time: each lane is in order, so of what is here everything is final up to the
first of the lanes' last times; a lane may go on with that time in its next batch, so of
equal times only those of its own and of lanes before it. That much is sorted at once. The
sort is stable and gets the lanes in order: equal times come by topic, then by the lane's name
(lanes without one come first), partition and lane, and within a lane as they were written. In
reverse all of that is mirrored. A lane that is renamed keeps its turn until reading begins anew.

    lane 0  ──1──3──3──5──┐ here so far        final: 1 2 3 3 3, as lane 0 has it up to 5
    lane 1  ──2──3──┤                          and lane 1 up to 3; not its next 3, if there
                                               is one, and so not the 5

A lane that has nothing here is waited for, while it is followed at most for *idle_s* since
it ran dry: after that the others go on without it, and what it brings then comes at once,
later than its time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, Protocol

import trio

from ledger_client.topics.messages import Message, Slice
from ledger_client.topics.reading.lane_stream import LaneStream


class Run(NamedTuple):
    """What is to be given out next: slices of different lanes, in the order of *order*."""

    slices: tuple[Slice, ...]
    order: list[int] | None
    """places in the slices laid end to end; None: as they stand"""

    @property
    def rows(self) -> int:
        """How many messages there are."""
        return sum(piece.stop - piece.start for piece in self.slices)

    def last(self, count: int, *, backward: bool) -> list[Slice]:
        """Return what of each slice is among the last *count* messages."""
        if self.order is None:
            (piece,) = self.slices
            return [Slice(piece.batch, piece.stop - count, piece.stop)]
        ends = list(accumulate(piece.stop - piece.start for piece in self.slices))
        counts = Counter(bisect_right(ends, place) for place in self.order[-count:])
        found = [(self.slices[index], left) for index, left in counts.items()]
        if backward:
            return [Slice(piece.batch, piece.start, piece.start + left) for piece, left in found]
        return [Slice(piece.batch, piece.stop - left, piece.stop) for piece, left in found]

    def messages(self) -> list[Message]:
        """Return them as objects."""
        if self.order is None:
            (piece,) = self.slices
            return piece.messages
        found = list(chain.from_iterable(piece.messages for piece in self.slices))
        return [found[place] for place in self.order]

    def record_batch(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return them as a RecordBatch; copies nothing if they are one slice, forward."""
        if self.order is None:
            (piece,) = self.slices
            return piece.record_batch
        import pyarrow as pa

        whole = pa.concat_batches([piece.record_batch for piece in self.slices])
        return whole.take(pa.array(self.order, pa.int32()))


class Order(Protocol):
    """Chooses what comes next."""

    wake_at: float
    """When to ask again although nothing came, by trio's clock."""

    def next_run(self, streams: Sequence[LaneStream], paused: frozenset[int]) -> Run | None:
        """Take the next messages from *streams*, which are in order; None: wait for more.

        Lanes of the partitions *paused* give nothing. Raises as LaneStream.peek().
        """


class Arrival:
    """As they come."""

    wake_at = math.inf

    def __init__(self, *, backward: bool = False) -> None:
        self._backward = backward
        self._turn = 0

    def next_run(self, streams: Sequence[LaneStream], paused: frozenset[int]) -> Run | None:
        """Take the next slice of the next lane that has one."""
        for _ in streams:
            stream = streams[self._turn % len(streams)]
            self._turn += 1
            if stream.lane.partition not in paused and (piece := stream.peek()) is not None:
                return _run([stream.take(piece)], self._backward)
        return None


class EventTimes:
    """By event time. Every lane must be ordered by it."""

    def __init__(self, *, backward: bool = False, idle_s: float = math.inf) -> None:
        self.wake_at = math.inf
        self._backward = backward
        self._idle_s = idle_s

    def next_run(self, streams: Sequence[LaneStream], paused: frozenset[int]) -> Run | None:
        """Take all that is final.

        A lane that is paused is waited for: what comes after its next message waits as well.
        """
        self.wake_at = math.inf
        here: list[tuple[int, LaneStream, Slice]] = []
        waits = False
        for rank, stream in enumerate(streams):
            piece = stream.peek()
            if piece is not None and stream.lane.partition not in paused:
                here.append((rank, stream, piece))
            elif piece is not None or not (stream.ended or self._is_idle(stream)):
                waits = True
        if waits or not here:
            return None
        parts = self._final_part_backward(here) if self._backward else self._final_part(here)
        return _run([stream.take(piece) for stream, piece in parts], self._backward)

    def _is_idle(self, stream: LaneStream) -> bool:
        if stream.waiting_since is None:
            return False
        idle_at = stream.waiting_since + self._idle_s
        if trio.current_time() >= idle_at:
            return True
        self.wake_at = min(self.wake_at, idle_at)
        return False

    def _final_part(
        self, here: Iterable[tuple[int, LaneStream, Slice]]
    ) -> list[tuple[LaneStream, Slice]]:
        last, last_rank = min((p.batch.rising_times[p.stop - 1], rank) for rank, _, p in here)
        found = []
        for rank, stream, piece in here:
            cut = bisect_right if rank <= last_rank else bisect_left
            stop = cut(piece.batch.rising_times, last, piece.start, piece.stop)
            if stop > piece.start:
                found.append((stream, Slice(piece.batch, piece.start, stop)))
        return found

    def _final_part_backward(
        self, here: Iterable[tuple[int, LaneStream, Slice]]
    ) -> list[tuple[LaneStream, Slice]]:
        first, first_rank = max((p.batch.rising_times[p.start], rank) for rank, _, p in here)
        found = []
        for rank, stream, piece in here:
            cut = bisect_left if rank >= first_rank else bisect_right
            start = cut(piece.batch.rising_times, first, piece.start, piece.stop)
            if start < piece.stop:
                found.append((stream, Slice(piece.batch, start, piece.stop)))
        return found


def _run(slices: list[Slice], backward: bool) -> Run:
    count = sum(piece.stop - piece.start for piece in slices)
    if len(slices) == 1 and (count == 1 or not backward):
        return Run(tuple(slices), None)
    order = list(range(count))
    if len(slices) > 1:
        times = list(chain.from_iterable(p.batch.rising_times[p.start : p.stop] for p in slices))
        order.sort(key=times.__getitem__)
    if backward:
        order.reverse()
    return Run(tuple(slices), order)
