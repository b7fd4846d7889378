"""Ledgers removed by a purge, by retention, or with their whole topic.

One transaction removes a ledger's row and its record, so a crash leaves neither a ledger
without a topic nor a row without its ledger. The bookies free the space at their next garbage
collection. When two processes remove the same ledger, or a repair changes its record
meanwhile, the version check fails and the rest is looked up again.

A topic is deleted in steps. Each may be repeated, and by several processes at once, so
any process that finds a half-done deletion completes it:

    marked "deleting" (catalogue.py): the topic is hidden, and no lane can begin
    ──► its lanes, so that no writer begins another ledger
    ──► its open ledgers are recovered, which fences their writers
    ──► its ledgers, each with its row
    ──► rows of jobs, of streams that wrote to it, and of groups that keep it
    ──► its compacted set
    ──► its ticks
    ──► its record: the name is free
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import trio

from ledger_client.errors import BadTopic, LedgerError
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.retention.holdings import read_holdings, remove_set
from ledger_client.topics.retention.job_rows import discard, read_holds
from ledger_client.topics.retention.retention import Before, Fate, plan_purge
from ledger_client.topics.times import TIMES
from metadata.errors import BadRecord, VersionConflict
from metadata.groups.keeps import keeps_key
from metadata.jobs import IDS, PINS, POINTERS, SINKS, STAGED
from metadata.paged import remove_pages
from metadata.records import ledger_key
from metadata.store import ABSENT, Check, CheckLease, Delete, MetadataStore, Op, Page
from metadata.time.tick_rows import TICKS, decode_tick_ledger, lanes_of_topic_key
from metadata.topics import (
    LANE_LEDGERS,
    LANE_NAMES,
    LANE_REMOVALS,
    LANE_ROLLS,
    LANES,
    LaneLedger,
    TopicRecord,
    decode_lane_ledger,
    lane_ledger_key,
    topic_prefix,
)

BATCH_COUNT = 40
"""Ledgers removed by one transaction."""
ATTEMPTS_MAX = 5
OnRemoved = Callable[[int], None]


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a purge, or of its dry run."""

    topic: str
    removed: list[Fate]
    kept: list[Fate]
    """the first remaining ledger of each lane, and why it stays"""

    @property
    def messages(self) -> int:
        """The number of removed messages, in a dry run of those to be removed."""
        return sum(fate.ledger.messages for fate in self.removed)

    @property
    def size(self) -> int:
        """The removed payload bytes of one copy."""
        return sum(fate.ledger.size for fate in self.removed)


class PlannedPurge(NamedTuple):
    """A purge of the topic *uid*, and what its removals check."""

    uid: int
    purged: Purged
    checks: tuple[Check, ...]


async def planned_purge(
    catalogue: TopicCatalogue,
    name: str,
    before: Before,
    *,
    partition: int | None = None,
    lane: int | None = None,
) -> PlannedPurge:
    """Return the purge without doing it. Raises NoSuchTopic, or BadTopic for no time."""
    _check_time(before, name)
    topic, _ = await catalogue.get(name)
    with translated(catalogue.timeout_s):
        lanes = await read_holdings(catalogue.store, topic, partition)
        places = [(each.partition, each.lane) for each in lanes]
        holds = await read_holds(catalogue.store, topic, places)
    lanes = [each for each in lanes if lane is None or each.lane == lane]
    fates = plan_purge(lanes, before, now_ms=await catalogue.now_ms(), pins=holds.pins)
    planned = Purged(topic=name, removed=removable(fates), kept=_first_kept(fates))
    return PlannedPurge(topic.uid, planned, holds.checks)


def _check_time(before: object, topic: str) -> None:
    if not isinstance(before, TIMES):
        reason = f"before takes an EventTime, a Timestamp or a PublishTime, not {before!r}"
        raise BadTopic(reason, topic=topic)


def removable(fates: Sequence[Fate]) -> list[Fate]:
    """Return the fates of the ledgers that are to be removed."""
    return [fate for fate in fates if fate.goes]


async def remove_ledgers(
    catalogue: TopicCatalogue,
    uid: int,
    fates: Sequence[Fate],
    *,
    checks: Sequence[CheckLease | Check] = (),
    on_removed: OnRemoved | None = None,
) -> list[Fate]:
    """Remove ledgers of the topic *uid* in this order; return those removed by this call.

    A ledger that another process removed meanwhile is skipped.

    Raises:
        MetadataUnavailable, MetadataBroken: the rest is still there, whole.
        LeaseLost: a lease of *checks* is over.
    """
    removed: list[Fate] = []
    for start in range(0, len(fates), BATCH_COUNT):
        batch = fates[start : start + BATCH_COUNT]
        gone = await _remove_batch(catalogue, uid, batch, checks)
        if gone is None:
            break  # the rows keep changing: the rest is left to a later call
        removed += gone
        if on_removed is not None:
            on_removed(len(gone))
    return removed


async def _remove_batch(
    catalogue: TopicCatalogue, uid: int, fates: Sequence[Fate], checks: Sequence[CheckLease | Check]
) -> list[Fate] | None:
    for _ in range(ATTEMPTS_MAX):
        ops: list[Op] = list(checks)
        there: list[Fate] = []
        try:
            with translated(catalogue.timeout_s):
                for fate in fates:
                    removal = await _removal(catalogue.store, uid, fate)
                    ops += removal
                    there += [fate] if removal else []
                if there:
                    await catalogue.store.transact(ops)
        except VersionConflict:
            continue
        return there
    return None


