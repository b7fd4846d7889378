"""Brings a reader the ticks of its topics, and the lanes that they cover.

    stored ticks ──► TickOrder ──wants──► idle ticks from the leader
                                └───────► lanes that a tick covers and nobody reads yet

Stored ticks are read all the time. The leader is asked for its newest tick, which may be idle,
only where the order waits for it: to begin, to end, or because another topic of the reader has
messages. An idle tick is added once the stored ticks before it were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import trio

from ledger_client.errors import LedgerError, NoSuchTopic, Retryable
from ledger_client.topics.context import TopicContext
from ledger_client.topics.reading.lane_ranges import LaneRange
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.merging import MergedLanes, ReadOrder
from ledger_client.topics.reading.options import ReadOptions, Start
from ledger_client.topics.reading.outages import TickOutage
from ledger_client.topics.reading.tick_order import TIMESTAMP_MAX, TickOrder
from ledger_client.topics.tick_follower import TickFollower, was_opened
from ledger_client.topics.ticks import Tick
from ledger_client.topics.times import Timestamp
from metadata.topics import TopicRecord
from native.tick import LaneIndex

AGAIN_S = 0.2
"""Seconds until a lane is looked for again, or the leader asked again."""


class TopicTicks:
    """The ticks of a reader's topics, anew for each place from which it reads."""

    def __init__(
        self,
        context: TopicContext,
        topics: Sequence[TopicRecord],
        options: ReadOptions,
        lanes: LaneSet,
        merged: MergedLanes,
        nursery: trio.Nursery,
    ) -> None:
        self._context = context
        self._topics = topics
        self._options = options
        self._lanes = lanes
        self._merged = merged
        self._nursery = nursery
        self._scope = trio.CancelScope()

    async def now(self) -> int:
        """Return a timestamp greater than those of all messages acknowledged before.

        Raises:
            MetadataUnavailable: no bookie allots timestamps.
        """
        return (await self._context.timestamps.allocate()).first

    def begin(self, start: Start, *, now: int, after: int) -> TickOrder:
        """Return the order of what is read from *start* on, and bring it ticks.

        Args:
            start: where the reader begins.
            now: a timestamp from now(). Without *follow* the order ends there.
            after: ticks up to this timestamp release nothing.
        """
        self._scope.cancel()
        self._scope = trio.CancelScope()
        end, last = self._options.end, TIMESTAMP_MAX if self._options.follow else now
        if isinstance(end, Timestamp):
            last = min(last, end.value - (not self._options.end_inclusive))
        feeds: list[TickFeed] = []
        order = TickOrder(
            len(self._topics),
            wants=lambda topic: feeds[topic].wake(),
            partitions=self._options.partitions,
            last=last,
            edge=now,
        )
        for index, topic in enumerate(self._topics):
            feeds.append(
                TickFeed(
                    self._context,
                    index,
                    topic,
                    order,
                    self._merged,
                    self._lanes,
                    start,
                    after=after,
                    give_up_s=self._options.give_up_s if self._options.follow else 0.0,
                )
            )
        self._nursery.start_soon(_run_all, feeds, self._scope)
        return order


class OrderedLanes(Protocol):
    """The lanes that wait for ticks, as MergedLanes has them."""

    @property
    def order(self) -> ReadOrder:
        """The order that holds now."""

    def notify(self) -> None:
        """There may be something to take."""

    def fail(self, failure: LedgerError) -> None:
        """Let every call that takes messages raise *failure* from now on."""

    def add_new(self, found: Iterable[LaneRange]) -> None:
        """Read those lanes that are not read yet."""


class LaneFinder(Protocol):
    """Finds lanes that a tick covers, as LaneSet does."""

    async def look(self, index: int, start: Start) -> tuple[list[LaneRange], set[LaneIndex]]:
        """Return the chosen lanes of one topic, and the others. Raises LedgerError."""


