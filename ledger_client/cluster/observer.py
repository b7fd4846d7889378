"""The observer: the state of the cluster while its bookie leads, for the metrics.

    bookies, marks, repairs ─► ClusterFigures ─┐
    housekeeper ─────────────► TopicFigures ───┼──► metrics.py ──► /metrics of the leader
    leases, reports ─────────► JobFigures ─────┤
    coordinator, progress ───► GroupFigures ───┘

Only the leader publishes them, so nothing is counted twice, and a deposed leader's figures
disappear. Bookies are asked for the lag of groups alone, and a scrape waits for nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar, get_args

import msgspec
import trio

from ledger_client.cluster.repair.survey import Census
from ledger_client.ledgers.records import Reason
from ledger_client.topics.retention.retention import Fate
from metadata.compaction import COMPACTED, CompactionReport, decode_set
from metadata.errors import BadRecord, MetadataError
from metadata.groups.hosted import GroupCounts
from metadata.jobs import JOB_KINDS, JOBS, JobOwner, decode_job_owner
from metadata.listings import Listing, list_marks, list_repairs, rack_report
from metadata.paged import whole_value
from metadata.records import RepairProgress, UnderReplicated
from metadata.replays import REPLAYS, ReplayRecord, decode_replay
from metadata.store import Lease, MetadataStore, items_under, leases_under
from metadata.topics import TOPICS, decode_topic

T = TypeVar("T")
INTERVAL_S = 2.0
REST_RATIO = 10
"""A pause lasts at least this many times as long as a look: the bookie has other work."""
JOBS_EVERY = 5
"""Jobs are read at every fifth look only, as their reports seldom change."""
_log = logging.getLogger(__name__)


class Observer:
    """The leader's view of its cluster.

    Attributes:
        cluster: bookies and repair.
        topics: updated by the housekeeper with each round.
        jobs: compactions, replays and other jobs over topics.
        groups: updated by GroupObserver.
        ticks: updated by the service of ticks.
    """

    def __init__(
        self, store: MetadataStore, *, lost_after_s: float, census: Census | None = None
    ) -> None:
        """*census*: one that another part of the leader refreshes."""
        self.cluster = ClusterFigures(store, lost_after_s=lost_after_s, census=census)
        self.topics = TopicFigures()
        self.jobs = JobFigures(store)
        self.groups = GroupFigures()
        self.ticks = TickFigures()

    async def lead(self) -> None:
        """Look every few seconds until cancelled, then clear all figures.

        While the store is unavailable, the figures stay as they are.
        """
        looks = 0
        try:
            while True:
                began_at = trio.current_time()
                try:
                    await self.cluster.look()
                    if looks % JOBS_EVERY == 0:
                        await self.jobs.look()
                    looks += 1
                except MetadataError as failure:
                    _log.debug("cannot observe the cluster: %s", failure)
                took_s = trio.current_time() - began_at
                await trio.sleep(max(INTERVAL_S, took_s * REST_RATIO))
        finally:
            self.cluster.seen = None
            self.topics.clear()
            self.jobs.clear()


# --- Topics -----------------------------------------------------------------------------
# A cluster may have any number of topics, but a scrape must stay small. So at most TOPICS_MAX
# topics are published by name, the largest first, and the others as one sum. A topic keeps its
# name in the metrics until it is deleted, lest the sums jump.


TOPICS_MAX = 200
OTHERS = "other"
"""The label for all topics beyond TOPICS_MAX; no topic can have this name."""
LEDGER_STATES = ("prepared", "open", "closed")
TOGETHER = 200
"""Topics that are summed up before the bookie may serve clients again."""


class TopicSnapshot(msgspec.Struct, kw_only=True):
    """The contents of a topic. Sizes and messages count closed ledgers only.

    Times are Unix milliseconds, or `None`.
    """

    topics: int = 0
    """number of topics in these figures"""
    ledgers: dict[str, int] = {}
    """by state"""
    lanes: int = 0
    writers: int = 0
    """lanes with a writer"""
    size: int = 0
    """payload bytes of closed ledgers, one copy of each"""
    messages: int = 0
    oldest_ms: int | None = None
    """when the oldest ledger was created"""
    closed_ms: int | None = None
    """when the oldest closed ledger was closed; retention counts from there"""
    keep_s: float | None = None
    """retention time of closed ledgers; `None` without an age limit"""

    def add(self, other: TopicSnapshot) -> None:
        """Add the figures of another topic to these."""
        self.topics += other.topics
        self.ledgers = {
            state: self.ledgers.get(state, 0) + other.ledgers.get(state, 0)
            for state in LEDGER_STATES
        }
        self.lanes += other.lanes
        self.writers += other.writers
        self.size += other.size
        self.messages += other.messages
        self.oldest_ms = _earlier(self.oldest_ms, other.oldest_ms)
        self.closed_ms = _earlier(self.closed_ms, other.closed_ms)


class Removals(msgspec.Struct):
    """What retention has removed since this leader's term began."""

    ledgers: int = 0
    size: int = 0


