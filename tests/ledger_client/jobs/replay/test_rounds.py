"""Replays by many workers: the same as by one process, whatever is killed, repeated or slow."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from cut_line import Cut
from lane_process import HASTY, Process
from leases import end_leases, grant
from memory_cluster import MemoryCluster, memory_cluster
from replay_rig import (
    SOURCE,
    TARGET,
    CopiedFields,
    check_nothing_left,
    copied_fields,
    fill,
    leader,
    make_large,
    read,
)
from replay_workers import TaskWorkers
from topic_rig import stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    BadTopic,
    JobLost,
    LedgerError,
    MetadataBroken,
    ProducerBusy,
    ReplayConflict,
    TopicBusy,
)
from ledger_client.jobs.replay.log import ReplayLog, ReplayProgress, ReplayReport
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.jobs.replay.replay import replay_into_topic
from ledger_client.jobs.replay.rounds import Rounds
from ledger_client.topics.producing import bulk, partition_writer
from metadata.jobs import IDS, PINS, SINKS, STAGED
from metadata.replays import Order, ReplayRecord, replay_key
from metadata.sessions import SESSION_S
from metadata.store import OPS_MAX, Op
from metadata.topics import topic_prefix
from native.batch import encode

WHOLE = "shop/whole"
PART = 300
"""Bytes of a part: some entries."""


def stamp_by(monkeypatch: pytest.MonkeyPatch, now_ms: Callable[[], int]) -> None:
    """Let producers stamp their batches so."""

    def stamped(*args: object, created_ms: int, **options: object) -> bytes:
        return encode(*args, created_ms=now_ms(), **options)  # type: ignore[arg-type]

    for module in (bulk, partition_writer):
        monkeypatch.setattr(module, "encode", stamped)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that go on by a few milliseconds from batch to batch."""
    chance, now = random.Random(3), 1_700_000_000_000

    def now_ms() -> int:
        nonlocal now
        now += chance.choice([0, 0, 1, 3])
        return now

    stamp_by(monkeypatch, now_ms)


async def contents(client: Client, name: str) -> dict[int, list[CopiedFields]]:
    """What is in each partition, in order."""
    found: dict[int, list[CopiedFields]] = {}
    for message in await read(client, name):
        found.setdefault(message.id.partition, []).append(copied_fields(message))
    return found


async def by_workers(
    client: Client, workers: TaskWorkers, names: tuple[str, ...] = (SOURCE,), **settings: object
) -> ReplayReport:
    options = ReplayOptions(**settings)  # type: ignore[arg-type]
    return await replay_into_topic(
        client._context, names, TARGET, options, workers=workers, part_size=PART
    )


def same(one: ReplayReport, other: ReplayReport) -> bool:
    fields = ("messages", "bytes", "checksum", "parts")
    return [getattr(one, each) for each in fields] == [getattr(other, each) for each in fields]


