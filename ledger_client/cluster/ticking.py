"""The service of ticks: a role of the leader, for all topics with timesync.

    50 to 200 ms:  a fresh timestamp ──► the lanes are as they were read ──► Ticker.decide()
                                              │ else read those that changed    ▲     │
                   reports (metadata/time/tick_desk.py) ────────────────────────┘     │
                                                                                      ▼
                   desk: the newest tick ◄── idle                      stored ──► tick ledger

A round makes sure of the lanes in one transaction, with a check of the term: so a former leader
makes no tick from lanes that another one closed. An append that fails makes the service begin the
topic anew, above whatever its ledger has.

A change of a topic that is under way holds its ticks back (metadata/time/tick_holds.py). Its client
changes the row that a round checks; then holds are read with the lanes, and in each round until
there are none.

A topic without open lanes is at rest once its last tick is stored: the moment of each round is its
next tick, at no cost, until a lane changes or the topic does.

A lane whose writer died would hold all ticks back. So a lane that nobody reports, and whose lease
is gone at two looks, is closed as its next writer would close it.

Tick ledgers that no message needs are removed beside the rounds: that takes a look at each lane.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio

from ledger_client.cluster.observer import TickFigures, TopicTicks
from ledger_client.errors import LedgerError, NoSuchTopic, lane_text
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.tick_follower import tick_rows
from ledger_client.topics.tick_log import TickLog
from metadata.errors import BadRecord, LeaseLost, MetadataError, NotLeader, VersionConflict
from metadata.leadership import Term
from metadata.pointers import LaneAt, read_lane, read_lane_records
from metadata.store import Check, MetadataStore, Versioned, items_under
from metadata.time.calls import AllotTimestamps, LaneIndex, TickNow, TimestampsAllotted
from metadata.time.tick_holds import Holds, read_holds
from metadata.time.tick_rows import (
    LANES_OF_TOPIC,
    TIME_LANES,
    TickHold,
    decode_timed_topic,
    lanes_of_topic_key,
)
from metadata.time.ticker import Decision, LaneView, Reports, Ticker
from metadata.time.timekeeper import Timekeeper
from metadata.time.timestamps import compose, split
from metadata.topics import (
    LANES,
    decode_lane_ledger,
    lane_ledger_key,
    lane_ledgers_prefix,
    lane_of,
    last_number,
    topic_prefix,
    writer_lease,
)

ROUND_S = 0.2
ROUND_MIN_S = 0.05
"""Between two rounds if a lane got further meanwhile."""
LOOK_S = 1.0
"""Between two looks for lanes whose writers died."""
IDLE_S = 10.0
"""Between two looks for a topic while there is none, without a hint."""
SILENT_S = 1.0
"""A lane that is not reported for so long may have no writer."""
CLOSE_S = 30.0
APPEND_S = 10.0
"""For one tick; then the topic's ticks begin anew."""
TRIM_S = 60.0
"""Between two looks for tick ledgers that no message needs."""
TRIM_LIMIT_S = 600.0
"""For one such look, which asks the store about each lane."""
WARN_ROUNDS = 10
"""A lane or change that holds ticks back for so many times ROUND_S is named in the log."""
WARN_S = 120.0
"""And again after so long."""
CLOCKS_APART_MS = 3_600_000
"""The oracle is never further behind the store's clock, which dates ledgers."""
_log = logging.getLogger(__name__)


class TimedLanes:
    """The lanes of one topic, read anew where they changed.

    A lane in which a job is about to show messages is open too, and nobody reports it.
    """

    def __init__(self, uid: int, name: str) -> None:
        self.uid = uid
        self.name = name
        self.views: dict[LaneIndex, LaneView] = {}
        self.version = -1
        """of the row that changes with the topic's lanes, when they were read last"""
        self._versions: dict[LaneIndex, int] = {}

    async def read(self, store: MetadataStore) -> None:
        """Read the lanes whose records changed. Raises MetadataError."""
        for found in await read_lane_records(store, topic_prefix(LANES, self.uid)):
            if self._versions.get(lane_of(found.key)) != found.version:
                await self._read_lane(store, found)

    async def _read_lane(self, store: MetadataStore, found: LaneAt) -> None:
        """Read the row of the lane's last ledger, and make sure that it was the last one then.

        Otherwise a lane that goes on in its next ledger meanwhile, which no row of lanes shows,
        would be taken for one that was closed where the former ledger begins.
        """
        lane, again = lane_of(found.key), found
        while True:
            key, record, version = again
            if record.current < 0:
                is_open = False
                break
            row_key = lane_ledger_key(self.uid, *lane, record.current)
            row = await store.get(row_key)
            is_open = row is not None and decode_lane_ledger(row_key, row.value).state == "open"
            now = await read_lane(store, key)
            if now is None:
                return  # the topic was deleted
            if now.version == version:
                break
            again = now
        self.views[lane] = LaneView(
            record.epoch, is_open or record.holds_ticks, record.next_version
        )
        if record.pending is None:
            self._versions[lane] = version
        else:  # a pointer shows what is pending, and leaves the record as it is
            self._versions.pop(lane, None)


