"""Jobs over topics: which run now, and what the last ones that ended well did."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ledger_client.repair.records import Listing
from metadata.compaction import COMPACTED, CompactedSet, decode_set
from metadata.errors import BadRecord
from metadata.jobs import JOB_KINDS, JOBS, JobOwner, decode_job_owner
from metadata.replays import REPLAYS, ReplayRecord, decode_replay
from metadata.store import Lease, MetadataStore
from metadata.topics import TOPICS, decode_topic

KINDS = JOB_KINDS
REPORTS_MAX = 100
"""Of each kind: the latest are told."""


class Running(msgspec.Struct):
    """Jobs of one kind that run now; *since_ms*: Unix time at which the first of them began."""

    count: int = 0
    since_ms: int = 0


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ended well. *name*: the topic that was compacted, or the replay's name."""

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
    """What the leader saw last of jobs.

    Attributes:
        running: by kind.
        reports: the latest of each kind and name.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.running: dict[str, Running] = {}
        self.reports: list[JobReport] = []
        self._store = store
        self._unreadable: set[str] = set()

    async def look(self) -> None:
        """Look at leases of jobs and at their reports. Raises MetadataError."""
        running = {kind: Running() for kind in KINDS}
        async for lease in _leases(self._store, JOBS):
            owner = self._owner(lease)
            if owner is not None:
                jobs = running[owner.kind]
                jobs.count += 1
                jobs.since_ms = min(owner.since_ms, jobs.since_ms or owner.since_ms)
        reports = [*await self._compactions(), *await self._replays()]
        self.running, self.reports = running, reports

    def clear(self) -> None:
        """Tell nothing any more."""
        self.running, self.reports = {}, []

    def _owner(self, lease: Lease) -> JobOwner | None:
        try:
            return decode_job_owner(lease.name, lease.value)
        except BadRecord:
            return None  # whoever gives dead jobs up says so

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
        raise BadRecord(f"{key!r} names no topic")
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
