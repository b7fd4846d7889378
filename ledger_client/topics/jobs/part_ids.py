"""Ledger ids for the parts of a job: few, and rising from part to part.

Ids rise along a lane, and a job's parts come into a lane in their order, whichever is done
first. So part 3 must not take an id before parts 0 to 2 have theirs. The first worker that needs
an id of a part reserves a share for that part and for all parts before it:

    part      0        1        2        3
    ids       [──112──][──112──][──112──][──112──]     reserved by whoever needed part 3 first
               └ a quarter of a share for each attempt at the part

What is reserved stands in a row of the job (metadata/jobs.py), put at the version that it was
read with: shares that are reserved later have higher ids. A part that writes nothing takes
nothing, and neither does a job without parts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ledger_client.client import Client
from ledger_client.errors import MetadataBroken
from ledger_client.topics.errors import TooManyLedgers
from ledger_client.topics.jobs.staging import JobStage
from ledger_client.translation import translated
from metadata.errors import BadRecord, VersionConflict
from metadata.jobs import IdRun, JobIds, decode_ids, encode_job_row, ids_key
from metadata.limits import IDS_MAX, OPS_MAX
from metadata.records import LEDGER_COUNTER
from metadata.store import ABSENT, Put

PARTS_MAX = 1000
"""Parts of a job."""
ATTEMPTS = 4
"""At a part, that begin at different ids and so seldom meet."""
ROLLS_MAX = 24
"""Ledgers of an attempt beside the first one of each partition."""
OPENED_MAX = OPS_MAX // 2
"""First ledgers of an attempt, at most: a job cannot show more."""
AHEAD = 8
"""Parts that a share is reserved for in advance, at most."""


class PartIds:
    """Ids for the ledgers of one attempt at a part."""

    def __init__(self, client: Client, stage: JobStage, *, part: int, attempt: int) -> None:
        """Raise TooManyLedgers if there are fewer parts."""
        if part >= PARTS_MAX:
            raise TooManyLedgers(
                stage.topic.name, count=part + 1, count_max=PARTS_MAX, what="tasks"
            )
        self._client = client
        self._stage = stage
        self._part = part
        self._attempt = attempt

    async def ids(self) -> AsyncGenerator[int, None]:
        """Yield rising ids; the ledger of one may be another attempt's.

        Raises:
            MetadataUnavailable, MetadataBroken: as they say.
        """
        run = await self._reserved()
        share = run.share
        begin = run.first_id + (self._part - run.first_part) * share
        for ledger_id in range(
            begin + self._attempt % ATTEMPTS * (share // ATTEMPTS), begin + share
        ):
            yield ledger_id

    async def _reserved(self) -> IdRun:
        """Return the run that the part's share is in."""
        store, limit_s = self._client.store, self._client.options.metadata_timeout_s
        key = ids_key(self._stage.topic.uid, self._stage.job_id)
        while True:
            with translated(limit_s):
                found = await store.get(key)
                version = ABSENT if found is None else found.version
                try:
                    runs = [] if found is None else decode_ids(key, found.value).runs
                except BadRecord as wrong:
                    raise MetadataBroken(f"metadata: {wrong}") from wrong
                for run in runs:
                    if run.first_part <= self._part < run.first_part + run.parts:
                        return run
                longer = JobIds(runs=[*runs, await self._reserve(runs)])
                try:
                    await store.transact([Put(key, encode_job_row(longer), version)])
                except VersionConflict:
                    continue  # another part was faster; these ids are nobody's

    async def _reserve(self, runs: list[IdRun]) -> IdRun:
        """Take ids behind all *runs*, for parts behind theirs."""
        count = sum(run.parts for run in runs)
        share = share_of(self._stage)
        wanted = max(self._part + 1 - count, min(count, AHEAD))
        parts = min(wanted, PARTS_MAX - count, IDS_MAX // share)
        first_id = await self._client.store.next_id(LEDGER_COUNTER, parts * share)
        return IdRun(first_part=count, parts=parts, share=share, first_id=first_id)


def share_of(stage: JobStage) -> int:
    """Return how many ids a part of a job has, for all attempts at it."""
    opened = min(len(stage.topic.partition_indexes), OPENED_MAX)
    return ATTEMPTS * (opened + ROLLS_MAX)
