"""Replays into topics, on bookies in memory: order, places, definitions, resumption."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import memory_cluster
from replay_rig import SOURCE, TARGET, CopiedFields, copied_fields, fill, is_within, lanes, read
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    BadTopic,
    Gap,
    JobLost,
    NoSuchTopic,
    NotEnoughBookies,
    ReplayConflict,
    TopicBusy,
)
from ledger_client.jobs.replay import replay
from ledger_client.jobs.replay.log import ReplayProgress, ReplayReport, open_log
from ledger_client.jobs.replay.options import FixedRange, ReplayOptions, ReplayRange, fix_range
from ledger_client.jobs.replay.replay import replay_into_topic
from ledger_client.ledgers.replica_reads import LedgerSource, ask_confirmed
from ledger_client.message_id import MessageId
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes import lane_state
from ledger_client.topics.messages import Message
from ledger_client.topics.retention.job_rows import read_pins
from ledger_client.topics.times import EventTime, PublishTime
from metadata.replays import Order, decode_replay, replay_key
from metadata.sessions import SESSION_S
from metadata.topics import Retention, RollPolicy, Schema, TopicRecord


@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 3), (3, 2), (0, 3)])
async def test_every_message_is_copied_once_and_lanes_keep_their_order(
    autojump_clock: MockClock, order: str, before: int, after: int
) -> None:
    """TD-08: keys, values, event times and headers too."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=before)
        await client.topics.create(TARGET, after)
        options = ReplayOptions(order=order, verify=True)  # type: ignore[arg-type]
        report = await replay_into_topic(client._context, [SOURCE], TARGET, options)
        there, copy = await read(client, SOURCE), await read(client, TARGET)
        assert Counter(map(repr, map(copied_fields, copy))) == Counter(
            map(repr, map(copied_fields, there))
        )
        assert (report.messages, report.verified, report.repeated) == (len(there), True, 0)
        if before == after:
            assert {m.id.partition for m in copy} == {m.id.partition for m in there}
        for (partition, _), messages in lanes(there).items():
            if before == after:
                (own,) = [m for (p, _), m in lanes(copy).items() if p == partition]
                assert is_within(messages, own)
            keyed: dict[bytes | None, list[CopiedFields]] = {}
            for message in messages:
                keyed.setdefault(message[0], []).append(message)
            assert all(
                any(is_within(same, own) for own in lanes(copy).values()) for same in keyed.values()
            )


class Cut(Exception):
    """The process is gone."""


class Cutter:
    """Ends a replay after so many chunks."""

    def __init__(self, chunks: int) -> None:
        self._left = chunks

    def __call__(self, progress: ReplayProgress) -> None:
        assert 0 <= progress.entries <= progress.entries_total
        self._left -= 1
        if self._left < 0:
            raise Cut


async def replay_in_parts(
    client: Client, names: Sequence[str], chance: random.Random, **settings: object
) -> tuple[ReplayReport, int]:
    """Replay with a cut now and then, until it is done; return the report and how many runs."""
    for runs in range(1, 200):
        cutter = Cutter(chance.randrange(6))
        options = ReplayOptions(on_progress=cutter, **settings)  # type: ignore[arg-type]
        try:
            return await replay_into_topic(client._context, names, TARGET, options), runs
        except Cut:
            continue
    raise AssertionError("it comes to no end")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK_SIZE", 300)


