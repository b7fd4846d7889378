"""The leader's part in topics: finish what clients and jobs left undone.

    retention          removes ledgers that exceed their topic's limits
    idle lanes         closes lanes without a writer: the last acknowledged messages of a
                       killed writer become readable, and all of them can expire
    deletions          completes deletions that were interrupted
    dead jobs          discards what they staged and never published
    compaction         removes ledgers of former generations
    events             publishes events that the client behind the change did not

Whatever looks idle or unfinished is acted on only if it still does a round later: a writer
that lost its lease while the store was unavailable takes it again.

Ages are measured by the store's clock, which also recorded them. No host's clock counts.

Each removal is written in a transaction that checks the leader's term, so a deposed leader
removes nothing. All of it is idempotent, and others may do the same concurrently.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import msgspec
import trio

from ledger_client.cluster.observer import TopicFigures
from ledger_client.errors import LedgerError, lane_text
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import waiting_namespaces
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.retention.holdings import LaneHoldings, Pin, read_holdings, remove_retired
from ledger_client.topics.retention.job_rows import DeadJobs, read_pins
from ledger_client.topics.retention.removal import Deletion, removable, remove_ledgers
from ledger_client.topics.retention.retention import plan_retention
from ledger_client.topics.topics import Topics
from metadata.errors import BadRecord, LeaseLost, MetadataError
from metadata.leadership import Term
from metadata.listings import Listing
from metadata.topics import TOPICS, TopicRecord, decode_topic

CloseLane = Callable[[Ledgers, TopicRecord, int, int], Awaitable[None]]
"""Takes over a lane of a topic (partition, lane) and closes it. Raises LedgerError."""
REST_RATIO = 10
LaneKey = tuple[int, int, int]
"""A topic's uid, partition and lane."""
_log = logging.getLogger(__name__)


class HousekeepingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How often topics are looked after. Times are seconds."""

    interval_s: float = 10.0
    """Pause between two rounds through all topics, on top of a rest ten times as long as the
    round: the bookie has other work."""
    poll_s: float = 2.0
    """Pause between two searches for unpublished events."""
    close_timeout_s: float = 30.0
    """Deadline for closing one idle lane."""


class Housekeeper:
    """Looks after topics for as long as its bookie leads."""

    def __init__(
        self,
        context: TopicContext,
        options: HousekeepingOptions,
        *,
        figures: TopicFigures | None = None,
        close_lane: CloseLane = close_lane,
    ) -> None:
        self._context = context
        self._store = context.store
        self._options = options
        self._figures = figures or TopicFigures()
        self._close_lane = close_lane
        self._now_ms = 0
        """the store's time at the start of the round"""
        self._dead_jobs = DeadJobs(context.store)
        self._unreadable: set[str] = set()
        self._half_deleted: set[int] = set()
        self._idle_before: set[LaneKey] = set()
        self._idle_now: set[LaneKey] = set()

    async def lead(self, term: Term) -> None:
        """Look after topics until cancelled, waiting out outages of the metadata store.

        Raises:
            LeaseLost: the term is over. It may come inside an exception group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat, self._options.interval_s, self.look_after_all, term)
            nursery.start_soon(self._repeat, self._options.poll_s, self.publish_events, term)

    async def _repeat(
        self, pause_s: float, work: Callable[[Term], Awaitable[None]], term: Term
    ) -> None:
        while True:
            try:
                await work(term)
            except LeaseLost as lost:
                if lost.name == term.lease.name:
                    raise
                _log.warning("housekeeping of topics interrupted, trying again: %s", lost)
            except (MetadataError, LedgerError) as failure:
                _log.warning("housekeeping of topics interrupted, trying again: %s", failure)
            await trio.sleep(pause_s)

    async def publish_events(self, _term: Term) -> None:
        """Publish pending events. Concurrent publishers do no harm: each event appears once."""
        for namespace in await waiting_namespaces(self._store):
            try:
                await Topics(self._context).publish_events(namespace)
            except LedgerError as failure:  # other namespaces may work
                _log.warning("events of %s are not published yet: %s", namespace, failure)

    async def look_after_all(self, term: Term) -> None:
        """Go through all topics once, then rest. Raises MetadataError, LedgerError."""
        began_at = trio.current_time()
        self._now_ms = await self._store.now_ms()
        deleting: set[int] = set()
        self._idle_now = set()
        self._figures.begin_round()
        async for topic in Listing(self._store, TOPICS, decode_topic, unreadable=self._unreadable):
            if topic.state == "deleting":
                deleting.add(topic.uid)
                await self._end_deletion(topic, term)
            else:
                await self._look_after(topic, term)
        self._half_deleted, self._idle_before = deleting, self._idle_now
        self._figures.end_round()
        await self._dead_jobs.give_up(term)
        await trio.sleep((trio.current_time() - began_at) * REST_RATIO)

    async def _end_deletion(self, topic: TopicRecord, term: Term) -> None:
        if topic.uid in self._half_deleted:  # for a round already: its client has given up
            catalogue = self._context.catalogue
            await Deletion(self._context.ledgers, catalogue, topic, checks=[term.check]).run()
            _log.info("completed the deletion of topic %s", topic.name)

    async def _look_after(self, topic: TopicRecord, term: Term) -> None:
        try:
            lanes = await read_holdings(self._store, topic)
            pins = await read_pins(self._store, topic)
        except BadRecord as wrong:
            if topic.name not in self._unreadable:
                self._unreadable.add(topic.name)
                _log.warning("topic %s is skipped, its metadata is damaged: %s", topic.name, wrong)
            return
        self._figures.note(topic, lanes)
        for _, group in groupby(lanes, key=lambda lane: lane.partition):
            partition = list(group)
            await self._retain(topic, partition, pins, term)
            await self._close_idle(topic, partition)
        gone = await remove_retired(self._store, topic.uid, self._now_ms, checks=[term.check])
        if gone:
            _log.info("removed %d ledgers of former compactions of topic %s", gone, topic.name)

    async def _retain(
        self, topic: TopicRecord, lanes: list[LaneHoldings], pins: Sequence[Pin], term: Term
    ) -> None:
        await trio.lowlevel.checkpoint()  # lets the bookie serve clients between partitions
        fates = removable(plan_retention(lanes, topic.retention, now_ms=self._now_ms, pins=pins))
        gone = await remove_ledgers(self._context.catalogue, topic.uid, fates, checks=[term.check])
        if gone:
            self._figures.note_removed(topic.name, gone)
            _log.info("removed %d ledgers of topic %s", len(gone), topic.name)

    async def _close_idle(self, topic: TopicRecord, lanes: list[LaneHoldings]) -> None:
        for lane in lanes:
            place = (topic.uid, lane.partition, lane.lane)
            if is_idle(lane):
                self._idle_now.add(place)
                if place in self._idle_before:
                    await self._close(topic, lane)

    async def _close(self, topic: TopicRecord, lane: LaneHoldings) -> None:
        where = f"{lane_text(lane.partition, lane.lane)} of topic {topic.name}"
        try:
            with trio.fail_after(self._options.close_timeout_s):
                await self._close_lane(self._context.ledgers, topic, lane.partition, lane.lane)
        except (LedgerError, trio.TooSlowError) as failure:
            _log.warning("cannot close idle %s: %s", where, failure)
        else:
            _log.info("closed idle %s", where)


def is_idle(lane: LaneHoldings) -> bool:
    """Return True if a lane has no writer and an open ledger."""
    return lane.owner is None and any(held.row.state == "open" for held in lane.ledgers)
