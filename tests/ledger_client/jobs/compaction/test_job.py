"""A compaction as a job: what it says, whom it lets in, and what is left of it when it is cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import pytest
import trio
import trio.testing
from batches import Sent
from compacted import Kept, kept_of, survivors_of, the_set
from hypothesis import given, settings, strategies as st
from laid_topic import TOPIC, LaidLane, LaidTopic, laid_topic, read_all, said
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    JobLost,
    LedgerError,
    MessagesLost,
    NoSuchTopic,
    TopicBusy,
    TopicError,
)
from ledger_client.jobs.compaction.job import Compaction, compact_topic, drop_compacted
from ledger_client.jobs.compaction.plan import CompactionPlan, OnProgress, PartitionResult
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.staging.job import JobStage, open_job
from ledger_client.topics.retention.holdings import read_set, remove_retired
from ledger_client.topics.retention.job_rows import discard
from metadata import compaction as metadata_compaction
from metadata.compaction import (
    COMPACTED,
    RETIRED_MS,
    CompactedSet,
    compacted_key,
    decode_set,
)
from metadata.jobs import JOBS, POINTERS, STAGED
from metadata.paged import PAGES, read_value
from metadata.records import LEDGERS, ledger_key, parse_ledger_key
from metadata.store import Op
from metadata.topics import LaneRecord, Removed, encode_row, lane_key, topic_prefix
from native.latest import MEMORY_MIN, Latest


def keyed(prefix: str, keys: int, *, count: int = 1) -> list[Sent]:
    """Messages, *count* of each key."""
    return [
        Sent(b"%s%d.%d" % (prefix.encode(), key, turn), key=b"key%d" % key, headers={"h": b"1"})
        for turn in range(count)
        for key in range(keys)
    ]


async def compacted(topic: LaidTopic, **given_settings: object) -> Compaction:
    runner = LocalRunner(topic.client._context)
    return await compact_topic(topic.client._context, TOPIC, runner, **given_settings)  # type: ignore[arg-type]


def of(*lanes: LaidLane) -> list[Kept]:
    return survivors_of({(lane.partition, lane.lane): lane.messages for lane in lanes})


# --- results --------------------------------------------------------------------------


async def test_ids_times_keys_and_headers_are_the_original_ones(
    autojump_clock: MockClock,
) -> None:
    """PS-37: batches that survive in part, messages that are no batch, control entries."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(keyed("a", 9), [], keyed("b", 3), created_ms=5)
        await lane.lay([Sent(b"alone", key=b"key4", event_time=7, timestamp=8)], batched=False)
        done = await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(lane)
        report = done.report
        assert report is not None
        assert (done.generation, report.keys, report.messages_in, report.messages_out) == (
            1, 9, 13, 9,
        )  # fmt: skip
        assert not report.shuffled


