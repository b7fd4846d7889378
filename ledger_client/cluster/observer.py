"""The observer: the state of the cluster while its bookie leads, for the metrics.

    bookies, marks, repairs ─► ClusterFigures ─┐
    housekeeper ─────────────► TopicFigures ───┼──► metrics.py ──► /metrics of the leader
    leases, reports ─────────► JobFigures ─────┘

Only the leader publishes them, so nothing is counted twice, and a deposed leader's figures
disappear. No bookie is asked for them, and a scrape waits for nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import get_args

import msgspec
import trio

from ledger_client.cluster.repair.survey import Census
from ledger_client.ledgers.records import Reason
from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings
from ledger_client.topics.retention.retention import Fate
from metadata.compaction import COMPACTED, CompactedSet, decode_set
from metadata.errors import BadRecord, MetadataError
from metadata.jobs import JOB_KINDS, JOBS, JobOwner, decode_job_owner
from metadata.listings import Listing, list_marks, list_repairs
from metadata.records import RepairProgress, UnderReplicated
from metadata.replays import REPLAYS, ReplayRecord, decode_replay
from metadata.store import Lease, MetadataStore
from metadata.topics import TOPICS, TopicRecord, decode_topic

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
    """

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self.cluster = ClusterFigures(store, lost_after_s=lost_after_s)
        self.topics = TopicFigures()
        self.jobs = JobFigures(store)

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
    """All topics as of the housekeeper's last complete round.

    Attributes:
        seen: at most TOPICS_MAX topics by name, and the sum of the others under OTHERS.
        removed: what retention removed, by the same names.
    """

    def __init__(self) -> None:
        self.seen: dict[str, TopicSnapshot] = {}
        self.removed: dict[str, Removals] = {}
        self._round: dict[str, TopicSnapshot] = {}

    def begin_round(self) -> None:
        """Start a round, dropping an unfinished one."""
        self._round = {}

    def note(self, topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> None:
        """Note a topic that the round came by."""
        self._round[topic.name] = _figures(topic, lanes)

    def note_removed(self, name: str, fates: Sequence[Fate]) -> None:
        """Count ledgers that retention removed, under the topic's label."""
        label = name if name in self.seen else OTHERS
        removals = self.removed.setdefault(label, Removals())
        removals.ledgers += len(fates)
        removals.size += sum(fate.ledger.size for fate in fates)

    def end_round(self) -> None:
        """Publish what this round saw, and forget topics that are gone."""
        found = self._round
        named = [name for name in self.seen if name in found]
        new = sorted(found.keys() - self.seen.keys(), key=lambda name: found[name].size)
        while new and len(named) < TOPICS_MAX:
            named.append(new.pop())
        seen = {name: found[name] for name in named}
        if new:
            seen[OTHERS] = TopicSnapshot()
            for name in new:
                seen[OTHERS].add(found[name])
        self.removed = {name: self.removed.get(name, Removals()) for name in {**seen, OTHERS: None}}
        self.seen = seen

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.seen, self.removed, self._round = {}, {}, {}


def _figures(topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> TopicSnapshot:
    held = [each for lane in lanes for each in lane.ledgers]
    closed = [each.row for lane in lanes for each in lane.closed]
    return TopicSnapshot(
        topics=1,
        ledgers=_by_state(held),
        lanes=len(lanes),
        writers=sum(lane.owner is not None for lane in lanes),
        size=sum(row.size for row in closed),
        messages=sum(row.messages for row in closed),
        oldest_ms=min((each.row.created_ms for each in held), default=None),
        closed_ms=min((row.closed_ms or row.created_ms for row in closed), default=None),
        keep_s=topic.retention.age_s if topic.retention.age_s >= 0 else None,
    )


def _by_state(held: Sequence[HeldLedger]) -> dict[str, int]:
    counts = dict.fromkeys(LEDGER_STATES, 0)
    for each in held:
        counts[each.row.state] += 1
    return counts


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


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


class ClusterFigures:
    """The last snapshot of the cluster; *seen* is `None` while its bookie does not lead."""

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self.seen: ClusterSnapshot | None = None
        self._store = store
        self._census = Census(store, lost_after_s=lost_after_s)
        self._unreadable: set[str] = set()

    async def look(self) -> None:
        """Read bookies, marks and repairs. Raises MetadataError and keeps the old snapshot."""
        await self._census.refresh()
        marks = await list_marks(self._store, unreadable=self._unreadable)
        repairs = await list_repairs(self._store)
        self.seen = ClusterSnapshot(
            at_s=time.time(),
            bookies=_states(self._census),
            waiting=_by_reason(marks),
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
"""The latest reports of each kind that are published."""


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
        reports: the latest of each kind and name.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.running: dict[str, RunningJobs] = {}
        self.reports: list[JobReport] = []
        self._store = store
        self._unreadable: set[str] = set()

    async def look(self) -> None:
        """Read the leases and reports of jobs. Raises MetadataError."""
        running = {kind: RunningJobs() for kind in KINDS}
        async for lease in _leases(self._store, JOBS):
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
        sets = Listing(self._store, COMPACTED, _keyed_set, unreadable=self._unreadable)
        found = [each async for each in sets]
        if not found:
            return []
        topics = Listing(self._store, TOPICS, decode_topic, unreadable=self._unreadable)
        names = {topic.uid: topic.name async for topic in topics}
        return _latest([_of_set(names[uid], each) for uid, each in found if uid in names])

    async def _replays(self) -> list[JobReport]:
        records = Listing(self._store, REPLAYS, decode_replay, unreadable=self._unreadable)
        return _latest([_of_replay(each) async for each in records if each.state == "done"])


def _keyed_set(key: str, value: bytes) -> tuple[int, CompactedSet]:
    digits = key.removeprefix(COMPACTED)
    if not (digits.isascii() and digits.isdigit()):
        raise BadRecord(f"{key!r} is not the key of a topic")
    return int(digits), decode_set(key, value)


def _of_set(name: str, compacted: CompactedSet) -> JobReport:
    report = compacted.report
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


def _latest(reports: list[JobReport]) -> list[JobReport]:
    return sorted(reports, key=lambda report: report.at_s)[-REPORTS_MAX:]


async def _leases(store: MetadataStore, prefix: str) -> AsyncIterator[Lease]:
    after = ""
    while leases := await store.leases(prefix, after=after):
        for lease in leases:
            yield lease
        after = leases[-1].name
