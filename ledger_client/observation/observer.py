"""Who looks, while it leads, so that the host's metrics can tell."""

from __future__ import annotations

import logging

import trio

from ledger_client.observation.cluster import ClusterFigures
from ledger_client.observation.jobs import JobFigures
from ledger_client.observation.topics import TopicFigures
from metadata.errors import MetadataError
from metadata.store import MetadataStore

INTERVAL_S = 2.0
REST_RATIO = 10
"""A pause is at least so many times as long as a look: the host has other things to do."""
JOBS_EVERY = 5
"""Looks at the cluster for each at jobs, whose reports change seldom."""
_log = logging.getLogger(__name__)


class Observer:
    """What a leader sees.

    Attributes:
        cluster: bookies and repair.
        topics: told by the housekeeper, round by round.
        jobs: over topics.
    """

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self.cluster = ClusterFigures(store, lost_after_s=lost_after_s)
        self.topics = TopicFigures()
        self.jobs = JobFigures(store)

    async def lead(self) -> None:
        """Look until cancelled; then nothing is told. While the store is away, nothing changes."""
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
                    _log.debug("no look at the cluster: %s", failure)
                took_s = trio.current_time() - began_at
                await trio.sleep(max(INTERVAL_S, took_s * REST_RATIO))
        finally:
            self.cluster.seen = None
            self.topics.clear()
            self.jobs.clear()
