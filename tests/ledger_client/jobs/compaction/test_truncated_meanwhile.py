"""Messages that are deleted while a compaction begins are not kept by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import trio
from batches import Sent
from compacted import kept_of, the_set, without_tombstones
from laid_topic import TOPIC, LaidLane, LaidTopic, laid_topic
from trio.testing import MockClock

from ledger_client.errors import TopicBusy, TopicError
from ledger_client.jobs.compaction.job import compact_topic
from ledger_client.jobs.compaction.plan import CompactionPlan, OnProgress, PartitionResult
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.staging.job import JobStage
from ledger_client.topics.context import TopicContext
from metadata.jobs import TRUNCATIONS
from metadata.store import Op, Put
from metadata.topics import LANE_LEDGERS

Delete = Callable[[LaidTopic, LaidLane], Awaitable[None]]


class Held(LocalRunner):
    """Begins when it may."""

    def __init__(self, context: TopicContext) -> None:
        super().__init__(context)
        self.is_planned = trio.Event()
        self.may_begin = trio.Event()

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        self.is_planned.set()
        await self.may_begin.wait()
        return await super().separately(plan, stage, on_progress)


class Stopped:
    """Holds back the transactions that change ledgers of lanes."""

    def __init__(self, transact: Callable[[Sequence[Op]], Awaitable[list[int]]]) -> None:
        self.is_ready = trio.Event()
        self.may_delete = trio.Event()
        self._transact = transact

    async def transact(self, ops: Sequence[Op]) -> list[int]:
        if any(isinstance(op, Put) and op.key.startswith(LANE_LEDGERS) for op in ops):
            self.is_ready.set()
            await self.may_delete.wait()
        return await self._transact(ops)


async def ten_keys(topic: LaidTopic, *, partition: int = -1, lane: int = 0) -> LaidLane:
    made = topic.lane(partition, lane)
    await made.lay(*([Sent(b"v", key=b"k%d" % number)] for number in range(9)))
    await made.lay([Sent(b"v", key=b"k9")])
    return made


async def delete_some(topic: LaidTopic, lane: LaidLane) -> None:
    """Delete k3 to k6, out of a closed ledger."""
    first, last = lane.messages[3].id, lane.messages[6].id
    partition = None if lane.partition < 0 else lane.partition
    topics = topic.client.topics
    await topics.delete_messages(TOPIC, first, last, partition=partition, lane=lane.lane)


async def keys_left(topic: LaidTopic) -> list[int]:
    context = topic.client._context
    await compact_topic(context, TOPIC, LocalRunner(context))
    kept = await kept_of(topic.client, await the_set(topic))
    return [int((each.sent.key or b"")[1:]) for each in kept]


async def test_what_is_deleted_while_a_compaction_begins_is_not_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-35: the truncation had looked for jobs, and had not deleted yet."""
    async with laid_topic() as topic:
        lane, context = await ten_keys(topic), topic.client._context
        stopped, runner = Stopped(topic.cluster.store.transact), Held(context)
        monkeypatch.setattr(topic.cluster.store, "transact", stopped.transact)

        async def compact() -> None:
            with suppress(TopicBusy):
                await compact_topic(context, TOPIC, runner)
            runner.is_planned.set()

        async with trio.open_nursery() as compaction:
            async with trio.open_nursery() as deletion:
                deletion.start_soon(delete_some, topic, lane)
                await stopped.is_ready.wait()
                compaction.start_soon(compact)
                await runner.is_planned.wait()
                stopped.may_delete.set()
            runner.may_begin.set()
        assert await keys_left(topic) == [0, 1, 2, 7, 8, 9]


async def delete_the_end(topic: LaidTopic, lane: LaidLane) -> None:
    await topic.client.topics.truncate(TOPIC, lane.messages[3].id)


@pytest.mark.parametrize("delete", [delete_some, delete_the_end])
async def test_a_deletion_that_compactions_do_not_see_any_more_deletes_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, delete: Delete
) -> None:
    """PS-35: its session was over before its last transaction."""
    async with laid_topic() as topic:
        lane, store = await ten_keys(topic), topic.cluster.store
        stopped = Stopped(store.transact)
        monkeypatch.setattr(store, "transact", stopped.transact)

        async def fail() -> None:
            with pytest.raises(TopicError, match="is over"):
                await delete(topic, lane)

        async with trio.open_nursery() as deletion:
            deletion.start_soon(fail)
            await stopped.is_ready.wait()
            for lease in await store.leases(TRUNCATIONS):
                await store.release(lease)
            stopped.may_delete.set()
        assert await keys_left(topic) == list(range(10))


class Late(LocalRunner):
    """A lane begins before partitions are compacted together, and is cut after planning that."""

    def __init__(self, topic: LaidTopic) -> None:
        super().__init__(topic.client._context)
        self._topic = topic
        self._lane: LaidLane | None = None

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        self._lane = await ten_keys(self._topic, partition=1, lane=7)
        return await super().separately(plan, stage, on_progress)

    async def together(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        assert self._lane is not None
        await delete_some(self._topic, self._lane)
        return await super().together(plan, stage, on_progress)


async def test_what_is_deleted_from_a_lane_that_begins_during_a_compaction_is_not_kept(
    autojump_clock: MockClock,
) -> None:
    """PS-35: nothing pins such a lane; the next compaction takes it."""
    async with laid_topic(partitions=2) as topic:
        for partition in range(2):  # some of the keys belong to the other one
            await ten_keys(topic, partition=partition)
        for lane in topic.lanes[:2]:
            await lane.lay(*([Sent(None, key=b"k%d" % number)] for number in range(10)))
        await compact_topic(topic.client._context, TOPIC, Late(topic))
        kept = await kept_of(topic.client, await the_set(topic))
        assert kept  # tombstones stay, since the lane counts as written
        assert without_tombstones(kept) == []
        assert await keys_left(topic) == [0, 1, 2, 7, 8, 9]