class TopicFigures:
    """All topics as of the housekeeper's last round, once it has seen every lane.

    Attributes:
        seen: at most TOPICS_MAX topics by name, and the sum of the others under OTHERS.
        removed: what retention removed, by the same names.
    """

    def __init__(self) -> None:
        self.seen: dict[str, TopicSnapshot] = {}
        self.removed: dict[str, Removals] = {}
        self._topics: dict[str, TopicSnapshot] = {}

    def note(self, name: str, found: TopicSnapshot) -> None:
        """Note what a topic holds now, for the end of the round."""
        self._topics[name] = found

    def forget(self, name: str) -> None:
        """Note that a topic is gone."""
        self._topics.pop(name, None)

    def note_removed(self, name: str, fates: Sequence[Fate]) -> None:
        """Count ledgers that retention removed, under the topic's label."""
        label = name if name in self.seen else OTHERS
        removals = self.removed.setdefault(label, Removals())
        removals.ledgers += len(fates)
        removals.size += sum(fate.ledger.size for fate in fates)

    async def end_round(self) -> None:
        """Publish what is known of all topics. Costs some microseconds a topic."""
        found = self._topics
        named = [name for name in self.seen if name in found]
        new = sorted(found.keys() - self.seen.keys(), key=lambda name: found[name].size)
        while new and len(named) < TOPICS_MAX:
            named.append(new.pop())
        seen = {name: found[name] for name in named}
        if new:
            seen[OTHERS] = others = TopicSnapshot()
            for count, name in enumerate(new):
                others.add(found[name])
                if count % TOGETHER == 0:
                    await trio.lowlevel.checkpoint()
        self.removed = {name: self.removed.get(name, Removals()) for name in {**seen, OTHERS: None}}
        self.seen = seen

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.seen, self.removed, self._topics = {}, {}, {}


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


# --- Groups of consumers ------------------------------------------------------------------


GROUPS_MAX = 200
"""Groups that are published; a group keeps its place among them until it is deleted."""


class TopicLag(msgspec.Struct, frozen=True):
    """How far a group is behind in all lanes of a topic."""

    messages: int
    """also those that members of a shared group hold, not acknowledged"""
    lag_s: float
    """age of the oldest of them when they were looked at; 0 without any"""


class GroupFigures:
    """The groups of the cluster as they were looked at last.

    Attributes:
        counts: returns what the coordinator has in memory; nothing while another bookie leads.
        published: names of the groups that are published, at most GROUPS_MAX.
        lags: by group and topic.
    """

    def __init__(self) -> None:
        self.counts: Callable[[], Sequence[GroupCounts]] = tuple
        self.published: Collection[str] = ()
        self.lags: Mapping[tuple[str, str], TopicLag] = {}

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.counts, self.published, self.lags = tuple, (), {}


# --- Ticks --------------------------------------------------------------------------------


class TopicTicks(NamedTuple):
    """How far the ticks of a topic with timesync are behind."""

    topic: str
    lag_s: float
    """from the newest tick to the cluster's time"""
    holding: int
    """open lanes that let no later tick be made"""


