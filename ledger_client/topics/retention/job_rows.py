"""What jobs, groups and cuts need of a topic, and the rows that dead jobs left behind.

A job keeps rows beside its topic: pins, staged ledgers, the ids it reserved, and a pointer while
it publishes a large result. They count while the job's lease lasts. The leader discards the rows
of jobs without a lease (DeadJobs), and finishes what a job has shown and not settled.

A group that holds back retention needs what it has not committed (metadata/groups/keeps.py). A cut
needs what is before its places (metadata/cuts.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from ledger_client.topics.retention.holdings import Pin, read_set
from metadata.cuts import read_kept, remove_stale_stakes
from metadata.errors import BadRecord, VersionConflict
from metadata.groups.keeps import first_needed, read_keepers
from metadata.jobs import (
    IDS,
    JOBS,
    PINS,
    POINTERS,
    STAGED,
    PinnedLane,
    decode_pins,
    decode_pointer,
    ids_key,
    job_of,
    pins_key,
    pointer_key,
    staged_prefix,
)
from metadata.leadership import Term
from metadata.paged import remove_left_over, remove_pages, whole_value
from metadata.pointers import finish
from metadata.records import ledger_key
from metadata.store import (
    ABSENT,
    Check,
    CheckLease,
    Delete,
    MetadataStore,
    items_under,
    leases_under,
    pages,
)
from metadata.topics import LANES, TopicRecord, lane_of, last_number, topic_prefix

DISCARD_COUNT = 80
"""Ledgers that one transaction discards; each takes up to three ops."""
ATTEMPTS_MAX = 5
HOLDER = "the next compaction (quire compact --drop ends it)"
Lane = tuple[int, int]
"""A partition, and a lane of it."""
JobKey = tuple[int, str]
"""A topic's uid and a job's id."""
_log = logging.getLogger(__name__)


async def live_jobs(store: MetadataStore, prefix: str = JOBS) -> set[tuple[int, str]]:
    """Return the topic uid and id of each running job. Raises MetadataError."""
    return {job_of(lease.name) for lease in await leases_under(store, prefix)}


async def read_pins(store: MetadataStore, topic: TopicRecord) -> list[Pin]:
    """Return the pins of running jobs and of the next compaction. Raises MetadataError."""
    pins = await set_pins(store, topic)
    rows = await items_under(store, topic_prefix(PINS, topic.uid))
    if not rows:
        return pins
    live = await live_jobs(store, topic_prefix(JOBS, topic.uid))
    for key, found in rows:
        whole = await whole_value(store, key, found) if job_of(key) in live else None
        if whole is not None:
            row = decode_pins(key, whole.value)
            pins += [_pin(lane, f"{row.kind} job {job_of(key)[1]}") for lane in row.lanes]
    return pins


class Holds(NamedTuple):
    """What must stay of some lanes, and the checks of a transaction that removes anything else."""

    pins: list[Pin]
    checks: tuple[Check, ...]


async def read_holds(store: MetadataStore, topic: TopicRecord, lanes: Collection[Lane]) -> Holds:
    """Return the holds of jobs, of the next compaction, of groups and of cuts on lanes of a topic.

    The rows of the lanes must have been read before. Raises MetadataError.
    """
    groups = await read_group_pins(store, topic.uid, lanes)
    cuts = await read_cut_pins(store, topic.uid, lanes)
    pins = [*await read_pins(store, topic), *groups.pins, *cuts.pins]
    return Holds(pins, (*groups.checks, *cuts.checks))


async def read_cut_pins(store: MetadataStore, uid: int, lanes: Collection[Lane]) -> Holds:
    """Return the holds of cuts of the topic *uid* on these lanes. Raises MetadataError."""
    kept = await read_kept(store, uid)
    pins: list[Pin] = []
    if kept.is_staked:
        holder = "a cut that is being created"
        pins = [Pin(partition=each[0], lane=each[1], number=0, holder=holder) for each in lanes]
    for cut in kept.cuts:
        topic = cut.topic(uid)
        for at in topic.lanes if topic is not None else ():
            if (at.partition, at.lane) in lanes:
                pins.append(
                    Pin(
                        partition=at.partition,
                        lane=at.lane,
                        number=0,
                        stop=(at.number, at.entry, at.skip),
                        holder=f"cut {cut.name} (quire cut delete {cut.name} ends it)",
                    )
                )
    return Holds(pins, (kept.check,))


async def read_group_pins(store: MetadataStore, uid: int, lanes: Collection[Lane]) -> Holds:
    """Return the holds of groups that keep the topic *uid*, on these lanes. Raises MetadataError.

    A group's place is read after the row that its removals check.
    """
    keepers = await read_keepers(store, uid)
    pins: list[Pin] = []
    for group in keepers.groups:
        needed = await first_needed(store, group, uid, {partition for partition, _ in lanes})
        for partition, lane in lanes:
            first = needed[partition].get(lane)
            number, entry = (0, 0) if first is None else (max(first.number, 0), first.entry)
            pins.append(
                Pin(
                    partition=partition,
                    lane=lane,
                    number=number,
                    entry=entry,
                    holder=f"group {group} (quire group keep {group} off ends it)",
                    is_group=True,
                )
            )
    return Holds(pins, (keepers.check,))


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

    Bookies free the space at their next garbage collection. A ledger that is shown stays, also one
    shown meanwhile; a job that is about to show its ledgers is stopped. If rows keep changing, the
    rest is left to a later call.

    Raises:
        MetadataError: the rest is unchanged.
        LeaseLost: one of *checks* is over.
    """
    count = attempts = 0
    while (page := await store.list(prefix, limit=DISCARD_COUNT)) and attempts < ATTEMPTS_MAX:
        jobs = sorted({job_of(key) for key, _ in page})
        if await _finish(store, jobs, checks):
            continue  # some of the page may be shown, and not staged any more
        unshown = [Check(pointer_key(*job), ABSENT) for job in jobs]
        rows = [Delete(key, found.version) for key, found in page]
        ledgers = [Delete(ledger_key(last_number(key))) for key, _ in page]
        try:
            await store.transact([*checks, *unshown, *rows, *ledgers])
        except VersionConflict:
            attempts += 1
        else:
            count, attempts = count + len(page), 0
    return count


