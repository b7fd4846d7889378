"""The order of timestamps in the partitions of a topic that a member has.

The order holds from one assignment to the next. A partition that comes may have messages that are
older than those that were handed out of the others: so with each partition that comes, and after
each seek, the order begins anew at the lowest place, and nothing is handed out in between:

    assigned p0      p0: 10 20 30
    assigned p0, p1                │ p1: 15   p0, p1: 40 50 60 ...
                                   └ nothing is handed out until p1 is read, too

A partition that goes leaves the order of the others as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import EARLIEST, Places
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneRange, LaneStart
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.merging import MergedLanes, ReadOrder
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.tick_feed import TickFeed
from ledger_client.topics.reading.tick_order import TickOrder
from metadata.topics import TopicRecord
from native.tick import LaneIndex


class FeedTicks:
    """Brings ticks to a member's partitions of one topic, and begins their order anew.

    Args:
        context: the client's.
        topic: its record.
        merged: the lanes of the partitions.
        lanes: finds lanes.
        partitions: those that are read; the owner changes it.
        nursery: for the tasks that read ticks.
        on_arrival: called when there may be something to take.
    """

    def __init__(
        self,
        context: TopicContext,
        topic: TopicRecord,
        merged: MergedLanes,
        lanes: LaneSet,
        partitions: Collection[int],
        nursery: trio.Nursery,
        on_arrival: Callable[[], None],
    ) -> None:
        self.held: set[int] = set()
        """partitions that come; until they are read nothing is handed out"""
        self._context = context
        self._topic = topic
        self._merged = merged
        self._lanes = lanes
        self._partitions = partitions
        self._nursery = nursery
        self._on_arrival = on_arrival
        self._scope = trio.CancelScope()

    async def first(self, added: Mapping[int, Places], lanes: Sequence[KnownLane]) -> int:
        """Return a timestamp up to which no tick matters to partitions that begin at places.

        Raises:
            LedgerError: rows of ledgers could not be read.
        """
        found = [await self._before(places, lanes, index) for index, places in added.items()]
        return int(min(found, default=0))

    async def _before(self, places: Places, lanes: Sequence[KnownLane], partition: int) -> float:
        here = [each for each in lanes if each.lane.partition == partition]
        ranges = [LaneRange(each, LaneStart(places.get(each.lane.lane, EARLIEST))) for each in here]
        before = await self._lanes.timestamp_before(ranges)
        if before:
            return before
        firsts = [math.inf]
        for each in here:
            row = await each.rows.first_from(0)
            if row is not None:
                firsts.append(max(row.ledger.first_timestamp - 1, 0))
        return 0 if math.isinf(lowest := min(firsts)) else lowest

    def begin(self, first: int) -> None:
        """Begin the order of the partitions anew, with ticks later than *first*."""
        self._scope.cancel()
        self._scope = trio.CancelScope()
        order = TickOrder(
            1, wants=lambda _topic: feed.wake(), partitions=frozenset(self._partitions)
        )
        order.batch_rows = 1  # a batch of one range, as consumers count what was handed out
        feed = TickFeed(
            self._context,
            0,
            self._topic,
            order,
            self,
            self,
            "earliest",
            after=first,
            give_up_s=None,
        )
        self._merged.order = order
        self._nursery.start_soon(self._run, feed, self._scope)
        self._on_arrival()

    def end(self) -> None:
        """Bring no more ticks."""
        self._scope.cancel()

    async def _run(self, feed: TickFeed, scope: trio.CancelScope) -> None:
        with scope:
            await feed.run()

    # --- what brings ticks sees of the lanes ---------------------------------------------

    @property
    def order(self) -> ReadOrder:
        """The order that holds now."""
        return self._merged.order

    def notify(self) -> None:
        """There may be something to take."""
        self._merged.notify()
        self._on_arrival()

    def fail(self, failure: LedgerError) -> None:
        """Let every call that takes messages raise *failure* from now on."""
        self._merged.fail(failure)
        self._on_arrival()

    def add_new(self, found: Iterable[LaneRange]) -> None:
        """Read those lanes that are not read yet."""
        self._merged.add_new(found)

    async def look(self, index: int, start: Start) -> tuple[list[LaneRange], set[LaneIndex]]:
        """Return the lanes of the partitions that are read, and all others. Raises LedgerError."""
        found, others = await self._lanes.look(index, start)
        mine = [each for each in found if each.known.lane.partition in self._partitions]
        strange = [each.known.lane for each in found if each not in mine]
        return mine, others | {(lane.partition, lane.lane) for lane in strange}