class TickFigures:
    """Ticks of the topics with timesync: at most TOPICS_MAX topics by name, and OTHERS.

    Attributes:
        topics: returns what the service has in memory; nothing while another bookie leads.
        stored: ticks that were stored in this term, by topic.
        refused: reports of lanes that came from others than their writers.
        closed: lanes of dead writers that the service closed.
    """

    def __init__(self) -> None:
        self.topics: Callable[[], Sequence[TopicTicks]] = tuple
        self.stored: dict[str, int] = {}
        self.refused = self.closed = 0

    def add(self, topic: str) -> None:
        """Publish a topic by its name from now on, if there is room."""
        self.stored.setdefault(self._label(topic), 0)

    def forget(self, topic: str) -> None:
        """Note that a topic is gone."""
        self.stored.pop(topic, None)

    def note_stored(self, topic: str) -> None:
        """Count a stored tick."""
        label = self._label(topic)
        self.stored[label] = self.stored.get(label, 0) + 1

    def seen(self) -> dict[str, TopicTicks]:
        """Return the topics by label: of several the longest lag, and all lanes that hold."""
        found: dict[str, TopicTicks] = {}
        for each in self.topics():
            label = self._label(each.topic)
            other = found.get(label, TopicTicks(label, 0.0, 0))
            found[label] = TopicTicks(
                label, max(each.lag_s, other.lag_s), each.holding + other.holding
            )
        return found

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.topics, self.stored = tuple, {}
        self.refused = self.closed = 0

    def _label(self, topic: str) -> str:
        return topic if topic in self.stored or len(self.stored) < TOPICS_MAX else OTHERS


# --- The cluster in a few numbers -------------------------------------------------------


STATES = ("registered", "read_only", "limbo", "draining", "lost")
"""States of bookies; one may be in several. A lost one is not registered and given up."""
REASONS: tuple[str, ...] = get_args(Reason)


class WaitingLedgers(msgspec.Struct, frozen=True):
    """Ledgers marked for one reason; *size* is the payload bytes to copy, as far as known."""

    ledgers: int = 0
    size: int = 0


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment. Sizes are payload bytes of all copies together."""

    at_s: float
    """Unix time"""
    bookies: dict[str, int]
    """number in each of STATES"""
    waiting: dict[str, WaitingLedgers]
    """by each of REASONS"""
    repairs: int
    """repairs and moves under way"""
    repair_size: int
    """bytes that these will copy"""
    repair_done: int
    """bytes that these have copied"""
    on_few_racks: int = 0
    """ledgers whose copies are on fewer racks than could be"""


class ClusterFigures:
    """The last snapshot of the cluster; *seen* is `None` while its bookie does not lead."""

    def __init__(
        self, store: MetadataStore, *, lost_after_s: float, census: Census | None = None
    ) -> None:
        self.seen: ClusterSnapshot | None = None
        self._store = store
        self._is_own = census is None
        self._census = census or Census(store, lost_after_s=lost_after_s)
        self._unreadable: set[str] = set()

    async def look(self) -> None:
        """Read bookies, marks and repairs. Raises MetadataError and keeps the old snapshot."""
        await self._census.refresh(age_max_s=0.0 if self._is_own else INTERVAL_S)
        marks = await list_marks(self._store, unreadable=self._unreadable)
        repairs = await list_repairs(self._store)
        racks = await rack_report(self._store)
        self.seen = ClusterSnapshot(
            at_s=time.time(),
            bookies=_states(self._census),
            waiting=_by_reason(marks),
            on_few_racks=0 if racks is None else racks.violating,
            **_under_way(repairs),
        )


def _states(census: Census) -> dict[str, int]:
    live = census.live.values()
    counts = {
        "registered": len(live),
        "read_only": sum(bookie.read_only for bookie in live),
        "limbo": sum(bookie.limbo for bookie in live),
        "draining": len(census.draining),
        "lost": len(census.all_lost()),
    }
    return {state: counts[state] for state in STATES}


def _by_reason(marks: Sequence[UnderReplicated]) -> dict[str, WaitingLedgers]:
    ledgers: Counter[str] = Counter(mark.reason for mark in marks)
    sizes: Counter[str] = Counter()
    for mark in marks:
        sizes[mark.reason] += mark.size
    return {reason: WaitingLedgers(ledgers[reason], sizes[reason]) for reason in REASONS}


def _under_way(repairs: Sequence[RepairProgress]) -> dict[str, int]:
    return {
        "repairs": len(repairs),
        "repair_size": sum(repair.size for repair in repairs),
        "repair_done": sum(repair.copied_size for repair in repairs),
    }


# --- Jobs over topics -------------------------------------------------------------------


KINDS = JOB_KINDS
REPORTS_MAX = 100
"""Reports of each kind that are published."""


class RunningJobs(msgspec.Struct):
    """Running jobs of one kind; *since_ms* is the Unix time when the oldest of them started."""

    count: int = 0
    since_ms: int = 0


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A job that succeeded. *name* is the compacted topic, or the replay's name."""

    kind: str
    name: str
    at_s: float
    """Unix time of its end"""
    seconds: float
    keys: int = 0
    messages_in: int = 0
    messages_out: int = 0
    size: int = 0
    """payload bytes of what it wrote"""


