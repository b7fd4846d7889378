"""What a job staged becomes part of its topic: all of it by one transaction, or nothing.

    pieces ──► a lane of each partition that has any ──► ops of all lanes ──► one transaction
               (lane_extension.py)                       staged rows deleted

The transaction names the version of each lane and of each staged row. So it is made only while
the lanes are held and nobody gave anything up; what went wrong in between is done again from the
lanes on. Where its outcome is not known, the staged rows tell: they are gone with the
transaction, and the ledgers are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import trio

from ledger_client.client import Client
from ledger_client.errors import MetadataUnavailable, NoSuchLedger, Retryable
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.errors import (
    JobLost,
    NoSuchTopic,
    ProducerBusy,
    ProducerFenced,
    TooManyLedgers,
)
from ledger_client.topics.jobs.marks import Mark
from ledger_client.topics.jobs.staged_piece import StagedPiece
from ledger_client.topics.jobs.staging import JobStage, Staged, staged_ledgers
from ledger_client.topics.lanes.lane_extension import LaneExtension, hold_extension
from ledger_client.translation import translated
from metadata.limits import OPS_MAX
from metadata.store import Check, Op, Put
from metadata.topics import TopicRecord, topic_key

SHOW_S = 120.0
"""For all attempts together."""
PAUSE_S = 0.5
LANE_OPS = 2
"""Of a lane, beside two of each ledger: its record, and the ledger that was left open."""
OTHER_OPS = 4
"""The topic's record is checked, the mark put."""


class Showing:
    """Shows the pieces of one job.

    Args:
        client: whose bookies and metadata.
        stage: the job's.
        pieces: what is to be shown, in the order in which it comes into the lanes; other staged
            ledgers of the job stay as they are.
        mark: the row that says so, put by the same transaction.
    """

    def __init__(
        self,
        client: Client,
        stage: JobStage,
        pieces: Sequence[StagedPiece],
        mark: Mark | None = None,
    ) -> None:
        self._client = client
        self._stage = stage
        self._topics = TopicCatalogue(client.store, timeout_s=client.options.metadata_timeout_s)
        self._mark = mark
        self._pieces: dict[int, list[StagedPiece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.partition, []).append(piece)
        self._count = len(pieces)
        self._is_doubtful = False

    async def run(self) -> bool:
        """Show all; False: by its mark it was shown before, and nothing is done now.

        Raises:
            LedgerError: the mark cannot follow the one that is there, see Mark.
            JobLost: some was given up, as the job was taken for dead.
            EventTimeBack, RowsUnordered: the topic is ordered by event time, see there.
            TooManyLedgers: one transaction cannot show so many.
            ProducerBusy: somebody has a whole partition, also after SHOW_S.
            NoSuchTopic: the topic was deleted.
            TailLost: the end of a lane is lost: a person decides.
            MetadataUnavailable: whether it was done is not known; what is staged is there
                still if it was not. Also when others came in between for SHOW_S.
            Retryable: bookies of a lane's last ledger are away, also after SHOW_S.
        """
        self._check_count()
        until = trio.current_time() + SHOW_S
        while True:
            try:
                shown = await self._attempt()
                if shown is not None:
                    return shown
            except (ProducerBusy, ProducerFenced, Retryable):
                if trio.current_time() >= until:
                    raise
            if trio.current_time() >= until:
                told = f"others changed its lanes for {SHOW_S:g} s, and the job is not shown"
                raise MetadataUnavailable(f"metadata: {told}")
            await trio.sleep(PAUSE_S)

    async def _attempt(self) -> bool | None:
        """Return whether it is shown now, or was before; None: somebody came in between."""
        ops: list[Op] = []
        if self._mark is not None:
            put = await self._marking(self._mark)
            if put is None:
                return False
            ops.append(put)
        staged = await self._staged()
        if staged is None:
            return True
        topic, topic_version = await self._topic()
        async with AsyncExitStack() as stack:
            ops.append(Check(topic_key(topic.name), topic_version))
            for partition in sorted(self._pieces):
                first_id = self._pieces[partition][0].ledger_id
                lane = await stack.enter_async_context(
                    hold_extension(self._client, topic, partition, first_id=first_id)
                )
                ops += await self._extend(lane, self._pieces[partition], staged)
            self._is_doubtful = True
            done = await self._client.catalogue.transact(ops)
            self._is_doubtful = False
        return None if done is None else True

    async def _extend(
        self, lane: LaneExtension, pieces: Sequence[StagedPiece], staged: Mapping[int, Staged]
    ) -> list[Op]:
        if lane.is_ordered:
            lane.check_times(pieces)
        if not lane.wants_state:
            return lane.ops(pieces, staged)
        told = await lane.state_piece(self._client, self._stage, pieces)
        return lane.ops([*pieces, told], await self._by_id())

    async def _staged(self) -> Mapping[int, Staged] | None:
        """Return what is staged; None: it is shown already. Raises JobLost."""
        staged = await self._by_id()
        wanted = [each.ledger_id for pieces in self._pieces.values() for each in pieces]
        missing = [ledger_id for ledger_id in wanted if ledger_id not in staged]
        if not missing:
            return staged
        if self._is_doubtful and await self._is_there(missing[0]):
            return None
        reason = f"ledger {missing[0]}, which it staged, was given up"
        raise JobLost(self._stage.topic.name, job_id=self._stage.job_id, reason=reason)

    async def _is_there(self, ledger_id: int) -> bool:
        """Whether a ledger that is staged no more is part of the topic; else it is gone."""
        try:
            await self._client.catalogue.get(ledger_id)
        except NoSuchLedger:
            return False
        return True

    async def _by_id(self) -> dict[int, Staged]:
        found = await staged_ledgers(self._client, self._stage.topic.uid, self._stage.job_id)
        return {each.ledger.ledger_id: each for each in found}

    async def _topic(self) -> tuple[TopicRecord, int]:
        topic, version = await self._topics.get(self._stage.topic.name)
        if topic.uid != self._stage.topic.uid:
            raise NoSuchTopic(topic.name)
        return topic, version

    async def _marking(self, mark: Mark) -> Put | None:
        """Return what puts the mark; None: by the one that is there, all is shown."""
        topic = self._stage.topic
        with translated(self._client.options.metadata_timeout_s):
            return mark.put(topic, await self._client.store.get(mark.key(topic)))

    def _check_count(self) -> None:
        lanes = len(self._pieces)
        count_max = ledgers_max(lanes)
        if self._count > count_max:
            raise TooManyLedgers(
                self._stage.topic.name,
                count=self._count,
                count_max=max(count_max, 0),
                what=f"ledgers in {lanes} partitions",
            )


def ledgers_max(partitions: int) -> int:
    """Return how many ledgers of so many partitions can be shown at once; below 0: none."""
    # Each lane may need one ledger more, for what it knows of producers.
    return (OPS_MAX - OTHER_OPS - partitions * LANE_OPS) // 2 - partitions
