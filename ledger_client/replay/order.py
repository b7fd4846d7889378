"""How the lanes of a replay become one sequence, the same one on every run.

order       what comes next
----------  ---------------------------------------------------------------------------
event-time  the message with the lowest event time; of topics ordered by it (merging.py)
time        the entry with the lowest time: its greatest timestamp, or without one when its
            producer made it; a lane's time never goes back, so an entry that is behind its
            lane's time counts as of that time
arrival     an entry of each lane in turn

Of equals the first topic, partition and lane comes first. A lane that has nothing here is
always waited for. What an order remembers of a lane is a number, its clock: kept with the
place in the lane, it makes the order go on as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ledger_client.topics.messages import Slice
from ledger_client.topics.reading.lane_stream import LaneStream
from ledger_client.topics.reading.merging import EventTimes, Order, Run
from ledger_client.topics.reading.places import LaneRef
from ledger_client.topics.reading.times import entry_ms
from metadata.replays import Order as OrderName

Clock = Callable[[int, Slice], int]
"""Returns the clock of a lane with its next entry."""


class Clocked:
    """Entry by entry, that of the lowest clock first."""

    wake_at = math.inf

    def __init__(self, clock: Clock, clocks: Mapping[LaneRef, int]) -> None:
        self._clock = clock
        self.clocks = dict(clocks)

    def next_run(self, streams: Sequence[LaneStream], paused: frozenset[int]) -> Run | None:
        """Take the next entry once every lane has one here or has ended."""
        best: tuple[int, LaneStream, Slice] | None = None
        for stream in streams:
            piece = stream.peek()
            if piece is None:
                if not stream.ended:
                    return None
                continue
            clock = self._clock(self.clocks.get(stream.lane, 0), piece)
            if best is None or clock < best[0]:
                best = clock, stream, piece
        if best is None:
            return None
        clock, stream, piece = best
        self.clocks[stream.lane] = clock
        return Run((stream.take(piece),), None)


def new_order(name: OrderName, clocks: Mapping[LaneRef, int]) -> Order:
    """Return the order of that name, going on with *clocks*."""
    if name == "event-time":
        return EventTimes()
    return Clocked(_time if name == "time" else _turn, clocks)


def clocks_of(order: Order) -> Mapping[LaneRef, int]:
    """Return what the order remembers of each lane."""
    return order.clocks if isinstance(order, Clocked) else {}


def time_of(piece: Slice) -> int:
    """Return the time of an entry in Unix milliseconds."""
    return entry_ms(piece.batch.header)


def _time(clock: int, piece: Slice) -> int:
    return max(clock, time_of(piece))


def _turn(clock: int, piece: Slice) -> int:
    return clock + (piece.start == 0)  # a rest of an entry is still of its turn