async def _removal(store: MetadataStore, uid: int, fate: Fate) -> list[Op]:
    """Return the ops that remove a ledger and its row; none if the row is gone or unsettled."""
    if fate.ledger.pointer:
        return []  # a pointer shows it: its row is still to be settled
    row = lane_ledger_key(uid, fate.partition, fate.lane, fate.number)
    found = await store.get(row)
    if found is None or found.version != fate.version:
        return []
    key = ledger_key(fate.ledger.ledger_id)
    record = await store.get(key)
    ledger = Check(key, ABSENT) if record is None else Delete(key, record.version)
    return [Delete(row, fate.version), ledger]


def _first_kept(fates: Sequence[Fate]) -> list[Fate]:
    kept: dict[tuple[int, int], Fate] = {}
    for fate in fates:
        if not fate.goes:
            kept.setdefault((fate.partition, fate.lane), fate)
    return list(kept.values())


LANES_COUNT = 100
LEDGERS_COUNT = 50
"""Removed by one transaction, each with its row."""
JOBS_S = 60.0
"""Time limit for discarding what jobs staged: some transactions."""
FENCE_S = 5.0
"""Time limit for fencing the writers of a page of ledgers; others notice the deletion later."""


class Deletion:
    """Deletes the rest of a topic that is marked "deleting".

    Args:
        ledgers: closes ledgers that are written.
        catalogue: has the records of topics.
        topic: as it was when it was marked.
        checks: leases that the caller must still hold.
        on_removed: called with the number of ledgers just removed.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        catalogue: TopicCatalogue,
        topic: TopicRecord,
        *,
        checks: Sequence[CheckLease] = (),
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._ledgers = ledgers
        self._catalogue = catalogue
        self._topic = topic
        self._checks = list(checks)
        self._on_removed = on_removed

    async def run(self) -> None:
        """Remove all of the topic.

        Raises:
            MetadataUnavailable, MetadataBroken: the next call continues from here.
            LeaseLost: one of *checks* is over.
        """
        while page := await self._page(LANES, LANES_COUNT):
            await self._transact([Delete(key) for key, _ in page])
        for kind in (LANE_REMOVALS, LANE_NAMES, LANE_ROLLS):
            while page := await self._page(kind, LANES_COUNT):
                await self._transact([Delete(key) for key, _ in page])
        while page := await self._page(LANE_LEDGERS, LEDGERS_COUNT):
            await self._remove(page)
        await self._remove_jobs()
        await self._transact([Delete(keeps_key(self._topic.uid))])
        with translated(JOBS_S):
            await remove_set(self._catalogue.store, self._topic.uid, checks=self._checks)
        while page := await self._page(TICKS, LEDGERS_COUNT):
            await self._remove_ticks(page)
        await self._transact([Delete(lanes_of_topic_key(self._topic.uid))])
        await self._catalogue.forget(self._topic, checks=self._checks)

    async def _remove_jobs(self) -> None:
        """Remove the rows of jobs, so that a running job can show nothing any more.

        The leader discards what it stages after this.
        """
        prefix = topic_prefix(STAGED, self._topic.uid)
        with translated(JOBS_S):
            await discard(self._catalogue.store, prefix, checks=self._checks)
        for kind in (PINS, IDS, SINKS, POINTERS):
            while page := await self._page(kind, LANES_COUNT):
                await self._transact([Delete(key) for key, _ in page])
            with translated(JOBS_S):
                prefix = topic_prefix(kind, self._topic.uid)
                await remove_pages(self._catalogue.store, prefix, checks=self._checks)

    async def _page(self, kind: str, count: int) -> Page:
        prefix = topic_prefix(kind, self._topic.uid)
        with translated(self._catalogue.timeout_s):
            return await self._catalogue.store.list(prefix, limit=count)

    async def _remove(self, page: Page) -> None:
        rows: list[LaneLedger] = []
        for key, found in page:
            with suppress(BadRecord):  # its ledger is unknown
                rows.append(decode_lane_ledger(key, found.value))
        await self._end_writers([row.ledger_id for row in rows if row.state == "open"])
        ledgers = [Delete(ledger_key(row.ledger_id)) for row in rows]
        await self._transact([*(Delete(key) for key, _ in page), *ledgers])
        self._on_removed(len(page))

    async def _remove_ticks(self, page: Page) -> None:
        ledgers: list[Op] = []
        for key, found in page:
            with suppress(BadRecord):  # its ledger is unknown
                ledger_id = decode_tick_ledger(key, found.value).ledger_id
                ledgers.append(Delete(ledger_key(ledger_id)))
        await self._transact([*(Delete(key) for key, _ in page), *ledgers])

    async def _end_writers(self, ledger_ids: Sequence[int]) -> None:
        with trio.move_on_after(FENCE_S):
            for ledger_id in ledger_ids:
                with suppress(LedgerError):
                    await self._ledgers.recover(ledger_id)

    async def _transact(self, ops: Sequence[Op]) -> None:
        with translated(self._catalogue.timeout_s):
            await self._catalogue.store.transact([*self._checks, *ops])