async def test_a_run_without_news_changes_nothing(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        assert not (await compacted(topic)).published
        await lane.lay(keyed("a", 3))
        first = await compacted(topic)
        again = await compacted(topic)
        assert (first.published, again.published) == (True, False)
        assert (again.generation, again.report) == (1, first.report)
        assert (await compacted(topic, null_keys="keep")).published  # that is news


async def test_a_dry_run_says_what_would_be_read(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=3) as topic:
        for partition in range(2):
            await topic.lane(partition).lay(said(["x"]))
        planned = await compacted(topic, dry_run=True)
        assert (planned.published, planned.partitions) == (False, 2)
        assert await read_set(topic.cluster.store, topic.record.uid) is None


async def test_partitions_without_news_keep_their_ledgers(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=4) as topic:
        lanes = [topic.lane(partition) for partition in range(2)]
        for lane in lanes:
            await lane.lay([Sent(b"x")] * 3)
        await compacted(topic, null_keys="keep")
        before = await the_set(topic)
        await lanes[1].lay([Sent(b"y")])
        await compacted(topic)
        after = await the_set(topic)
        assert after.lane_ledgers(0, 0) == before.lane_ledgers(0, 0)
        assert after.lane_ledgers(1, 0) != before.lane_ledgers(1, 0)
        assert [each.ledger_id for each in after.retired] == [
            each.ledger_id for each in before.lane_ledgers(1, 0)
        ]


async def test_more_keys_than_fit_memory_are_taken_in_several_passes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-37: memory is bounded, the result the same."""
    slices: list[tuple[int, int]] = []

    class Spied(Latest):
        def __init__(self, *, slices: int, slice_index: int, **others: int) -> None:
            seen.append((slices, slice_index))
            super().__init__(slices=slices, slice_index=slice_index, **others)

    seen = slices
    monkeypatch.setattr("ledger_client.jobs.compaction.partition.Latest", Spied)
    async with laid_topic() as topic:
        lanes = topic.lane(), topic.lane(lane=1)
        for turn in range(3):
            for lane in lanes:
                batch = keyed("v", 4000) if turn != 1 else keyed("w", 9000)[::2]
                await lane.lay(batch[:3000], batch[3000:], created_ms=turn * 2 + lane.lane)
        runner = LocalRunner(topic.client._context, memory_max=MEMORY_MIN)
        await compact_topic(topic.client._context, TOPIC, runner)
        assert slices[-1] == (slices[-1][0], slices[-1][0] - 1)
        assert slices[-1][0] > 1
        assert await kept_of(topic.client, await the_set(topic)) == of(*lanes)


async def test_survivors_roll_into_several_ledgers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger_client.jobs.compaction.plan.LEDGER_SIZE", 20_000)
    monkeypatch.setattr("ledger_client.jobs.compaction.entries.ENTRY_SIZE", 4_000)
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*[keyed(f"{part}-", 50) for part in range(5)])
        await lane.lay(
            [each._replace(key=b"other" + (each.key or b"")) for each in keyed("b", 900)]
        )
        await compacted(topic)
        found = await the_set(topic)
        assert len(found.ledgers) > 2
        assert await kept_of(topic.client, found) == of(lane)
        await lane.lay(keyed("c", 60))
        await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(lane)


async def test_what_was_purged_before_the_horizon_stays_in_the_set(
    autojump_clock: MockClock,
) -> None:
    """PS-37: retention removes raw ledgers, not what is left of their keys."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(keyed("a", 5))
        await compacted(topic)
        await lane.purge(0)
        await lane.lay(keyed("b", 2))
        await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(lane)


async def test_what_was_deleted_out_of_ledgers_is_left_out(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        for turn in range(2):
            batches = [keyed(f"{turn}{part}", 3, count=2) for part in range(12)]
            await lane.lay(*batches, created_ms=turn)
        removed = [Removed(0, 2, 0, 3), Removed(3, 5, 9, 1), Removed(10, 4, 12, 0)]
        lane.delete(1, removed)
        await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(lane)
        lane.delete(0, [Removed(0, 0, 12, 0)])
        await lane.lay(keyed("x", 1))
        lane.delete(2, [Removed(0, 0, 1, 0)])
        await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(lane)


async def test_a_lane_that_was_deleted_leaves_nothing(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        gone, stays = topic.lane(), topic.lane(lane=1)
        await gone.lay([Sent(b"a", key=b"one")])
        await stays.lay([Sent(b"b", key=b"two")])
        await compacted(topic)
        record = LaneRecord(epoch=2, deleted=True, current=1, next_version=9)
        topic.cluster.store.change(lane_key(7, -1, 0), encode_row(record))
        await gone.purge(0)
        assert (await compacted(topic)).published
        assert await kept_of(topic.client, await the_set(topic)) == of(stays)
        assert not (await compacted(topic)).published


async def test_partitions_that_are_added_take_keys_along(autojump_clock: MockClock) -> None:
    """PS-37: a key's older message is in its former partition."""
    async with laid_topic(partitions=1) as topic:
        old = topic.lane(0)
        await old.lay(keyed("a", 20), created_ms=1)
        await compacted(topic)
        topic.record = type(topic.record)(name=TOPIC, uid=7, partitions=3, replication=1)
        topic.put()
        new = topic.lane(2)
        await new.lay(keyed("b", 9), created_ms=2)
        done = await compacted(topic)
        assert done.report is not None
        assert done.report.shuffled
        assert done.report.keys == 20
        assert await kept_of(topic.client, await the_set(topic)) == of(old, new)


async def test_partitions_that_are_added_while_it_begins_are_for_the_next_run(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic(partitions=1) as topic:
        old, new = topic.lane(0), topic.lane(2)
        await old.lay(keyed("a", 20), created_ms=1)
        await new.lay(keyed("b", 9), created_ms=2)
        assert (await compacted(topic)).partitions == 1
        assert await kept_of(topic.client, await the_set(topic)) == of(old)
        topic.record = type(topic.record)(name=TOPIC, uid=7, partitions=3, replication=1)
        topic.put()
        await compacted(topic)
        assert await kept_of(topic.client, await the_set(topic)) == of(old, new)


# --- reading --------------------------------------------------------------------------


async def test_readers_see_the_dictionary_and_go_on_behind_the_horizon(
    autojump_clock: MockClock,
) -> None:
    """PS-38."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(keyed("a", 9), keyed("b", 4))
        await lane.lay(keyed("c", 2))
        await compacted(topic)
        wanted = of(lane)
        await lane.lay(keyed("d", 3))
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            found = await read_all(reader)
        assert [m.id for m in found] == [
            *(kept.id for kept in wanted),
            *(laid.id for laid in lane.of_ledger(2)),
        ]


# --- one at a time --------------------------------------------------------------------


async def test_a_second_compaction_is_refused_while_one_runs(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(keyed("a", 3))
        async with open_job(topic.client._context.ledgers, topic.record, "compaction"):
            with pytest.raises(TopicBusy, match="is being compacted by process"):
                await compacted(topic)
            with pytest.raises(TopicBusy):
                await drop_compacted(topic.client._context, TOPIC)
        async with open_job(topic.client._context.ledgers, topic.record, "replay"):
            assert (await compacted(topic)).published


class Slow(LocalRunner):
    """Does something else before the end."""

    def __init__(self, client: Client, also: Callable[[], Awaitable[object] | None]) -> None:
        super().__init__(client._context)
        self._also = also

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, told: OnProgress
    ) -> list[PartitionResult]:
        results = await super().separately(plan, stage, told)
        done = self._also()
        if done is not None:
            await done
        return results


async def test_a_set_that_changed_meanwhile_is_not_overwritten(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        client: Client = topic.client
        lane = topic.lane()
        await lane.lay(keyed("a", 3))
        await compacted(topic)
        await lane.lay(keyed("b", 3))
        found = await read_set(client._context.store, 7)
        assert found is not None
        key, row = metadata_compaction.compacted_key(7), metadata_compaction.encode_set(found.set)
        rival = Slow(client, partial(client._context.store.put, key, row))
        with pytest.raises(JobLost):
            await compact_topic(client._context, TOPIC, rival)
        assert await orphans(topic) == set()


async def test_a_topic_may_be_altered_meanwhile_and_deleted(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        client: Client = topic.client
        await topic.lane().lay(keyed("a", 3))
        await compact_topic(client._context, TOPIC, Slow(client, topic.put))
        await topic.lanes[0].lay(keyed("b", 3))
        with pytest.raises(NoSuchTopic):
            await compact_topic(
                client._context, TOPIC, Slow(client, partial(client.topics.delete, TOPIC))
            )
        assert await read_set(client._context.store, 7) is None
        ledgers = [key for key in topic.cluster.store.values if key.startswith(LEDGERS)]
        topics = [topic.cluster.record(parse_ledger_key(key)).custom for key in ledgers]
        assert [custom["topic"] for custom in topics] == ["shop/__events"]


async def test_a_set_whose_ledger_is_gone_is_not_compacted(autojump_clock: MockClock) -> None:
    """PS-38: nothing falls back silently; dropping the set begins anew."""
    async with laid_topic() as topic:
        client: Client = topic.client
        lane = topic.lane()
        await lane.lay(keyed("a", 3))
        await compacted(topic)
        await client.ledgers.delete((await the_set(topic)).ledgers[0].ledger_id)
        await lane.lay(keyed("b", 1))
        with pytest.raises(MessagesLost, match="quire compact shop/orders --drop"):
            await compacted(topic)
        await drop_compacted(client._context, TOPIC)
        await compacted(topic)
        assert await kept_of(client, await the_set(topic)) == of(lane)


async def test_more_lanes_than_a_set_lists_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger_client.jobs.compaction.plan.HORIZONS_MAX", 1)
    async with laid_topic() as topic:
        for lane in range(2):
            await topic.lane(lane=lane).lay(keyed("a", 1))
        with pytest.raises(TopicError, match="2 lanes to compact, and at most 1"):
            await compacted(topic)


# --- cut anywhere ---------------------------------------------------------------------


async def orphans(topic: LaidTopic) -> set[str]:
    """Return ledgers that no lane and no set knows, once what dead jobs staged is given up."""
    store = topic.cluster.store
    await discard(store, STAGED)
    assert not await store.leases(topic_prefix(JOBS, topic.record.uid))
    known = {ledger_key(row.ledger_id) for lane in topic.lanes for row in lane.rows}
    found = await read_set(store, topic.record.uid)
    if found is not None:
        known |= {ledger_key(each.ledger_id) for each in found.set.ledgers}
        known |= {ledger_key(each.ledger_id) for each in found.set.retired}
    return {key for key in store.values if key.startswith(LEDGERS)} - known


class Fuse:
    """Ends a compaction at a change of metadata, before it or after it was made."""

    def __init__(self, left: int, how: Literal["killed", "away"], topic: LaidTopic) -> None:
        self.left = left
        self.how = how
        self.scope = trio.CancelScope()
        self._topic = topic

    def burn(self, _key: str) -> None:
        self.left -= 1
        if self.left == 0:
            if self.how == "killed":
                self.scope.cancel()
            else:
                self._topic.cluster.store.available = False


async def cut(left: int, how: Literal["killed", "away"]) -> bool:
    """Compact twice, the second time cut; return whether it was cut."""
    async with laid_topic(partitions=2) as topic:
        lanes = topic.lane(0), topic.lane(1)
        for lane in lanes:
            await lane.lay([Sent(b"x", key=None)] * 3)
        await compacted(topic, null_keys="keep")
        before = await the_set(topic)
        kept = [await kept_of(topic.client, before)]
        for lane in lanes:
            await lane.lay([Sent(b"y", key=None)] * 2)
        fuse = Fuse(left, how, topic)
        topic.cluster.store.before_put = fuse.burn
        with fuse.scope:
            try:
                await compacted(topic)
            except LedgerError:
                assert how == "away"
        topic.cluster.store.before_put = lambda _key: None
        topic.cluster.store.available = True
        await trio.sleep(120)  # the lease runs out
        await check_whole(topic, before, kept[0])
        assert await orphans(topic) == set()
        await compacted(topic)
        messages = {(lane.partition, lane.lane): lane.messages for lane in lanes}
        found = await kept_of(topic.client, await the_set(topic))
        assert found == survivors_of(messages, null_keys="keep")
        return fuse.left <= 0


async def check_whole(topic: LaidTopic, before: CompactedSet, kept: list[Kept]) -> None:
    """Readers have the former generation or the next one."""
    after = await the_set(topic)
    found = await kept_of(topic.client, after)
    if after.generation == before.generation:
        assert (after, found) == (before, kept)
    else:
        messages = {(lane.partition, lane.lane): lane.messages for lane in topic.lanes}
        assert found == survivors_of(messages, null_keys="keep")
        assert {each.ledger_id for each in before.ledgers} == {e.ledger_id for e in after.retired}


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Large: nothing fits one transaction, one row, or one step."""
    if request.param == "large":
        make_large(monkeypatch)
    return str(request.param)


def make_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger_client.jobs.compaction.job.DIRECT_OPS_MAX", 0)
    monkeypatch.setattr("ledger_client.jobs.compaction.job.STEP_COUNT", 1)
    monkeypatch.setattr("metadata.pointers.STEP_COUNT", 1)
    monkeypatch.setattr("metadata.paged.PAGE_SIZE", 300)
    monkeypatch.setattr("ledger_client.topics.retention.holdings.REMOVED_COUNT", 1)


@pytest.mark.parametrize("how", ["killed", "away"])
async def test_a_compaction_cut_at_any_change_leaves_one_generation_whole(
    autojump_clock: MockClock, how: Literal["killed", "away"], size: str
) -> None:
    """PS-37: the former generation or the next one, and nothing that nobody knows."""
    left = 1
    while await cut(left, how):
        left += 1
    assert left > (5 if size == "small" else 15)


async def test_a_reader_between_two_changes_has_one_generation_whole(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the next one is put in steps, and the last one removed in steps."""
    make_large(monkeypatch)
    async with laid_topic(partitions=2) as topic:
        lanes = [topic.lane(partition) for partition in range(2)]
        for lane in lanes:
            await lane.lay([Sent(b"x", key=None)] * 3)
        await compacted(topic, null_keys="keep")
        store, seen = topic.cluster.store, list[int]()
        transact = store.transact

        async def look() -> None:
            async with topic.client.reader(TOPIC, compacted=True) as reader:
                seen.append(len([message async for message in reader]))

        async def looking(ops: Sequence[Op]) -> list[int]:
            await look()
            return await transact(ops)

        for lane in lanes:
            await lane.lay([Sent(b"y", key=None)] * 2)
        monkeypatch.setattr(store, "transact", looking)
        await compacted(topic)
        await look()
        assert set(seen) == {10}
        steps = len(seen)
        assert steps > 15
        await drop_compacted(topic.client._context, TOPIC)
        await look()
        assert len(seen) > steps + 5
        assert set(seen[steps:]) == {10}
        assert await read_set(store, topic.record.uid) is None
        assert await orphans(topic) == set()
        assert not [key for key in store.values if key.startswith((PAGES, POINTERS, COMPACTED))]


async def test_a_set_dropped_in_steps_is_gone_at_once_whatever_is_cut_off(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tidies up next removes the rest of its ledgers."""
    make_large(monkeypatch)
    left, dropped, is_cut = 1, 0, True
    while is_cut:
        async with laid_topic(partitions=2) as topic:
            for partition in range(2):
                await topic.lane(partition).lay([Sent(b"x", key=None)] * 3)
            await compacted(topic, null_keys="keep")
            store, scope = topic.cluster.store, trio.CancelScope()
            transact, changes = store.transact, iter(range(left - 1))

            async def transact_some(
                ops: Sequence[Op],
                changes: Iterator[int] = changes,
                scope: trio.CancelScope = scope,
                transact: Callable[..., Awaitable[list[int]]] = transact,
            ) -> list[int]:
                if next(changes, None) is None:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                return await transact(ops)

            with monkeypatch.context() as patched, scope:
                patched.setattr(store, "transact", transact_some)
                await drop_compacted(topic.client._context, TOPIC)
            is_cut = scope.cancelled_caught
            async with topic.client.reader(TOPIC, compacted=True) as reader:
                assert len([message async for message in reader]) == 6
            row = await read_value(store, compacted_key(topic.record.uid))
            if row is not None and decode_set("", row.value).dropped:
                dropped += 1
                assert await read_set(store, topic.record.uid) is None
            if await read_set(store, topic.record.uid) is None:
                await remove_retired(store, topic.record.uid, await store.now_ms())
                assert [key for key in store.values if key.startswith(COMPACTED)] == []
                assert await orphans(topic) == set()
            left += 1
    assert left > 5
    assert dropped > 2


@settings(max_examples=25)
@given(st.floats(0, 0.2), st.sampled_from(["b1", "b2", ""]))
def test_a_compaction_cut_at_any_time_leaves_one_generation_whole(at_s: float, lost: str) -> None:
    async def story() -> None:
        async with laid_topic() as topic:
            lane = topic.lane()
            await lane.lay(keyed("a", 40))
            await compacted(topic)
            before = await the_set(topic)
            kept = await kept_of(topic.client, before)
            await lane.lay(keyed("b", 20), keyed("c", 10))
            with trio.move_on_after(at_s):
                await compacted(topic)
            await check_whole(topic, before, kept)
            assert await orphans(topic) == set()

    trio.run(story, clock=trio.testing.MockClock(rate=1.0))


async def test_retired_ledgers_go_with_a_later_compaction(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        for turn in range(3):
            await lane.lay(keyed(str(turn), 3))
            await compacted(topic)
        assert len((await the_set(topic)).retired) == 2
        now_ms = (await the_set(topic)).retired[-1].retired_ms
        topic.cluster.store.wall_ms = lambda: now_ms + RETIRED_MS
        await lane.lay(keyed("x", 3))
        await compacted(topic)
        assert len((await the_set(topic)).retired) == 1
        assert await orphans(topic) == set()