class TickFeed:
    """Brings the ticks of one topic to an order, until cancelled.

    Args:
        context: the client's.
        index: of the topic among the reader's.
        topic: its record.
        order: gets them.
        merged: the reader's lanes.
        lanes: finds lanes that a tick covers.
        start: where the reader begins.
        after: ticks up to this timestamp are left out.
        give_up_s: let the reader fail if nobody answers for so long; `None` for never.
    """

    def __init__(
        self,
        context: TopicContext,
        index: int,
        topic: TopicRecord,
        order: TickOrder,
        merged: OrderedLanes,
        lanes: LaneFinder,
        start: Start,
        *,
        after: int,
        give_up_s: float | None,
    ) -> None:
        self._context = context
        self._index = index
        self._topic = topic
        self._source = TickFollower(context, topic, after=after)
        self._order = order
        self._merged = merged
        self._lanes = lanes
        self._start = start
        self._outage = TickOutage(topic.name, give_up_s, context.figures)
        self._stored = after
        """the last stored tick that was added"""
        self._idle: Tick | None = None
        """a tick from the leader that waits for stored ones before it"""
        self._news = trio.Event()

    def wake(self) -> None:
        """Look at what the order wants."""
        self._news.set()
        self._news = trio.Event()

    async def run(self) -> None:
        """Bring ticks until the topic is deleted, which the reader raises."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_for_idle_ticks)
                nursery.start_soon(self._look_for_lanes)
                await self._read_stored_ticks()
                nursery.cancel_scope.cancel()
        except* NoSuchTopic as gone:
            self._merged.fail(_first_of(gone))
        finally:
            self._source.close()

    async def _read_stored_ticks(self) -> None:
        while True:
            try:
                ticks = await self._source.read()
            except NoSuchTopic:
                raise
            except LedgerError as failure:
                await self._wait_out("read", failure)
                continue
            self._outage.note_end("read")
            if not ticks:
                raise NoSuchTopic(self._topic.name)
            for tick in ticks:
                while not self._order.has_room(self._index):
                    self._merged.notify()
                    await self._news.wait()
                self._order.add(self._index, tick)
                self._stored = tick.timestamp
            self._add_idle()
            self._merged.notify()

    def _add_idle(self) -> None:
        if self._idle is not None and self._idle.stored <= self._stored:
            self._order.add(self._index, self._idle)
            self._idle = None
            self._merged.notify()

    async def _ask_for_idle_ticks(self) -> None:
        while True:
            news, needed = self._news, self._order.needed(self._index)
            if needed is None or self._idle is not None:
                await news.wait()
                continue
            try:
                self._idle = await self._newest(needed - 1)
            except NoSuchTopic:
                raise
            except LedgerError as failure:
                await self._wait_out("newest", failure)
            else:
                self._outage.note_end("newest")
                self._add_idle()

    async def _newest(self, after: int) -> Tick:
        """Return the newest tick, once it is later than *after*. Raises LedgerError."""
        moment = (await self._context.timestamps.allocate()).first
        if moment > after and not await was_opened(self._context, self._topic):
            return Tick(moment, {}, 0)  # a lane that opens from now on has greater timestamps
        return await self._source.newest(after=after)

    async def _look_for_lanes(self) -> None:
        while True:
            news = self._news
            if not self._order.unknown(self._index):
                await news.wait()
                continue
            try:
                found, others = await self._lanes.look(self._index, self._start)
            except NoSuchTopic:
                raise
            except LedgerError as failure:
                await self._wait_out("lanes", failure)
                continue
            self._outage.note_end("lanes")
            if self._merged.order is not self._order:
                return  # the reader goes on from another place
            self._merged.add_new(found)
            self._order.leave_out(self._index, others)
            self._merged.notify()
            await trio.sleep(AGAIN_S)

    async def _wait_out(self, call: str, failure: LedgerError) -> None:
        """Return when *call* is to be made again; before, the reader may raise *failure*."""
        if not (isinstance(failure, Retryable) and self._outage.wait_out(call, failure)):
            self._order.fail(self._index, failure)
            self._merged.notify()
            while self._order.has_failed(self._index):
                await self._news.wait()
        await trio.sleep(AGAIN_S)


async def _run_all(feeds: Sequence[TickFeed], scope: trio.CancelScope) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            for feed in feeds:
                nursery.start_soon(feed.run)


def _first_of(error: BaseExceptionGroup[NoSuchTopic]) -> NoSuchTopic:
    """Return the first error of a group."""
    first = error.exceptions[0]
    return first if isinstance(first, NoSuchTopic) else _first_of(first)
