"""Jobs as other processes see them: their pins, and the rows that dead jobs left behind.

A job keeps rows beside its topic: pins, staged ledgers, and the ids it reserved. They count
while the job's lease lasts. The leader discards the rows of jobs without a lease (DeadJobs).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ledger_client.topics.retention.holdings import Pin, read_set
from metadata.errors import BadRecord, VersionConflict
from metadata.jobs import (
    IDS,
    JOBS,
    PINS,
    STAGED,
    PinnedLane,
    decode_pins,
    ids_key,
    job_of,
    pins_key,
    staged_prefix,
)
from metadata.leadership import Term
from metadata.records import ledger_key
from metadata.store import CheckLease, Delete, MetadataStore, items_under, pages
from metadata.topics import LANES, TopicRecord, lane_of, last_number, topic_prefix

DISCARD_COUNT = 200
"""Ledgers that one transaction discards."""
ATTEMPTS_MAX = 5
HOLDER = "the next compaction (quire compact --drop ends it)"
JobKey = tuple[int, str]
"""A topic's uid and a job's id."""
_log = logging.getLogger(__name__)


async def live_jobs(store: MetadataStore, prefix: str = JOBS) -> set[tuple[int, str]]:
    """Return the topic uid and id of each running job. Raises MetadataError."""
    found: set[tuple[int, str]] = set()
    after = ""
    while leases := await store.leases(prefix, after=after):
        found |= {job_of(lease.name) for lease in leases}
        after = leases[-1].name
    return found


async def read_pins(store: MetadataStore, topic: TopicRecord) -> list[Pin]:
    """Return the pins of running jobs and of the next compaction. Raises MetadataError."""
    pins = await set_pins(store, topic)
    rows = await items_under(store, topic_prefix(PINS, topic.uid))
    if not rows:
        return pins
    live = await live_jobs(store, topic_prefix(JOBS, topic.uid))
    for key, found in rows:
        if job_of(key) in live:
            row = decode_pins(key, found.value)
            pins += [_pin(lane, f"{row.kind} job {job_of(key)[1]}") for lane in row.lanes]
    return pins


def _pin(lane: PinnedLane, holder: str) -> Pin:
    return Pin(partition=lane.partition, lane=lane.lane, number=lane.number, holder=holder)


async def set_pins(store: MetadataStore, topic: TopicRecord) -> list[Pin]:
    """Return pins on the ledgers after the horizons of the compacted set, for the next compaction.

    A topic without a set has none. Raises MetadataError.
    """
    found = await read_set(store, topic.uid)
    if found is None:
        return []
    lanes = {
        lane_of(key)
        async for page in pages(store, topic_prefix(LANES, topic.uid))
        for key, _ in page
    }
    known = {(each.partition, each.lane): each.number + 1 for each in found.set.horizons}
    return [
        Pin(partition=partition, lane=lane, number=known.get((partition, lane), 0), holder=HOLDER)
        for partition, lane in sorted(lanes | known.keys())
    ]


async def discard(store: MetadataStore, prefix: str, *, checks: Sequence[CheckLease] = ()) -> int:
    """Discard the staged ledgers under *prefix*; return their number.

    Bookies free the space at their next garbage collection. A ledger shown meanwhile stays. If
    rows keep changing, the rest is left to a later call.

    Raises:
        MetadataError: the rest is unchanged.
        LeaseLost: one of *checks* is over.
    """
    count = attempts = 0
    while (page := await store.list(prefix, limit=DISCARD_COUNT)) and attempts < ATTEMPTS_MAX:
        rows = [Delete(key, found.version) for key, found in page]
        ledgers = [Delete(ledger_key(last_number(key))) for key, _ in page]
        try:
            await store.transact([*checks, *rows, *ledgers])
        except VersionConflict:
            attempts += 1
        else:
            count, attempts = count + len(page), 0
    return count


class DeadJobs:
    """Discards the rows of dead jobs of all topics, round by round.

    A job without a lease may be about to take it again, for example after the store was away. So
    it counts as dead once two rounds in a row found it without. If it lives all the same, its
    ledgers are gone, and it fails with JobLost.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._dead_before: set[JobKey] = set()
        self._unreadable: set[str] = set()

    async def give_up(self, term: Term) -> None:
        """Check all jobs once.

        Raises:
            MetadataError: some may be left to the next round.
            LeaseLost: the term is over.
        """
        left = await self._left(STAGED) | await self._left(PINS) | await self._left(IDS)
        dead = left - await live_jobs(
            self._store, JOBS
        )  # leases are read last, so that new jobs are seen
        for uid, job_id in sorted(dead & self._dead_before):
            count = await discard(self._store, staged_prefix(uid, job_id), checks=[term.check])
            rows = [Delete(pins_key(uid, job_id)), Delete(ids_key(uid, job_id))]
            await self._store.transact([term.check, *rows])
            _log.info("discarded %d ledgers that job %s staged and did not show", count, job_id)
        self._dead_before = dead

    async def _left(self, kind: str) -> set[JobKey]:
        """Return the jobs that have rows of a *kind*."""
        found: set[JobKey] = set()
        async for page in pages(self._store, kind):
            for key, _ in page:
                try:
                    found.add(job_of(key))
                except BadRecord as wrong:
                    if key not in self._unreadable:
                        self._unreadable.add(key)
                        _log.warning("a job's row is unreadable and stays: %s", wrong)
        return found
