"""The leader's part in topics: what nobody else has done by now.

    retention          ledgers that are over their topic's limits are removed
    idle lanes         a lane that nobody writes is closed: what its writer acknowledged
                       last, before it was killed, can be read then, and all of it can go
    deletions          those that were left half are ended
    dead jobs          what they staged and did not show is given up
    compaction         ledgers of former generations are removed
    events             those that were not told by who made the change are told

What looks idle or left half is looked at again a round later before anything is done: a
writer that lost its lease while the store was away takes it again.

What is old is judged by the store's time, by which its age was noted: no host's clock counts.

Each removal is written together with a check of the term, so that a leader whose time is
over removes nothing. Everything may be done twice, and by others at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.observation.topics import TopicFigures
from ledger_client.repair.records import Listing
from ledger_client.topics.client import TopicClient
from ledger_client.topics.events import waiting_namespaces
from ledger_client.topics.jobs.job import read_pins
from ledger_client.topics.keeping.compacted_sets import remove_retired
from ledger_client.topics.keeping.dead_jobs import DeadJobs
from ledger_client.topics.keeping.deletion import Deletion
from ledger_client.topics.keeping.holdings import LaneHoldings, read_holdings
from ledger_client.topics.keeping.idle import close_lane
from ledger_client.topics.keeping.purge import going, remove
from ledger_client.topics.keeping.retention import Pin, plan_retention
from metadata.errors import BadRecord, LeaseLost, MetadataError
from metadata.leadership import Term
from metadata.topics import TOPICS, TopicRecord, decode_topic

CloseLane = Callable[[Client, TopicRecord, int, int], Awaitable[None]]
"""Takes the lane of a topic (partition, lane) and closes it. Raises LedgerError."""
REST_RATIO = 10
LaneKey = tuple[int, int, int]
"""A topic's uid, partition and lane."""
_log = logging.getLogger(__name__)


class HousekeepingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds end in ``_s``."""

    interval_s: float = 10.0
    """Between two rounds through all topics, beside a rest ten times as long as the round:
    the host has other things to do."""
    poll_s: float = 2.0
    """Between two looks for events that are to be told."""
    close_timeout_s: float = 30.0
    """For closing one lane that nobody writes."""


class Housekeeper:
    """What a leader does for topics in its terms."""

    def __init__(
        self,
        client: TopicClient,
        options: HousekeepingOptions,
        *,
        figures: TopicFigures | None = None,
        close_lane: CloseLane = close_lane,
    ) -> None:
        self._client = client
        self._store = client.store
        self._options = options
        self._figures = figures or TopicFigures()
        self._close_lane = close_lane
        self._now_ms = 0
        """the store's time when the round began"""
        self._dead_jobs = DeadJobs(client.store)
        self._unreadable: set[str] = set()
        self._half_deleted: set[int] = set()
        self._idle_before: set[LaneKey] = set()
        self._idle_now: set[LaneKey] = set()

    async def lead(self, term: Term) -> None:
        """Look after topics until cancelled. While the store is away, wait for it.

        Raises:
            LeaseLost: the term is over; alone or in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat, self._options.interval_s, self.look_after_all, term)
            nursery.start_soon(self._repeat, self._options.poll_s, self.tell_events, term)

    async def _repeat(
        self, pause_s: float, work: Callable[[Term], Awaitable[None]], term: Term
    ) -> None:
        while True:
            try:
                await work(term)
            except LeaseLost as lost:
                if lost.name == term.lease.name:
                    raise
                _log.warning("looking after topics waits: %s", lost)
            except (MetadataError, LedgerError) as failure:
                _log.warning("looking after topics waits: %s", failure)
            await trio.sleep(pause_s)

    async def tell_events(self, _term: Term) -> None:
        """Tell what is to be told. Two tellers do no harm: each event is told once."""
        for namespace in await waiting_namespaces(self._store):
            try:
                await self._client.administration.tell(namespace)
            except LedgerError as failure:  # others may have better luck
                _log.warning("events of %s wait: %s", namespace, failure)

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
        if topic.uid in self._half_deleted:  # a round ago too: whoever began it has left it
            catalogue = self._client.topics
            await Deletion(self._client, catalogue, topic, checks=[term.check]).run()
            _log.info("ended the deletion of topic %s", topic.name)

    async def _look_after(self, topic: TopicRecord, term: Term) -> None:
        try:
            lanes = await read_holdings(self._store, topic)
            pins = await read_pins(self._store, topic)
        except BadRecord as wrong:
            if topic.name not in self._unreadable:
                self._unreadable.add(topic.name)
                _log.warning("topic %s is left as it is: %s", topic.name, wrong)
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
        await trio.lowlevel.checkpoint()  # the host serves clients between two partitions
        fates = going(plan_retention(lanes, topic.retention, now_ms=self._now_ms, pins=pins))
        gone = await remove(self._client.topics, topic.uid, fates, checks=[term.check])
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
        where = f"lane {lane.lane} of partition {lane.partition} of topic {topic.name}"
        try:
            with trio.fail_after(self._options.close_timeout_s):
                await self._close_lane(self._client, topic, lane.partition, lane.lane)
        except (LedgerError, trio.TooSlowError) as failure:
            _log.warning("%s is not closed: %s", where, failure)
        else:
            _log.info("closed %s, which nobody writes", where)


def is_idle(lane: LaneHoldings) -> bool:
    """Whether a lane was left without being closed."""
    return lane.owner is None and any(held.row.state == "open" for held in lane.ledgers)