@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 3), (3, 2), (0, 3), (2, 5)])
async def test_the_result_is_that_of_one_process(
    autojump_clock: MockClock, clock: None, order: Order, before: int, after: int
) -> None:
    """Each partition has the same messages in the same order, and all checksums are the same."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=before)
        await client.topics.create(WHOLE, after)
        whole = await replay_into_topic(
            client._context, [SOURCE], WHOLE, ReplayOptions(order=order)
        )
        await client.topics.create(TARGET, after)
        workers = TaskWorkers(client)
        report = await by_workers(client, workers, order=order, verify=True)
        assert same(report, whole)
        assert report.verified
        assert await contents(client, TARGET) == await contents(client, WHOLE)
        assert workers.wrong == 0
        assert workers.rounds == [1] if order == "arrival" else sum(workers.rounds) > 3
        check_nothing_left(cluster)


async def test_topics_ordered_by_event_time_are_merged_by_it(autojump_clock: MockClock) -> None:
    """Also where many messages have the same time, and one lane is much longer."""
    chance = random.Random(5)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        for topic in range(2):
            await client.topics.create(f"shop/{topic}", 2, order="event-time")
            async with client.producer(f"shop/{topic}", batch_messages=5) as producer:
                for partition in range(2):
                    many = 40 if topic or partition else 200
                    times = sorted(chance.randrange(30) for _ in range(many))
                    values = [b"%d %d %d" % (topic, partition, n) for n in range(many)]
                    await producer.send_many(values, event_times=times, partition=partition)
        names = ("shop/0", "shop/1")
        for name in (WHOLE, TARGET):
            await client.topics.create(name, 3, order="event-time")
        whole = await replay_into_topic(client._context, names, WHOLE, ReplayOptions())
        workers = TaskWorkers(client)
        report = await by_workers(client, workers, names, verify=True)
        assert same(report, whole)
        assert await contents(client, TARGET) == await contents(client, WHOLE)
        assert len(workers.rounds) > 1


@pytest.mark.parametrize("seed", range(2))
async def test_parts_that_are_done_twice_or_late_are_there_once(
    autojump_clock: MockClock, clock: None, seed: int
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=2, producers=3)
        await client.topics.create(WHOLE, 3)
        whole = await replay_into_topic(client._context, [SOURCE], WHOLE, ReplayOptions())
        await client.topics.create(TARGET, 3)
        workers = TaskWorkers(client, seed=seed, attempts=3)
        report = await by_workers(client, workers, keep_ids=bool(seed % 2))
        if not seed % 2:
            assert same(report, whole)
            assert await contents(client, TARGET) == await contents(client, WHOLE)
        else:
            ids = {message.headers["quire-id"] for message in await read(client, TARGET)}
            assert ids == {str(message.id).encode() for message in await read(client, SOURCE)}
        check_nothing_left(cluster)


@pytest.mark.parametrize("seed", range(5))
async def test_where_clocks_go_back_it_is_cut_elsewhere(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """An entry behind its lane's time counts as of that time: halving finds wrong places."""
    chance, now = random.Random(seed), 1_700_000_000_000

    def now_ms() -> int:
        nonlocal now
        now += 2
        is_wrong = seed == 0 or chance.random() < 0.2  # always, or now and then
        return now + chance.randrange(-60, 60) * is_wrong

    stamp_by(monkeypatch, now_ms)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=2, producers=3)
        await client.topics.create(WHOLE, 2)
        whole = await replay_into_topic(client._context, [SOURCE], WHOLE, ReplayOptions())
        await client.topics.create(TARGET, 2)
        workers = TaskWorkers(client, seed=seed)
        report = await by_workers(client, workers)
        assert workers.wrong > 0
        assert same(report, whole)
        assert await contents(client, TARGET) == await contents(client, WHOLE)
        check_nothing_left(cluster)


CALLS = 420
LARGE_CALLS = 800
"""Of the store, that a process makes for the replay below, and a few more."""


async def doomed(cluster: MemoryCluster, client: Client, line: Cut) -> None:
    """Run the replay in a process whose way to the store is cut; workers live on."""
    process = Process(cluster)
    process.line = line
    async with process.client(HASTY) as dying:
        with suppress(LedgerError, BaseExceptionGroup):
            await replay_into_topic(
                dying._context,
                [SOURCE],
                TARGET,
                ReplayOptions(),
                workers=TaskWorkers(client, seed=line.calls),
                part_size=PART,
            )


@pytest.mark.parametrize("at", [*range(1, 21, 4), *range(21, CALLS, 30)])
async def test_killed_at_any_call_of_the_store_it_goes_on_and_each_message_is_there_once(
    autojump_clock: MockClock, clock: None, at: int
) -> None:
    """What was staged and not shown is given up; a mark is kept no longer than it is needed."""
    await killed(at)