class JobFigures:
    """Jobs as of the last look.

    Attributes:
        running: by kind.
        reports: the latest of each kind and name: of replays those that ended last, of compactions
            those that ended first, since a topic that is compacted no more is among them.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.running: dict[str, RunningJobs] = {}
        self.reports: list[JobReport] = []
        self._store = store
        self._unreadable: set[str] = set()
        self._sets = _Summaries(store, COMPACTED, _keyed_report, self._unreadable)
        self._records = _Summaries(store, REPLAYS, _done, self._unreadable)

    async def look(self) -> None:
        """Read the leases and reports of jobs. Raises MetadataError."""
        running = {kind: RunningJobs() for kind in KINDS}
        for lease in await leases_under(self._store, JOBS):
            owner = self._owner(lease)
            if owner is not None:
                jobs = running[owner.kind]
                jobs.count += 1
                jobs.since_ms = min(owner.since_ms, jobs.since_ms or owner.since_ms)
        reports = [*await self._compactions(), *await self._replays()]
        self.running, self.reports = running, reports

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.running, self.reports = {}, []

    def _owner(self, lease: Lease) -> JobOwner | None:
        try:
            return decode_job_owner(lease.name, lease.value)
        except BadRecord:
            return None  # the part of housekeeping that ends dead jobs reports it

    async def _compactions(self) -> list[JobReport]:
        found = await self._sets.look()
        if not found:
            return []
        topics = Listing(self._store, TOPICS, decode_topic, unreadable=self._unreadable)
        names = {topic.uid: topic.name async for topic in topics}
        reports = [_of_report(names[uid], each) for uid, each in found if uid in names]
        return _by_end(reports)[:REPORTS_MAX]

    async def _replays(self) -> list[JobReport]:
        found = await self._records.look()
        return _by_end([each for each in found if each is not None])[-REPORTS_MAX:]


class _Summaries(Generic[T]):
    """Summaries of the values under a prefix, which may be large: each version is read once."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        summarize: Callable[[str, bytes], T],
        unreadable: set[str],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._summarize = summarize
        self._unreadable = unreadable
        self._known: dict[str, tuple[int, T]] = {}

    async def look(self) -> list[T]:
        """Return the summaries in order of keys. Raises MetadataError."""
        before, self._known = self._known, {}
        for key, found in await items_under(self._store, self._prefix):
            known = before.get(key)
            if known is not None and known[0] == found.version:
                self._known[key] = known
                continue
            try:
                whole = await whole_value(self._store, key, found)
                if whole is not None:
                    self._known[key] = whole.version, self._summarize(key, whole.value)
            except BadRecord as wrong:
                if key not in self._unreadable:
                    self._unreadable.add(key)
                    _log.warning("passed over: %s", wrong)
        return [summary for _, summary in self._known.values()]


def _keyed_report(key: str, value: bytes) -> tuple[int, CompactionReport]:
    digits = key.removeprefix(COMPACTED)
    if not (digits.isascii() and digits.isdigit()):
        raise BadRecord(f"{key!r} is not the key of a topic")
    return int(digits), decode_set(key, value).report


def _done(key: str, value: bytes) -> JobReport | None:
    record = decode_replay(key, value)
    return _of_replay(record) if record.state == "done" else None


def _of_report(name: str, report: CompactionReport) -> JobReport:
    return JobReport(
        kind="compaction",
        name=name,
        at_s=report.at_ms / 1000,
        seconds=report.seconds,
        keys=report.keys,
        messages_in=report.messages_in,
        messages_out=report.messages_out,
        size=report.bytes_out,
    )


def _of_replay(record: ReplayRecord) -> JobReport:
    messages = sum(part.count for part in record.sent)
    return JobReport(
        kind="replay",
        name=record.name,
        at_s=record.updated_ms / 1000,
        seconds=max(0, record.updated_ms - record.started_ms) / 1000,
        messages_in=messages,
        messages_out=messages,
        size=record.bytes,
    )


def _by_end(reports: list[JobReport]) -> list[JobReport]:
    return sorted(reports, key=lambda report: report.at_s)