@pytest.mark.parametrize("save_s", [0.0, 1000.0])
@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize("seed", range(3))
async def test_cut_short_anywhere_it_goes_on_and_each_message_is_there_once(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    small_chunks: None,
    seed: int,
    order: Order,
    save_s: float,
) -> None:
    """However far the record is behind: the target decides. And the range does not grow."""
    monkeypatch.setattr(replay, "SAVE_S", save_s)
    chance = random.Random(seed)
    after = chance.choice([2, 3])
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=2)
        await client.topics.create("shop/whole", after)
        whole = await replay_into_topic(
            client._context, [SOURCE], "shop/whole", ReplayOptions(order=order)
        )
        await client.topics.create(TARGET, after)
        if save_s:  # nothing is in the record: all is sent anew
            monkeypatch.setattr(replay, "CHUNK_SIZE", 1500)
        cutter = Cutter(1)
        with pytest.raises(Cut):
            options = ReplayOptions(order=order, on_progress=cutter)
            await replay_into_topic(client._context, [SOURCE], TARGET, options)
        async with client.producer(SOURCE) as producer:
            await producer.send(b"late")
        report, _ = await replay_in_parts(client, [SOURCE], chance, order=order, verify=True)
        assert (report.checksum, report.parts) == (whole.checksum, whole.parts)
        assert report.repeated > 0 or not save_s
        for partition in range(after):
            there = await read(client, "shop/whole", partitions=[partition])
            copy = await read(client, TARGET, partitions=[partition])
            assert list(map(copied_fields, copy)) == list(map(copied_fields, there))


@pytest.mark.parametrize("save_s", [0.0, 1000.0])
async def test_numbers_that_the_lane_has_forgotten_are_read_back(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    small_chunks: None,
    save_s: float,
) -> None:
    """Hours after it was cut short."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, producers=1)
        await client.topics.create(TARGET)
        monkeypatch.setattr(replay, "SAVE_S", save_s)
        with pytest.raises(Cut):
            await replay_into_topic(
                client._context, [SOURCE], TARGET, ReplayOptions(on_progress=Cutter(2))
            )
        monkeypatch.setattr(replay, "SAVE_S", 1000.0)
        with pytest.raises(Cut):
            await replay_into_topic(
                client._context, [SOURCE], TARGET, ReplayOptions(on_progress=Cutter(2))
            )
        monkeypatch.setattr(lane_state, "IDLE_S", -1)
        async with client.producer(TARGET) as producer:
            await producer.send(b"another's")
        options = ReplayOptions(verify=True)
        report = await replay_into_topic(client._context, [SOURCE], TARGET, options)
        assert report.repeated > 0
        own = [m for m in await read(client, TARGET) if m.producer]
        assert list(map(copied_fields, own)) == list(map(copied_fields, await read(client, SOURCE)))


async def test_a_replay_that_is_done_says_so_and_can_be_begun_anew(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        first = await client.replay(SOURCE, TARGET)
        again = await client.replay(SOURCE, TARGET)
        assert (again.finished_before, again.checksum) == (True, first.checksum)
        assert len(await read(client, TARGET)) == first.messages
        anew = await client.replay(SOURCE, TARGET, restart=True)
        assert (anew.finished_before, anew.messages) == (False, first.messages)
        assert len(await read(client, TARGET)) == 2 * first.messages


async def test_a_replay_that_is_done_is_verified_when_that_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    """And nothing is sent."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=2)
        await client.topics.create(TARGET, 2)
        first = await client.replay(SOURCE, TARGET)
        again = await client.replay(SOURCE, TARGET, verify=True)
        assert (first.verified, again.verified, again.finished_before) == (False, True, True)
        there = await read(client, TARGET)
        assert len(there) == first.messages
        await client.topics.truncate(TARGET, "earliest", partition=1)
        assert (await client.replay(SOURCE, TARGET)).finished_before
        with pytest.raises(ReplayConflict, match="partition 1: 0 messages") as told:
            await client.replay(SOURCE, TARGET, verify=True)
        assert "\n" not in str(told.value)


