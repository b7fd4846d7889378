"""What jobs that were killed left: given up by the leader.

A job without a lease may be about to take it again, as when the store was away. So one that
was found without it a round before, too, is taken for dead: its staged ledgers go, its pins and
the row of its ids. Should it live all the same, it cannot show them any more, and says so.
"""

from __future__ import annotations

import logging

from ledger_client.topics.jobs.job import live_jobs
from ledger_client.topics.jobs.staging import discard
from metadata.errors import BadRecord
from metadata.jobs import IDS, JOBS, PINS, STAGED, ids_key, job_of, pins_key, staged_prefix
from metadata.leadership import Term
from metadata.store import Delete, MetadataStore, pages

JobKey = tuple[int, str]
"""A topic's uid and a job's id."""
_log = logging.getLogger(__name__)


class DeadJobs:
    """Gives up, round by round, what dead jobs of all topics left."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._dead_before: set[JobKey] = set()
        self._unreadable: set[str] = set()

    async def give_up(self, term: Term) -> None:
        """Look at all jobs once.

        Raises:
            MetadataError: some may be left for the next round.
            LeaseLost: the term is over.
        """
        left = await self._left(STAGED) | await self._left(PINS) | await self._left(IDS)
        dead = left - await live_jobs(self._store, JOBS)  # leases last: new ones are seen
        for uid, job_id in sorted(dead & self._dead_before):
            count = await discard(self._store, staged_prefix(uid, job_id), checks=[term.check])
            rows = [Delete(pins_key(uid, job_id)), Delete(ids_key(uid, job_id))]
            await self._store.transact([term.check, *rows])
            _log.info("gave up %d ledgers that job %s staged and did not show", count, job_id)
        self._dead_before = dead

    async def _left(self, kind: str) -> set[JobKey]:
        """Return whose rows of a *kind* there are."""
        found: set[JobKey] = set()
        async for page in pages(self._store, kind):
            for key, _ in page:
                try:
                    found.add(job_of(key))
                except BadRecord as wrong:
                    if key not in self._unreadable:
                        self._unreadable.add(key)
                        _log.warning("a job's row is left as it is: %s", wrong)
        return found