@pytest.mark.parametrize("at", range(1, LARGE_CALLS, 82))
async def test_killed_in_a_large_round_it_goes_on_and_each_message_is_there_once(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Its ledgers are shown by a pointer, and its mark and its record are stored in pages."""
    make_large(monkeypatch)
    await killed(at)


async def killed(at: int) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET, 2)
        await doomed(cluster, client, Cut(cluster, at, is_done=at % 4 < 2))
        await trio.sleep(SESSION_S)
        workers = TaskWorkers(client, seed=at)
        report = await by_workers(client, workers, verify=True)
        assert (report.messages, report.verified) == (120, True)
        there = await contents(client, TARGET)
        await leader(cluster, client)
        check_nothing_left(cluster)
        await client.topics.create(WHOLE, 2)
        whole = await replay_into_topic(client._context, [SOURCE], WHOLE, ReplayOptions())
        assert same(report, whole)
        assert there == await contents(client, WHOLE)


@pytest.mark.parametrize("is_large", [False, True])
async def test_all_calls_of_a_replay_are_tried(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """The ranges of the tests above reach beyond the last one, and not far."""
    calls = LARGE_CALLS if is_large else CALLS
    if is_large:
        make_large(monkeypatch)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET, 2)
        line = Cut(cluster, 0, is_done=False)
        await doomed(cluster, client, line)
        assert calls * 0.6 < line.calls < calls
        if not is_large:  # pages of marks that were replaced go an hour later
            check_nothing_left(cluster)


# --- beside others -----------------------------------------------------------------------------


def without_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several processes run one replay at once, as where one was paused for long."""

    async def take(self: ReplayLog, on_lost: Callable[[], None]) -> None:
        """Take nothing."""

    async def change(self: ReplayLog, *ops: Op) -> None:
        await self._store.transact(ops)

    monkeypatch.setattr(ReplayLog, "take", take)
    monkeypatch.setattr(ReplayLog, "_change", change)


@pytest.mark.parametrize("rounds_before", [0, 1, 2])
async def test_of_two_processes_that_run_it_one_stops_and_nothing_is_there_twice(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch, rounds_before: int
) -> None:
    """The mark decides, whatever became of the lease."""
    without_leases(monkeypatch)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        finished: list[ReplayReport] = []

        async def overtake() -> None:
            if len(slow.rounds) == rounds_before and not finished:
                finished.append(await by_workers(client, TaskWorkers(client)))

        slow = TaskWorkers(client, before=overtake)
        with pytest.raises(JobLost):
            await by_workers(client, slow)
        assert (finished[0].messages, finished[0].resumed > 0) == (120, rounds_before > 0)
        assert len(await read(client, TARGET)) == 120
        check_nothing_left(cluster)


async def test_paused_before_its_first_mark_it_does_not_do_again_what_is_done(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no mark of a replay that another process has done meanwhile; the lease tells."""
    begin_mark = Rounds._begin_mark
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        finished: list[ReplayReport] = []

        async def paused(self: Rounds, record: ReplayRecord) -> None:
            monkeypatch.setattr(Rounds, "_begin_mark", begin_mark)
            await end_leases(cluster.store, "replays/")  # as in a process that is paused
            async with cluster.client() as other:
                finished.append(await by_workers(other, TaskWorkers(other)))
            await begin_mark(self, record)

        monkeypatch.setattr(Rounds, "_begin_mark", paused)
        with pytest.raises(JobLost):
            await by_workers(client, TaskWorkers(client))
        assert finished[0].messages == 120
        assert len(await read(client, TARGET)) == 120


async def test_a_mark_is_there_before_the_first_round(
    autojump_clock: MockClock, clock: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        marks: list[int] = []

        async def look() -> None:
            marks.append(len(stored(cluster.store, SINKS)))

        await by_workers(client, TaskWorkers(client, before=look))
        assert min(marks) == 1


async def test_paused_before_it_reads_the_mark_it_does_not_do_again_what_is_done(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished replay leaves a mark that says so, whatever became of the lease."""
    without_leases(monkeypatch)
    with_mark = Rounds._with_mark
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)

        async def paused(self: Rounds, log: ReplayLog, record: ReplayRecord) -> ReplayRecord:
            monkeypatch.setattr(Rounds, "_with_mark", with_mark)
            await by_workers(client, TaskWorkers(client))
            return await with_mark(self, log, record)

        monkeypatch.setattr(Rounds, "_with_mark", paused)
        slow = TaskWorkers(client)
        with pytest.raises(JobLost):
            await by_workers(client, slow)
        assert slow.rounds == []
        assert len(await read(client, TARGET)) == 120


async def test_paused_before_its_first_mark_it_begins_no_round_without_the_lease(
    autojump_clock: MockClock, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_mark = Rounds._begin_mark
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)

        async def paused(self: Rounds, record: ReplayRecord) -> None:
            await end_leases(cluster.store, "replays/")
            await grant(cluster.store, replay_key(record.name), "host/1/other", ttl_s=3600)
            await begin_mark(self, record)

        monkeypatch.setattr(Rounds, "_begin_mark", paused)
        slow = TaskWorkers(client)
        with pytest.raises(JobLost):
            await by_workers(client, slow)
        assert slow.rounds == []


async def test_whoever_runs_it_holds_its_lease(autojump_clock: MockClock, clock: None) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        refused: list[TopicBusy] = []

        async def second() -> None:
            if not refused:
                with pytest.raises(TopicBusy) as told_so:
                    await by_workers(client, TaskWorkers(client))
                refused.append(told_so.value)

        report = await by_workers(client, TaskWorkers(client, before=second))
        assert (report.messages, len(refused)) == (120, 1)
        assert len(await read(client, TARGET)) == 120


async def test_interrupted_it_leaves_nothing_but_how_far_it_is(
    autojump_clock: MockClock, clock: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        last: list[ReplayProgress] = []
        with trio.CancelScope() as scope:

            async def interrupt() -> None:
                if len(workers.rounds) == 2:
                    trio.lowlevel.spawn_system_task(later)

            async def later() -> None:
                await trio.sleep(4)  # some tasks are done, some are not
                scope.cancel()

            workers = TaskWorkers(client, before=interrupt)
            await by_workers(client, workers, on_progress=last.append)
        assert scope.cancelled_caught
        kept = len(await read(client, TARGET))
        assert last[-1].kept == kept > 0
        left = [key for kind in (STAGED, PINS, IDS) for key in stored(cluster.store, kind)]
        assert left == []
        leases = await client._context.store.leases("")
        assert [each.name for each in leases if not each.name.startswith("bookies/")] == []
        report = await by_workers(client, TaskWorkers(client))
        assert (report.messages, report.resumed) == (120, kept)
        assert len(await read(client, TARGET)) == 120
        check_nothing_left(cluster)


async def test_progress_only_grows_and_ends_with_all(
    autojump_clock: MockClock, clock: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        seen: list[ReplayProgress] = []
        await by_workers(client, TaskWorkers(client), on_progress=seen.append)
        for field in ("messages", "bytes", "entries", "kept"):
            values = [getattr(each, field) for each in seen]
            assert values == sorted(values)
        assert seen[-1].entries == seen[-1].entries_total > 0
        assert seen[-1].messages == 120


async def test_what_one_engine_began_the_other_does_not_go_on_with(
    autojump_clock: MockClock, clock: None
) -> None:
    """One counts by numbers of a producer, the other by a mark."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        await doomed(cluster, client, Cut(cluster, 150, is_done=False))
        await trio.sleep(SESSION_S)
        with pytest.raises(ReplayConflict, match="begun with --spark"):
            await replay_into_topic(client._context, [SOURCE], TARGET, ReplayOptions())
        await by_workers(client, TaskWorkers(client))
        again = await replay_into_topic(client._context, [SOURCE], TARGET, ReplayOptions())
        assert again.finished_before
        assert len(await read(client, TARGET)) == 120


async def test_a_mark_that_is_damaged_is_told(autojump_clock: MockClock, clock: None) -> None:
    """It is never taken for none: everything would be there twice."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        topic = await client.topics.create(TARGET)
        await doomed(cluster, client, Cut(cluster, 200, is_done=False))
        await trio.sleep(SESSION_S)
        before = len(await read(client, TARGET))
        prefix = topic_prefix(SINKS, topic.uid)
        ((key, found),) = await client._context.store.list(prefix)
        await client._context.store.put(key, found.value[:-9])
        for _ in range(2):
            with pytest.raises(MetadataBroken, match=re.escape(key)):
                await by_workers(client, TaskWorkers(client))
        assert len(await read(client, TARGET)) == before
        await client._context.store.put(key, found.value)
        report = await by_workers(client, TaskWorkers(client))
        assert (report.messages, report.resumed) == (120, before)
        assert len(await read(client, TARGET)) == 120


async def test_begun_anew_it_forgets_how_far_it_was(autojump_clock: MockClock, clock: None) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        await doomed(cluster, client, Cut(cluster, 200, is_done=False))
        await trio.sleep(SESSION_S)
        before = len(await read(client, TARGET))
        assert 0 < before < 120
        report = await by_workers(client, TaskWorkers(client), restart=True)
        assert (report.messages, report.resumed) == (120, 0)
        assert len(await read(client, TARGET)) == before + 120
        await leader(cluster, client)
        check_nothing_left(cluster)


async def test_into_another_cluster(autojump_clock: MockClock, clock: None) -> None:
    """How far it is stands beside the target: one transaction shows both."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        memory_cluster(1) as elsewhere,
        elsewhere.client() as there,
    ):
        await fill(client, SOURCE, partitions=2)
        report = await replay_into_topic(
            client._context,
            [SOURCE],
            TARGET,
            ReplayOptions(verify=True),
            target=there._context,
            cluster="bookie://elsewhere:1",
            create=there.topics.create,
            replication=1,
            workers=TaskWorkers(client, there),
            part_size=PART,
        )
        assert (report.messages, report.verified) == (120, True)
        assert len(await read(there, TARGET)) == 120
        check_nothing_left(elsewhere)
        check_nothing_left(cluster)


async def test_others_write_to_the_target_meanwhile(autojump_clock: MockClock, clock: None) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        async with client.producer(TARGET) as producer:

            async def send() -> None:
                await producer.send(b"other", key=b"other")

            workers = TaskWorkers(client, before=send)
            report = await by_workers(client, workers, verify=True)
        assert (report.messages, report.verified) == (120, True)
        found = [message for message in await read(client, TARGET) if message.key != b"other"]
        whole = [copied_fields(message) for message in await read(client, SOURCE)]
        assert sorted(map(repr, map(copied_fields, found))) == sorted(map(repr, whole))


async def test_what_cannot_be_is_told_before_anything_is_done(
    autojump_clock: MockClock, clock: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        workers = TaskWorkers(client)
        with pytest.raises(BadTopic, match="at full speed"):
            await by_workers(client, workers, speed=1.0)
        async with client.producer(TARGET, access="exclusive"):
            with pytest.raises(ProducerBusy):
                await by_workers(client, workers)
        assert workers.rounds == []


async def test_a_target_may_have_more_partitions_than_a_transaction_has_ops(
    autojump_clock: MockClock, clock: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET, OPS_MAX)
        report = await by_workers(client, TaskWorkers(client), verify=True)
        found = [copied_fields(message) for message in await read(client, TARGET)]
        assert (report.messages, report.verified) == (len(found), True)
        whole = [copied_fields(message) for message in await read(client, SOURCE)]
        assert sorted(map(repr, found)) == sorted(map(repr, whole))
        check_nothing_left(cluster)


async def test_a_range_without_messages_is_done_at_once(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(SOURCE)
        await client.topics.create(TARGET)
        workers = TaskWorkers(client)
        report = await by_workers(client, workers, verify=True)
        assert (report.messages, workers.rounds) == (0, [])
        check_nothing_left(cluster)