class Watch:
    """Names in the log what holds the ticks of a topic back for long."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._holder: LaneIndex | TickHold | None = None
        self._since = 0.0
        self._warn_at = 0.0

    def note(self, holder: LaneIndex | TickHold | None, why: str, now: float) -> None:
        """Note who let no tick be made in this round, None if one was."""
        if holder is None or holder != self._holder:
            self._holder, self._since, self._warn_at = holder, now, now
        held_s = now - self._since + ROUND_S
        is_long = held_s > (WARN_ROUNDS - 0.5) * ROUND_S
        if holder is not None and is_long and now >= self._warn_at:
            self._warn_at = now + WARN_S
            _log.warning("ticks of %s wait for %.0f s: %s", self._topic, held_s, why)


class TickedTopic:
    """One topic, during one term.

    Attributes:
        made_at: when its newest tick was made, by trio's clock.
        trim_at: when to look for old tick ledgers; infinite while a look is under way.
        watch: warns of who holds its ticks back.
    """

    def __init__(self, lanes: TimedLanes, log: TickLog, reports: Reports, began_at: float) -> None:
        self.lanes = lanes
        self.log = log
        self.reports = reports
        self.began_at = began_at
        self.ticker: Ticker | None = None
        """None until the log is begun, and again after a failure"""
        self.is_busy = False
        self.orphans: dict[LaneIndex, int] = {}
        """open lanes without a lease at the last look, and their epochs"""
        self.trim_at = self.made_at = began_at
        self.watch = Watch(lanes.name)

    def silent_s(self, holder: LaneIndex | TickHold | None) -> float:
        """Return how long the writer of a lane has reported nothing; 0 for what is no lane."""
        if holder is None or isinstance(holder, TickHold):
            return 0.0
        return self.reports.silent_s(holder, trio.current_time(), self.began_at)

    def open_lanes(self) -> Mapping[LaneIndex, LaneView]:
        """Return the lanes that may be written."""
        return {lane: view for lane, view in self.lanes.views.items() if view.is_open}


class TickService:
    """Makes ticks while its bookie leads."""

    def __init__(
        self,
        context: TopicContext,
        timekeeper: Timekeeper,
        *,
        figures: TickFigures | None = None,
    ) -> None:
        """*figures*: counts for metrics."""
        self._context = context
        self._timekeeper = timekeeper
        self._figures = figures or TickFigures()

    async def lead(self, term: Term) -> None:
        """Make ticks until cancelled, waiting out outages.

        Raises:
            LeaseLost: the term is over. It may come inside an exception group.
        """
        desk = self._timekeeper.desk
        async with trio.open_nursery() as nursery:
            office = Office(self._context, self._timekeeper, self._figures, term, nursery)
            desk.open(term)
            self._figures.topics = office.figures
            try:
                await office.work()
            finally:
                self._figures.clear()
                desk.close()
                office.leave()


class Office:
    """The service during one term."""

    def __init__(
        self,
        context: TopicContext,
        timekeeper: Timekeeper,
        figures: TickFigures,
        term: Term,
        nursery: trio.Nursery,
    ) -> None:
        self._figures = figures
        self._context = context
        self._store = context.store
        self._timekeeper = timekeeper
        self._term = term
        self._nursery = nursery
        self._topics: dict[int, TickedTopic] = {}
        self._version: int | None = None
        """of the row that changes with all lanes, when they were read last"""
        self._damaged: set[str] = set()
        """rows of topics whose lanes cannot be read"""
        self._holds: Holds = {}
        self._moment = 0
        """the last fresh timestamp"""
        self._moment_at = trio.current_time()
        self._closing: set[tuple[int, LaneIndex]] = set()
        self._opened = trio.Event()

    async def work(self) -> None:
        """Do rounds until cancelled. Raises LeaseLost."""
        watches = self._store.watches
        with suppress(MetadataError):  # too many prefixes: lanes are noticed later
            watches.subscribe(TIME_LANES, self)
        try:
            self._nursery.start_soon(self._look_repeatedly)
            await self._repeat()
        finally:
            watches.unsubscribe(TIME_LANES, self)

    def leave(self) -> None:
        """End the writing of all ticks."""
        for topic in self._topics.values():
            topic.log.leave()

    def figures(self) -> list[TopicTicks]:
        """Return how far each topic's ticks are behind, and how many lanes hold them back."""
        now, found = trio.current_time(), []
        for topic in self._topics.values():
            newest, lag_s = self._timekeeper.desk.newest(topic.lanes.uid), now - topic.began_at
            if newest is not None and newest.timestamp and self._moment:
                lag_ms = split(self._moment).physical_ms - split(newest.timestamp).physical_ms
                lag_s = max(lag_ms, 0) / 1000 + now - self._moment_at
                if topic.lanes.uid not in self._timekeeper.desk.at_rest:
                    # Timestamps stand still while this host's clock is behind them.
                    lag_s = max(lag_s, now - topic.made_at)
            holding = 0 if topic.ticker is None else topic.ticker.holding
            found.append(TopicTicks(topic.lanes.name, lag_s, holding))
        return found

    async def _repeat(self) -> None:
        while True:
            self._timekeeper.desk.progress = trio.Event()
            await _try(self.round)
            if self._topics:
                await trio.sleep(ROUND_MIN_S)
                with trio.move_on_after(ROUND_S - ROUND_MIN_S):
                    await self._timekeeper.desk.progress.wait()
                continue
            with trio.move_on_after(IDLE_S):
                await self._opened.wait()
            self._opened = trio.Event()

    async def _look_repeatedly(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            await _try(self._look_for_orphans)

    def notify(self, _prefix: str, _hint: str) -> None:
        """Look soon: a lane was opened."""
        self._opened.set()

    # --- a round ---------------------------------------------------------------------------

    async def round(self) -> None:
        """Give every topic its next tick. Raises MetadataError, LedgerError."""
        if self._version is None or self._damaged:
            await self._read_lanes()
        elif self._holds:  # the end of a hold changes no row
            self._holds = await read_holds(self._store)
        if not self._topics:
            self._version = None
            return
        self._figures.refused = self._timekeeper.desk.refused
        moment = await self._fresh()
        if moment is None or self._version is None:
            return
        self._moment, self._moment_at = moment, trio.current_time()
        try:
            await self._store.transact([self._term.check, Check(TIME_LANES, self._version)])
        except VersionConflict:
            # What is read now is as it was after the moment, so nothing needs to be checked again
            # but the term. Else lanes that open all the time would hold ticks back.
            await self._read_lanes()
            await self._store.transact([self._term.check])
        desk, topics = self._timekeeper.desk, list(self._topics.values())
        for topic in topics:
            if topic.lanes.uid in self._holds:
                self._wake(topic)
            self._trim_when_due(topic)
        desk.moment = moment  # not before: a change that is under way holds it back
        for topic in topics:
            if not (topic.is_busy or topic.lanes.uid in desk.at_rest):
                self._go_on(topic, moment)

    async def _fresh(self) -> int | None:
        """Return a fresh timestamp, None while this bookie hands out none."""
        try:
            reply = await self._timekeeper.answer(AllotTimestamps())
        except NotLeader:
            return None
        assert isinstance(reply, TimestampsAllotted)
        return reply.first

    async def _read_lanes(self) -> None:
        """Read what changed of all lanes of topics with timesync.

        The row that changes with all of them is read first: whatever changes later shows when its
        version is checked. A topic with damaged rows gets no ticks until they are mended.
        """
        found = await self._store.get(TIME_LANES)
        if found is None:
            return
        items = await items_under(self._store, LANES_OF_TOPIC)
        there = {key for key, _ in items}
        for topic in list(self._topics.values()):
            if lanes_of_topic_key(topic.lanes.uid) not in there:
                self._forget(topic)
        damaged: set[str] = set()
        for key, row in items:
            try:
                await self._read_topic(key, row)
            except BadRecord as wrong:
                damaged.add(key)
                if key not in self._damaged:
                    _log.warning("a topic gets no ticks: %s", wrong)
        self._damaged = damaged
        self._holds = await read_holds(self._store)
        self._version = found.version

    async def _read_topic(self, key: str, row: Versioned) -> None:
        """Read what changed of a topic's lanes. If it raises BadRecord the topic is forgotten."""
        uid = last_number(key)
        topic = self._topics.get(uid)
        if topic is None:
            topic = self._topics[uid] = self._new(uid, decode_timed_topic(key, row.value).name)
        if topic.lanes.version != row.version:
            try:
                await topic.lanes.read(self._store)
            except BadRecord:
                self._forget(topic)
                raise
            topic.lanes.version = row.version
            topic.reports.keep(topic.lanes.views)
            self._wake(topic)

    def _new(self, uid: int, name: str) -> TickedTopic:
        reports = self._timekeeper.desk.reports[uid] = Reports()
        log = TickLog(self._context, uid, name, self._term.check)
        self._figures.add(name)
        return TickedTopic(TimedLanes(uid, name), log, reports, trio.current_time())

    def _forget(self, topic: TickedTopic) -> None:
        """Make no more ticks of a topic that was deleted, or whose rows cannot be read."""
        topic.log.leave()
        self._topics.pop(topic.lanes.uid, None)
        self._timekeeper.desk.forget(topic.lanes.uid)
        self._figures.forget(topic.lanes.name)

    def _go_on(self, topic: TickedTopic, moment: int) -> None:
        """Make a topic's next tick, if it is time; what must be waited for goes on behind."""
        decision = None
        if topic.ticker is not None:
            holds = self._holds.get(topic.lanes.uid, [])
            decision = topic.ticker.decide(moment, topic.lanes.views, topic.reports, holds)
            if decision is None or not decision.is_stored:
                self._made(topic, topic.ticker, decision)
                return
        topic.is_busy = True
        self._nursery.start_soon(self._advance, topic, decision)

    def _wake(self, topic: TickedTopic) -> None:
        """Make a topic's ticks one by one again, above those that it had at rest."""
        newest = self._timekeeper.desk.wake(topic.lanes.uid)
        if newest is not None and topic.ticker is not None:
            topic.ticker.newest = newest

    async def _advance(self, topic: TickedTopic, decision: Decision | None) -> None:
        """Store a topic's next tick, if there is one; before the first, find the last one."""
        try:
            with trio.fail_after(APPEND_S):
                if topic.ticker is None:
                    topic.ticker = Ticker(await topic.log.begin())
                if decision is not None:
                    await topic.log.append(decision.timestamp, decision.covers)
                    self._made(topic, topic.ticker, decision)
                    self._figures.note_stored(topic.lanes.name)
        except NoSuchTopic:
            self._forget(topic)
        except LeaseLost:
            raise
        except (MetadataError, LedgerError, trio.TooSlowError) as failure:
            _log.warning("ticks of %s begin anew: %s", topic.lanes.name, failure)
            topic.ticker = None
            topic.log.leave()
            topic.log = TickLog(self._context, topic.lanes.uid, topic.lanes.name, self._term.check)
        finally:
            topic.is_busy = False

    def _made(self, topic: TickedTopic, ticker: Ticker, decision: Decision | None) -> None:
        """Let readers see the newest tick, and what holds the next one back.

        An idle one of closed lanes is followed by idle ones, until a lane changes.
        """
        now, holder, desk = trio.current_time(), ticker.holder, self._timekeeper.desk
        if decision is None:
            topic.watch.note(holder, _reason(holder, topic.silent_s(holder)), now)
        else:
            topic.watch.note(None, "", now)
            ticker.made(decision)
            topic.made_at = now
        uid, stored = topic.lanes.uid, ticker.stored
        shown = desk.ticks.get(uid)
        if shown is not None and shown.stored == stored.timestamp:
            covers = shown.covers
        else:
            covers = [(*lane, version) for lane, version in stored.covers.items()]
        desk.ticks[uid] = TickNow(
            ticker.newest,
            stored.timestamp,
            covers,
            _holder_text(holder),
            lane=None if isinstance(holder, TickHold) else holder,
            silent_s=topic.silent_s(holder),
        )
        desk.made_at[uid] = topic.made_at
        if decision is not None and decision.is_rest:
            desk.at_rest.add(uid)

    # --- dead writers ------------------------------------------------------------------------

    async def _look_for_orphans(self) -> None:
        """Close lanes that had neither reports nor a lease at the last look, and have none now."""
        now = trio.current_time()
        for topic in list(self._topics.values()):
            orphans: dict[LaneIndex, int] = {}
            for lane, view in topic.open_lanes().items():
                if topic.reports.silent_s(lane, now, topic.began_at) < SILENT_S:
                    continue
                if await self._has_writer(topic, lane):
                    continue
                orphans[lane] = view.epoch
                place = (topic.lanes.uid, lane)
                if topic.orphans.get(lane) == view.epoch and place not in self._closing:
                    self._closing.add(place)
                    self._nursery.start_soon(self._close, topic, lane)
            topic.orphans = orphans

    async def _has_writer(self, topic: TickedTopic, lane: LaneIndex) -> bool:
        name = writer_lease(topic.lanes.uid, *lane)
        return any(lease.name == name for lease in await self._store.leases(name))

    async def _close(self, topic: TickedTopic, lane: LaneIndex) -> None:
        where = f"{lane_text(*lane)} of {topic.lanes.name}"
        try:
            with trio.fail_after(CLOSE_S):
                record, _ = await self._context.catalogue.get(topic.lanes.name)
                if record.uid == topic.lanes.uid:
                    await close_lane(self._context.ledgers, record, *lane)
                    self._figures.closed += 1
                    _log.info("closed %s: its writer died, and held ticks back", where)
        except (LedgerError, trio.TooSlowError) as failure:
            _log.warning("cannot close %s, whose writer died: %s", where, failure)
        finally:
            self._closing.discard((topic.lanes.uid, lane))

    # --- old ticks ---------------------------------------------------------------------------

    def _trim_when_due(self, topic: TickedTopic) -> None:
        """Now and then, begin to look for tick ledgers that no message of the topic needs."""
        if topic.ticker is not None and trio.current_time() >= topic.trim_at:
            topic.trim_at = math.inf
            self._nursery.start_soon(self._trim, topic, topic.ticker.stored.timestamp)

    async def _trim(self, topic: TickedTopic, stored: int) -> None:
        """Remove tick ledgers below the oldest message of the topic; they can wait.

        Lanes that open meanwhile have greater timestamps than *stored*, that of the last tick.
        """
        try:
            with trio.fail_after(TRIM_LIMIT_S):
                rows = await tick_rows(self._context, topic.lanes.uid)
                if len(rows) > 1:  # the last one stays
                    await topic.log.trim(await self._first_needed(topic, stored, rows[1][1].after))
        except LeaseLost:
            raise
        except (MetadataError, LedgerError, trio.TooSlowError) as failure:
            _log.warning("old ticks of %s stay for now: %s", topic.lanes.name, failure)
        finally:
            topic.trim_at = trio.current_time() + TRIM_S

    async def _first_needed(self, topic: TickedTopic, stored: int, least: int) -> int:
        """Return a timestamp up to that of the oldest message; at *least* the look ends early."""
        needed = stored
        for lane in list(topic.lanes.views):
            if needed <= least:
                break
            prefix = lane_ledgers_prefix(topic.lanes.uid, *lane)
            for key, found in await self._store.list(prefix, limit=1):
                row = decode_lane_ledger(key, found.value)
                opened_ms = max(row.created_ms - CLOCKS_APART_MS, 0)
                needed = min(needed, row.first_timestamp or compose(opened_ms))
        return needed


def _holder_text(holder: LaneIndex | TickHold | None) -> str:
    if holder is None:
        return ""
    if isinstance(holder, TickHold):
        return f"process {holder.process_id} of {holder.host}, by which the topic is {holder.kind}"
    return lane_text(*holder)


def _reason(holder: LaneIndex | TickHold | None, silent_s: float) -> str:
    if holder is None or isinstance(holder, TickHold):
        return _holder_text(holder)
    if silent_s < SILENT_S:
        return f"{lane_text(*holder)} has messages that are not acknowledged"
    return f"{lane_text(*holder)} is open, and its writer does not report it"


async def _try(work: Callable[[], Awaitable[None]]) -> None:
    """Do some work; what fails now is done in a later round. Raises LeaseLost."""
    try:
        await work()
    except LeaseLost:
        raise
    except (MetadataError, LedgerError) as failure:
        _log.warning("ticks wait: %s", failure)
