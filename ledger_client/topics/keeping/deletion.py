"""A topic taken away, with all that it holds.

    marked "deleting" (catalogue.py): nobody finds it, nobody begins a lane
    ──► its lanes, so that no writer begins another ledger
    ──► its open ledgers are recovered, which ends their writers
    ──► its ledgers, each with its row by one transaction
    ──► what jobs staged for it, and what streams wrote to it last
    ──► what compaction left of it
    ──► its record: the name is free

Each step may be done twice and by several at once, so whoever finds a deletion that was
left half ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.jobs.staging import discard
from ledger_client.topics.keeping.compacted_sets import remove_set
from ledger_client.translation import translated
from metadata.errors import BadRecord
from metadata.jobs import IDS, PINS, SINKS, STAGED
from metadata.records import ledger_key
from metadata.store import CheckLease, Delete, Op, Page
from metadata.topics import (
    LANE_LEDGERS,
    LANE_NAMES,
    LANE_REMOVALS,
    LANES,
    LaneLedger,
    TopicRecord,
    decode_lane_ledger,
    topic_prefix,
)

LANES_COUNT = 100
LEDGERS_COUNT = 50
"""Removed by one transaction, each with its row."""
JOBS_S = 60.0
"""For giving up what jobs staged: some transactions."""
FENCE_S = 5.0
"""For ending the writers of a page of ledgers; those that are not reached notice by themselves."""


class Deletion:
    """Ends the deletion of a topic that is marked.

    Args:
        client: closes ledgers that are written.
        catalogue: where topics are.
        topic: as it was when it was marked.
        checks: leases by which the caller may do it.
        on_removed: told how many ledgers are gone more.
    """

    def __init__(
        self,
        client: Client,
        catalogue: TopicCatalogue,
        topic: TopicRecord,
        *,
        checks: Sequence[CheckLease] = (),
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._client = client
        self._catalogue = catalogue
        self._topic = topic
        self._checks = list(checks)
        self._on_removed = on_removed

    async def run(self) -> None:
        """Remove all of the topic.

        Raises:
            MetadataUnavailable, MetadataBroken: it goes on where it was left.
            LeaseLost: one of *checks* is over.
        """
        while page := await self._page(LANES, LANES_COUNT):
            await self._transact([Delete(key) for key, _ in page])
        for kind in (LANE_REMOVALS, LANE_NAMES):
            while page := await self._page(kind, LANES_COUNT):
                await self._transact([Delete(key) for key, _ in page])
        while page := await self._page(LANE_LEDGERS, LEDGERS_COUNT):
            await self._remove(page)
        await self._remove_jobs()
        with translated(JOBS_S):
            await remove_set(self._catalogue.store, self._topic.uid, checks=self._checks)
        await self._catalogue.forget(self._topic, checks=self._checks)

    async def _remove_jobs(self) -> None:
        """Remove what belongs to jobs; one that runs yet cannot show anything any more.

        What it stages after this, the housekeeper gives up.
        """
        prefix = topic_prefix(STAGED, self._topic.uid)
        with translated(JOBS_S):
            await discard(self._catalogue.store, prefix, checks=self._checks)
        for kind in (PINS, IDS, SINKS):
            while page := await self._page(kind, LANES_COUNT):
                await self._transact([Delete(key) for key, _ in page])

    async def _page(self, kind: str, count: int) -> Page:
        prefix = topic_prefix(kind, self._topic.uid)
        with translated(self._catalogue.timeout_s):
            return await self._catalogue.store.list(prefix, limit=count)

    async def _remove(self, page: Page) -> None:
        rows: list[LaneLedger] = []
        for key, found in page:
            with suppress(BadRecord):  # which ledger it was, nobody can say
                rows.append(decode_lane_ledger(key, found.value))
        await self._end_writers([row.ledger_id for row in rows if row.state == "open"])
        ledgers = [Delete(ledger_key(row.ledger_id)) for row in rows]
        await self._transact([*(Delete(key) for key, _ in page), *ledgers])
        self._on_removed(len(page))

    async def _end_writers(self, ledger_ids: Sequence[int]) -> None:
        with trio.move_on_after(FENCE_S):
            for ledger_id in ledger_ids:
                with suppress(LedgerError):
                    await self._client.recover_ledger(ledger_id)

    async def _transact(self, ops: Sequence[Op]) -> None:
        with translated(self._catalogue.timeout_s):
            await self._catalogue.store.transact([*self._checks, *ops])
