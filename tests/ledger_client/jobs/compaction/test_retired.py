"""Retired ledgers of a set are removed while the next generation is made and published."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from batches import Sent
from compacted import kept_of, survivors_of, the_set
from laid_topic import TOPIC, LaidLane, LaidTopic, laid_topic
from trio.testing import MockClock

from ledger_client.jobs.compaction.job import compact_topic
from ledger_client.jobs.compaction.plan import CompactionPlan, OnProgress, PartitionResult
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.staging.job import JobStage
from ledger_client.topics.context import TopicContext
from ledger_client.topics.retention.holdings import remove_retired
from metadata.compaction import RETIRED_MS, compacted_key
from metadata.errors import MetadataUnavailable
from metadata.records import ledger_key
from metadata.store import Op, Put


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Large: a set has pages, and a pointer shows its ledgers."""
    if request.param == "large":
        monkeypatch.setattr("ledger_client.jobs.compaction.job.DIRECT_OPS_MAX", 0)
        monkeypatch.setattr("metadata.paged.PAGE_SIZE", 300)
    return str(request.param)


async def with_retired(topic: LaidTopic) -> tuple[LaidLane, Callable[[], Awaitable[object]]]:
    """Return a lane with news whose set has a retired ledger, and a function that removes it."""
    lane, store = topic.lane(), topic.cluster.store
    for value in (b"a", b"b"):
        await lane.lay([Sent(value, key=b"k")])
        await compact_topic(topic.client._context, TOPIC, LocalRunner(topic.client._context))
    await lane.lay([Sent(b"c", key=b"k")])
    (gone,) = (await the_set(topic)).retired
    await trio.sleep(1)  # the next one is retired later

    async def remove() -> None:
        await remove_retired(store, topic.record.uid, gone.retired_ms + RETIRED_MS)
        assert ledger_key(gone.ledger_id) not in store.values

    return lane, remove


async def check_published(topic: LaidTopic, lane: LaidLane) -> None:
    """The third generation has what is left, and lists only ledgers that are there."""
    after = await the_set(topic)
    assert (after.generation, len(after.retired)) == (3, 1)
    assert ledger_key(after.retired[0].ledger_id) in topic.cluster.store.values
    wanted = survivors_of({(lane.partition, lane.lane): lane.messages})
    assert await kept_of(topic.client, after) == wanted


class Slow(LocalRunner):
    """Does something else before the end."""

    def __init__(self, context: TopicContext, also: Callable[[], Awaitable[object]]) -> None:
        super().__init__(context)
        self._also = also

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        results = await super().separately(plan, stage, on_progress)
        await self._also()
        return results


async def test_they_may_be_removed_while_a_compaction_runs(
    autojump_clock: MockClock, size: str
) -> None:
    """It publishes what it made, without those that are gone."""
    async with laid_topic() as topic:
        lane, remove = await with_retired(topic)
        context = topic.client._context
        assert (await compact_topic(context, TOPIC, Slow(context, remove))).published
        await check_published(topic, lane)


class Between:
    """Does something else before one of the transactions."""

    def __init__(
        self,
        transact: Callable[[Sequence[Op]], Awaitable[list[int]]],
        at: int,
        also: Callable[[], Awaitable[object]],
    ) -> None:
        self.count = 0
        self._transact = transact
        self._at = at
        self._also = also
        self._is_within = False

    async def transact(self, ops: Sequence[Op]) -> list[int]:
        if not self._is_within:
            self.count += 1
            if self.count == self._at + 1:
                self._is_within = True
                await self._also()
                self._is_within = False
        return await self._transact(ops)


async def test_they_may_be_removed_between_any_steps_of_a_compaction(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Pages of the next set that go with them are stored again."""
    at, steps = 0, 1
    while at < steps:
        async with laid_topic() as topic:
            lane, remove = await with_retired(topic)
            store, context = topic.cluster.store, topic.client._context
            between = Between(store.transact, at, remove)
            with monkeypatch.context() as patched:
                patched.setattr(store, "transact", between.transact)
                await compact_topic(context, TOPIC, LocalRunner(context))
            await check_published(topic, lane)
            at, steps = at + 1, between.count
    assert steps > (3 if size == "small" else 8)


async def test_they_may_be_removed_before_a_publication_without_an_answer_is_looked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """The generation is known by all but its retired ledgers."""
    async with laid_topic() as topic:
        lane, remove = await with_retired(topic)
        store, context = topic.cluster.store, topic.client._context
        transact, key = store.transact, compacted_key(topic.record.uid)

        async def unanswered(ops: Sequence[Op]) -> list[int]:
            versions = await transact(ops)
            if any(isinstance(op, Put) and op.key == key for op in ops):
                monkeypatch.setattr(store, "transact", transact)
                await remove()
                raise MetadataUnavailable("no answer")
            return versions

        monkeypatch.setattr(store, "transact", unanswered)
        assert (await compact_topic(context, TOPIC, LocalRunner(context))).published
        await check_published(topic, lane)