async def test_a_name_stands_for_one_replay(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        await client.replay(SOURCE, TARGET, name="n")
        with pytest.raises(ReplayConflict, match="the order time"):
            await client.replay(SOURCE, TARGET, name="n", order="arrival")
        with pytest.raises(ReplayConflict, match="the range everything"):
            await client.replay(SOURCE, TARGET, name="n", end=PublishTime(1))
        await client.topics.create("shop/other")
        with pytest.raises(ReplayConflict, match=f"the target topic {TARGET}"):
            await client.replay(SOURCE, "shop/other", name="n")
        with pytest.raises(ReplayConflict, match=f"the topics {SOURCE}"):
            await client.replay("shop/other", TARGET, name="n")
        await client.topics.delete(TARGET)
        await client.topics.create(TARGET)
        with pytest.raises(ReplayConflict, match="made again"):
            await client.replay(SOURCE, TARGET, name="n")
        with pytest.raises(BadTopic, match="a replay's name"):
            await client.replay(SOURCE, TARGET, name="n/m")


async def test_topics_ordered_by_event_time_are_merged_by_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """Into one that is ordered by it too; equal times by topic, partition and lane."""
    monkeypatch.setattr(replay, "SAVE_S", 0.0)
    chance = random.Random(5)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        expected: list[tuple[int, int, int, int]] = []
        for topic in range(2):
            await client.topics.create(f"shop/{topic}", 2, order="event-time")
            async with client.producer(f"shop/{topic}", batch_messages=5) as producer:
                for partition in range(2):
                    times = sorted(chance.randrange(60) for _ in range(40))
                    values = [b"%d %d %d" % (topic, partition, n) for n in range(40)]
                    await producer.send_many(values, event_times=times, partition=partition)
                    expected += [(time, topic, partition, n) for n, time in enumerate(times)]
        await client.topics.create(TARGET, order="event-time")
        names = ["shop/0", "shop/1"]
        report, _ = await replay_in_parts(client, names, chance, verify=True)
        assert report.messages == 160
        values = [b"%d %d %d" % each[1:] for each in sorted(expected)]
        assert [m.value for m in await read(client, TARGET)] == values
        with pytest.raises(BadTopic, match="order of arrival"):
            await client.replay(names, TARGET, order="arrival")


async def test_a_topic_is_rebuilt_with_its_definition_in_another_cluster(
    autojump_clock: MockClock,
) -> None:
    """TD-02: data and metadata."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        memory_cluster(1) as elsewhere,
        elsewhere.client() as there,
    ):
        await client.topics.create(
            SOURCE,
            3,
            replication=3,
            compression="zstd",
            roll=RollPolicy(size=10_000),
            retention=Retention(age_s=60.0),
            schema=Schema(kind="string"),
            properties={"team": "a"},
        )
        async with client.producer(SOURCE) as producer:
            await producer.send_many(
                [b"%d" % i for i in range(99)], keys=[b"%d" % i for i in range(99)]
            )
        into = partial(
            replay_into_topic,
            client._context,
            [SOURCE],
            SOURCE,
            target=there._context,
            cluster="memory",
            create=there.topics.create,
        )
        with pytest.raises(NotEnoughBookies):
            await into(ReplayOptions())
        report = await into(ReplayOptions(verify=True), replication=1)
        assert (report.messages, report.verified) == (99, True)
        made, model = await there.topics.info(SOURCE), await client.topics.info(SOURCE)
        same = {"uid": 0, "created_ms": 0, "replication": 1, "ack_quorum": 1}
        assert msgspec.structs.replace(made, **same) == msgspec.structs.replace(model, **same)
        assert lanes_by_partition(await read(there, SOURCE)) == lanes_by_partition(
            await read(client, SOURCE)
        )
        await there.topics.alter(SOURCE, partitions=4)
        with pytest.raises(BadTopic, match="partitions 4, not 3"):
            await into(ReplayOptions(restart=True))


def lanes_by_partition(messages: Sequence[Message]) -> dict[int, list[CopiedFields]]:
    found: dict[int, list[CopiedFields]] = {}
    for message in messages:
        found.setdefault(message.id.partition, []).append(copied_fields(message))
    return found


async def test_ids_and_publish_times_are_told_in_headers(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, producers=1)
        await client.topics.create(TARGET)
        await client.replay(SOURCE, TARGET, keep_ids=True, verify=True)
        there = {str(m.id): m for m in await read(client, SOURCE)}
        copy = await read(client, TARGET)
        assert len(copy) == len(there)
        for message in copy:
            headers = dict(message.headers)
            was = there[headers.pop("quire-id").decode()]
            assert int(headers.pop("quire-publish-ms")) == was.publish_time
            assert (message.value, headers) == (was.value, dict(was.headers))


async def test_a_range_by_id_time_and_partition(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, producers=1)
        there = await read(client, SOURCE)
        await client.topics.create(TARGET)
        first, last = there[7].id, there[41].id
        report = await client.replay(SOURCE, TARGET, start=first, end=last, end_inclusive=False)
        assert report.messages == 34
        assert list(map(copied_fields, await read(client, TARGET))) == list(
            map(copied_fields, there[7:41])
        )
        assert (await client.replay(SOURCE, TARGET, end=PublishTime(1))).messages == 0
        since = PublishTime(there[0].publish_time)
        assert (await client.replay(SOURCE, TARGET, start=since)).messages == len(there)


async def test_what_cannot_be_is_refused_before_anything_is_sent(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        for wanted, kind, match in (
            ({"to": "shop/none"}, NoSuchTopic, "shop/none"),
            ({"topics": "shop/none"}, NoSuchTopic, "shop/none"),
            ({"to": SOURCE}, BadTopic, "into itself"),
            ({"topics": [SOURCE, SOURCE]}, BadTopic, "named twice"),
            ({"topics": []}, BadTopic, "no topic"),
            ({"order": "event-time"}, BadTopic, "not ordered by event time"),
            ({"order": "odd"}, BadTopic, "'odd' is none of"),
            ({"speed": -1}, BadTopic, "speed"),
            ({"start": MessageId(999, 0), "lanes": [0]}, BadTopic, "no ledger 999"),
        ):
            given = {"topics": SOURCE, "to": TARGET, **wanted}
            if "to" not in wanted and TARGET not in {t.name for t in await client.topics.list()}:
                await client.topics.create(TARGET)
            with pytest.raises(kind, match=match):
                await client.replay(**given)  # type: ignore[arg-type]
        await client.topics.create("shop/ordered", order="event-time")
        with pytest.raises(BadTopic, match=f"topic {SOURCE}: it is not ordered by event time"):
            await client.replay(["shop/ordered", SOURCE], TARGET, order="event-time")
        with pytest.raises(BadTopic, match="cannot take messages in order of time"):
            await client.replay(SOURCE, "shop/ordered")
        assert await read(client, TARGET) == []


async def test_what_was_removed_is_no_range_unless_gaps_are_passed_over(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(SOURCE, order="event-time", roll=RollPolicy(entries=3))
        async with client.producer(SOURCE, batch_messages=2) as producer:
            await producer.send_many([b"%d" % i for i in range(40)], event_times=[*range(40)])
        there = await read(client, SOURCE)
        await client.topics.purge(SOURCE, before=EventTime(20))
        left = await read(client, SOURCE)
        assert 0 < len(left) < 40
        await client.topics.create(TARGET, order="event-time")
        with pytest.raises(Gap):
            await client.replay(SOURCE, TARGET, start=there[0].id)
        for start in (EventTime(0), EventTime((left[0].event_time or 0) - 1)):
            with pytest.raises(ReplayConflict, match="--skip-gaps"):
                await client.replay(SOURCE, TARGET, start=start)
        report = await client.replay(SOURCE, TARGET, start=EventTime(left[0].event_time or 0))
        assert report.messages == len(left)
        await client.topics.create("shop/skipped", order="event-time")
        report = await client.replay(SOURCE, "shop/skipped", start=EventTime(0), on_gap="skip")
        assert report.messages == len(left)


async def test_a_running_replay_pins_what_it_reads_and_keeps_its_lease(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        topic = await client.topics.info(SOURCE)
        seen: list[object] = []

        def look(progress: ReplayProgress) -> None:
            keys = [key for key in cluster.store.values if key.startswith("pins/")]
            seen.append(keys)

        await client.replay(SOURCE, TARGET, name="n", on_progress=look)
        assert all(seen)
        assert await read_pins(client._context.store, topic) == []
        key = replay_key("n")
        record = decode_replay(key, cluster.store.values[key].value)
        assert (record.state, record.reached) == ("done", record.reached)
        assert await client._context.store.leases("replays/") == []


async def test_a_target_that_does_not_have_what_was_sent_is_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger_client.jobs.replay.topic_target import TopicTarget

    async def lose(*_: object, **__: object) -> None:
        pass

    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        monkeypatch.setattr(TopicTarget, "_send_all", lose)
        with pytest.raises(ReplayConflict, match="0 messages"):
            await client.replay(SOURCE, TARGET, verify=True)


async def test_it_goes_as_fast_as_the_messages_came_by_a_factor(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(SOURCE, order="event-time")
        async with client.producer(SOURCE) as producer:
            times = [i * 10**10 for i in range(10)]
            await producer.send_many([b"%d" % i for i in range(10)], event_times=times)
        for speed, seconds in ((0.0, 0), (1.0, 90), (10.0, 9), (0.1, 900)):
            name = f"shop/at-{speed}"
            await client.topics.create(name, order="event-time")
            began = trio.current_time()
            await client.replay(SOURCE, name, speed=speed)
            assert seconds <= trio.current_time() - began < seconds + 2


async def test_nothing_is_left_out_when_bookies_know_of_less_than_they_did(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is written, and who knew its last confirmed entry is away after the range is."""

    async def ask_others(source: LedgerSource) -> int:
        return await ask_confirmed(source) - 2

    async def fix_and_lose(
        given: TopicContext, topics: Sequence[TopicRecord], wanted: ReplayRange
    ) -> FixedRange:
        fixed = await fix_range(given, topics, wanted)
        monkeypatch.setattr("ledger_client.ledgers.reader.ask_confirmed", ask_others)
        return fixed

    async with memory_cluster(3) as cluster, cluster.client() as client:
        for name in (SOURCE, TARGET):
            await client.topics.create(name)
        monkeypatch.setattr("ledger_client.jobs.replay.replay.fix_range", fix_and_lose)
        async with client.producer(SOURCE) as producer:
            for i in range(6):
                await producer.send(b"%d" % i)
            report = await replay_into_topic(client._context, [SOURCE], TARGET, ReplayOptions())
        assert report.messages == 6
        monkeypatch.undo()
        assert [m.value for m in await read(client, TARGET)] == [b"%d" % i for i in range(6)]


async def test_interrupted_it_keeps_how_far_it_is(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        with trio.CancelScope() as scope:

            def interrupt(progress: ReplayProgress) -> None:
                if progress.messages > 20:
                    scope.cancel()

            await client.replay(SOURCE, TARGET, on_progress=interrupt)
        assert scope.cancelled_caught
        report = await client.replay(SOURCE, TARGET, verify=True)
        assert 20 < report.resumed < report.messages
        assert report.repeated <= 40


async def test_of_two_who_run_it_at_once_one_is_told_who_does(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        open_log(client._context.ledgers.session, "n", SOURCE, limit_s=5.0),
    ):
        await fill(client, SOURCE)
        await client.topics.create(TARGET)
        with pytest.raises(TopicBusy, match=rf"run by process {os.getpid()} on"):
            await client.replay(SOURCE, TARGET, name="n")


async def test_who_lost_the_lease_stops(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(JobLost, match="n is over: it was taken over"):
            async with open_log(client._context.ledgers.session, "n", SOURCE, limit_s=5.0):
                cluster.store.end_sessions()
                await trio.sleep_forever()


async def test_a_process_that_is_gone_is_waited_for(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await grant(client._context.store, "replays/n", "host/1/2", ttl_s=SESSION_S)
        async with open_log(client._context.ledgers.session, "n", SOURCE, limit_s=5.0) as log:
            assert await log.load() is None