async def _finish(
    store: MetadataStore, jobs: Sequence[JobKey], checks: Sequence[CheckLease]
) -> bool:
    """Finish the pointers of jobs; return True if one of them had shown its result."""
    return any([await finish(store, *job, checks=checks) for job in jobs])


class DeadJobs:
    """Discards the rows of dead jobs of all topics, round by round, and stakes of cuts.

    Pointers that were decided a round ago and are still there are finished, of live jobs too.

    A job without a lease may be about to take it again, for example after the store was away. So
    it counts as dead once two rounds in a row found it without. If it lives all the same, its
    ledgers are gone, and it fails with JobLost.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._dead_before: set[JobKey] = set()
        self._decided_before: dict[str, int] = {}
        self._unreadable: set[str] = set()

    async def give_up(self, term: Term) -> None:
        """Check all jobs once.

        Raises:
            MetadataError: some may be left to the next round.
            LeaseLost: the term is over.
        """
        await self._finish_decided(term)
        left = await self._left(STAGED) | await self._left(PINS) | await self._left(IDS)
        left |= await self._left(POINTERS)
        dead = left - await live_jobs(
            self._store, JOBS
        )  # leases are read last, so that new jobs are seen
        for uid, job_id in sorted(dead & self._dead_before):
            count = await discard(self._store, staged_prefix(uid, job_id), checks=[term.check])
            await finish(self._store, uid, job_id, checks=[term.check])
            rows = [Delete(pins_key(uid, job_id)), Delete(ids_key(uid, job_id))]
            await self._store.transact([term.check, *rows])
            await remove_pages(self._store, pins_key(uid, job_id) + "/", checks=[term.check])
            _log.info("discarded %d ledgers that job %s staged and did not show", count, job_id)
        self._dead_before = dead
        now_ms = await self._store.now_ms()
        if await remove_stale_stakes(self._store, now_ms, checks=[term.check]):
            _log.info("gave up cuts that were not finished in time")
        await remove_left_over(self._store, now_ms, checks=[term.check])

    async def _finish_decided(self, term: Term) -> None:
        decided: dict[str, int] = {}
        async for page in pages(self._store, POINTERS):
            for key, found in page:
                with suppress(BadRecord):
                    if decode_pointer(key, found.value).state != "open":
                        decided[key] = found.version
        for key, version in decided.items():
            if self._decided_before.get(key) == version:
                await finish(self._store, *job_of(key), checks=[term.check])
        self._decided_before = decided

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
