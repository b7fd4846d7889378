from __future__ import annotations

import pickle
import random
from contextlib import suppress
from itertools import pairwise

import pytest
import trio
from lane_process import Process
from lane_rig import batch
from memory_cluster import MemoryCluster
from staged_rig import (
    NAME,
    Row,
    ids_of,
    ledgers_count,
    made,
    read_all,
    rows,
    versions,
    write_job,
    write_part,
)
from topic_rig import stored
from trio.testing import MockClock

from ledger_client import Client, RollPolicy
from ledger_client.errors import (
    BadTopic,
    EventTimeBack,
    JobLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchTopic,
    NotEnoughBookies,
    PayloadTooLarge,
    ProducerBusy,
    SparkError,
    TopicError,
)
from ledger_client.jobs.staging import showing
from ledger_client.jobs.staging.job import SealedLedger
from ledger_client.jobs.staging.showing import SHOW_S, Showing
from ledger_client.jobs.staging.staged_writer import ATTEMPTS, PARTS_MAX, share_of
from ledger_client.jobs.staging.writing_job import abort_write, commit_write, plan_write
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.retention.job_rows import live_jobs
from metadata.jobs import IDS, STAGED
from metadata.records import LEDGER_COUNTER
from metadata.topics import LANES, WRITERS, topic_prefix

# --- visible at once, or not at all ----------------------------------------------------------


async def test_a_job_becomes_visible_as_a_whole(cluster: MemoryCluster, client: Client) -> None:
    await made(client, partitions=2)
    plan = await plan_write(client._context.ledgers, NAME)
    first = await write_part(client._context.ledgers, plan, 0, {0: rows("a", "b"), 1: rows("c")})
    second = await write_part(client._context.ledgers, plan, 1, {1: rows("d")})
    assert await read_all(client, NAME) == []
    assert await commit_write(client._context.ledgers, plan, [*first, *second])
    assert sorted(await read_all(client, NAME)) == ["a", "b", "c", "d"]
    assert stored(cluster.store, STAGED) == []
    assert await client._context.store.leases(WRITERS) == []
    assert await live_jobs(client._context.store) == set()


async def test_parts_come_into_a_lane_in_their_order_whoever_was_faster(client: Client) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    late = await write_part(client._context.ledgers, plan, 1, {-1: rows("c", "d")})
    early = await write_part(client._context.ledgers, plan, 0, {-1: rows("a", "b")})
    await commit_write(client._context.ledgers, plan, [*early, *late])
    assert await read_all(client, NAME) == ["a", "b", "c", "d"]
    found = await ids_of(client, NAME)
    assert found == sorted(found)


async def test_what_another_attempt_staged_is_not_shown(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    await write_part(client._context.ledgers, plan, 0, {-1: rows("a")}, attempt=1)
    await write_part(
        client._context.ledgers, plan, 0, {-1: rows("a")}, attempt=4
    )  # where the first one began
    await commit_write(client._context.ledgers, plan, ledgers)
    assert await read_all(client, NAME) == ["a"]
    assert ledgers_count(cluster) == 1


async def test_a_job_that_is_given_up_leaves_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    await abort_write(client._context.ledgers, plan)
    assert ledgers_count(cluster) == 0
    assert stored(cluster.store, LANES) == []
    assert await live_jobs(client._context.store) == set()


async def test_a_part_that_does_not_finish_leaves_nothing_to_show(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    with pytest.raises(PayloadTooLarge):
        await write_part(client._context.ledgers, plan, 0, {-1: [Row(b"a"), Row(bytes(6 << 20))]})
    assert await commit_write(client._context.ledgers, plan, [])
    assert ledgers_count(cluster) == 0


async def test_a_job_without_a_row_changes_nothing(cluster: MemoryCluster, client: Client) -> None:
    await made(client)
    await write_job(client._context.ledgers, NAME, {}, {})
    assert stored(cluster.store, LANES) == []
    assert await read_all(client, NAME) == []


async def test_a_plan_goes_to_workers_pickled(client: Client) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(
        client._context.ledgers, pickle.loads(pickle.dumps(plan)), 0, {-1: rows("a")}
    )
    again = pickle.loads(pickle.dumps(ledgers))  # our own
    await commit_write(client._context.ledgers, pickle.loads(pickle.dumps(plan)), again)
    assert await read_all(client, NAME) == ["a"]


async def test_who_follows_sees_the_job_when_it_is_shown(client: Client) -> None:
    await made(client)
    await write_job(client._context.ledgers, NAME, {-1: rows("a")})
    seen: list[str] = []
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            async with client.reader(NAME, follow=True) as reader:
                async for message in reader:
                    assert message.value is not None
                    seen.append(message.value.decode())
                    if len(seen) == 4:
                        return

        nursery.start_soon(follow)
        await write_job(client._context.ledgers, NAME, {-1: rows("b", "c")})
        async with client.producer(NAME) as producer:
            await producer.send(b"d")
    assert seen == ["a", "b", "c", "d"]


# --- lanes -------------------------------------------------------------------------------------


async def test_jobs_one_after_the_other_and_producers_share_one_lane(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await made(client)
    await write_job(client._context.ledgers, NAME, {-1: rows("a")}, {-1: rows("b")})
    async with client.producer(NAME) as producer:
        await producer.send(b"c")
    await write_job(client._context.ledgers, NAME, {-1: rows("d")})
    async with client.producer(NAME) as producer:
        await producer.send(b"e")
    assert await read_all(client, NAME) == ["a", "b", "c", "d", "e"]
    assert len(stored(cluster.store, LANES)) == 1
    spans = versions(cluster, topic)
    assert [first for first, _ in spans[1:]] == [last + 1 for _, last in spans[:-1]]
    found = await ids_of(client, NAME)
    assert found == sorted(found)


async def test_a_lane_that_is_written_is_left_alone(client: Client) -> None:
    await made(client)
    async with client.producer(NAME) as producer:
        await producer.send(b"a")
        await write_job(client._context.ledgers, NAME, {-1: rows("x", "y")})
        await producer.send(b"b")
    assert sorted(await read_all(client, NAME)) == ["a", "b", "x", "y"]
    async with client.reader(NAME, lanes=[1]) as reader:
        assert [message.value async for message in reader] == [b"x", b"y"]


async def test_ids_rise_along_a_lane_that_went_on_while_the_job_ran(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("x")})
    async with client.producer(NAME) as producer:
        await producer.send(b"a")
    await commit_write(client._context.ledgers, plan, ledgers)
    for lane in (0, 1):
        found = await ids_of(client, NAME, lane=lane)
        assert found == sorted(found)
        assert len(found) == 1
    await write_job(client._context.ledgers, NAME, {-1: rows("y")})
    assert len(stored(cluster.store, LANES)) == 2  # the lowest that is free again


async def test_the_open_ledger_of_a_writer_that_was_killed_is_closed_before(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    topic = await made(client)
    process = Process(cluster)
    with suppress(LedgerError):
        async with (
            process.client() as doomed,
            open_lane(doomed._context.ledgers, topic, -1) as lane,
        ):
            await lane.append([batch("left")])
            process.kill()
    await trio.sleep(20)
    await write_job(client._context.ledgers, NAME, {-1: rows("x")})
    assert await read_all(client, NAME) == ["left", "x"]
    spans = versions(cluster, topic)
    assert spans[1][0] == spans[0][1] + 1


async def test_numbers_of_producers_survive_a_job(client: Client) -> None:
    """PS-39: what a producer with a name sends again after a job is kept once."""
    await made(client)
    async with client.producer(NAME, producer_name="p", access="exclusive") as producer:
        await producer.send_many([b"a", b"b"], sequence=0)
    await write_job(client._context.ledgers, NAME, {-1: rows("x")})
    await write_job(client._context.ledgers, NAME, {-1: rows("y")})
    async with client.producer(NAME, producer_name="p", access="exclusive") as producer:
        await producer.send_many([b"a", b"b", b"c"], sequence=0)
    assert await read_all(client, NAME) == ["a", "b", "x", "y", "c"]


async def test_a_lane_of_nameless_producers_gets_no_ledger_beside_the_job_s(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    async with client.producer(NAME) as producer:
        await producer.send(b"a")
    before = ledgers_count(cluster)
    await write_job(client._context.ledgers, NAME, {-1: rows("x")})
    assert ledgers_count(cluster) == before + 1


async def test_a_partition_that_is_another_s_is_told_before_anything_is_written(
    client: Client,
) -> None:
    await made(client)
    async with client.producer(NAME, access="exclusive"):
        with pytest.raises(ProducerBusy):
            await plan_write(client._context.ledgers, NAME)


async def test_showing_waits_for_a_producer_that_has_all_of_the_partition(
    autojump_clock: MockClock, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("x")})
    async with (
        trio.open_nursery() as nursery,
        client.producer(NAME, access="exclusive") as producer,
    ):
        nursery.start_soon(commit_write, client._context.ledgers, plan, ledgers)
        await trio.sleep(20)
        await producer.send(b"a")
    assert sorted(await read_all(client, NAME)) == ["a", "x"]


async def test_showing_ends_although_somebody_always_comes_in_between(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    cluster: MemoryCluster,
    client: Client,
) -> None:
    async def nobody(_showing: Showing) -> None:
        """Somebody came in between."""

    await made(client)
    monkeypatch.setattr(Showing, "_attempt", nobody)
    with trio.fail_after(2 * SHOW_S), pytest.raises(MetadataUnavailable, match="kept changing"):
        await write_job(client._context.ledgers, NAME, {-1: rows("x")})
    assert ledgers_count(cluster) == 0


async def test_two_jobs_shown_at_once_are_both_there(client: Client) -> None:
    await made(client, partitions=3)
    async with trio.open_nursery() as nursery:
        for job in "abc":
            parts = {partition: rows(f"{job}{partition}") for partition in range(3)}
            nursery.start_soon(write_job, client._context.ledgers, NAME, parts)
    expected = sorted(f"{job}{partition}" for job in "abc" for partition in range(3))
    assert sorted(await read_all(client, NAME)) == expected


# --- order by event time ---------------------------------------------------------------------


async def test_times_go_on_in_a_lane_from_job_to_job_and_producer(client: Client) -> None:
    await made(client, order="event-time")
    await write_job(
        client._context.ledgers,
        NAME,
        {-1: rows("a", "b", times=[1, 5])},
        {-1: rows("c", "d", times=[5, 7])},
    )
    with pytest.raises(EventTimeBack) as back:
        await write_job(client._context.ledgers, NAME, {-1: rows("x", times=[6])})
    assert (back.value.partition, back.value.lane) == (-1, 0)
    assert (back.value.event_time, back.value.last_event_time) == (6, 7)
    async with client.producer(NAME) as producer:
        with pytest.raises(EventTimeBack):
            await producer.send(b"x", event_time=6)
        await producer.send(b"e", event_time=7)
    async with client.reader(NAME, order="event-time") as reader:
        found = [message.value async for message in reader]
    assert found == [b"a", b"b", b"c", b"d", b"e"]


async def test_the_last_time_of_a_lane_is_known_behind_a_job_of_older_ledgers(
    cluster: MemoryCluster, client: Client
) -> None:
    """The next writer reads the last ledger alone, and a job's tells of itself alone."""
    topic = await made(client)
    await write_job(client._context.ledgers, NAME, {-1: rows("a", times=[100])})
    await write_job(client._context.ledgers, NAME, {-1: rows("b", times=[50])})
    async with open_lane(client._context.ledgers, topic, -1) as writer:
        assert writer.last_event_time == 100


@pytest.mark.parametrize(
    "parts",
    [
        [[3, 2]],
        [[1, 9], [2, 10]],
        [[5, 6], [1, 2]],
    ],
    ids=["within a part", "parts overlap", "parts in another order"],
)
async def test_rows_out_of_order_are_refused_with_what_to_do(
    cluster: MemoryCluster, client: Client, parts: list[list[int]]
) -> None:
    await made(client, order="event-time")
    given = [{-1: rows(*map(str, times), times=times)} for times in parts]
    told = r'event time \d+ ns comes after .*orderBy\("event_time"\)'
    with pytest.raises(SparkError, match=told):
        await write_job(client._context.ledgers, NAME, *given)
    assert await read_all(client, NAME) == []


async def test_a_row_without_a_time_is_refused_where_time_orders(client: Client) -> None:
    await made(client, order="event-time")
    for given in (rows("a"), [Row(b"a", 1), Row(b"b")]):
        with pytest.raises(BadTopic, match="every message needs one"):
            await write_job(client._context.ledgers, NAME, {-1: given})


async def test_a_time_shared_by_two_ledgers_is_found_in_both(client: Client) -> None:
    """A boundary within equal times is marked, as where a lane rolls by itself."""
    topic = await made(client, order="event-time")
    await write_job(
        client._context.ledgers,
        NAME,
        {-1: rows("a", "b", times=[1, 5])},
        {-1: rows("c", times=[5])},
    )
    explained = await client.topics.explain(topic.name)
    assert [fate.ledger.shares_first for fate in explained.lanes[0].ledgers] == [False, True]


# --- bounds ------------------------------------------------------------------------------------


async def test_ledgers_end_where_the_topic_says(client: Client) -> None:
    await made(client, roll=RollPolicy(entries=2))
    plan = await plan_write(client._context.ledgers, NAME)
    values = [Row(bytes([65 + n]) * 200_000) for n in range(5)]
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: values})
    assert [ledger.figures.messages for ledger in ledgers] == [2, 2, 1]
    await commit_write(client._context.ledgers, plan, ledgers)
    assert [value[0] for value in await read_all(client, NAME)] == list("ABCDE")


async def test_a_part_of_any_size_is_some_ledgers_that_grow(client: Client) -> None:
    """Its ids are bounded: behind the first ones, each ledger takes twice as much."""
    await made(client, roll=RollPolicy(entries=1))
    plan = await plan_write(client._context.ledgers, NAME)
    values = [Row(b"%04d" % n + bytes(250_000)) for n in range(60)]
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: values})
    counts = [ledger.figures.messages for ledger in ledgers]
    assert counts == [1] * 17 + [2, 4, 8, 16, 13]
    await commit_write(client._context.ledgers, plan, ledgers)
    read = await read_all(client, NAME)
    assert [value[:4] for value in read] == [f"{n:04d}" for n in range(60)]


async def test_a_job_takes_few_ledger_ids(cluster: MemoryCluster, client: Client) -> None:
    """Ids that are taken and not used look like those of ledgers that were deleted."""
    topic = await made(client, partitions=4)
    before = await cluster.store.next_id(LEDGER_COUNTER)
    plan = await plan_write(client._context.ledgers, NAME)
    await write_part(client._context.ledgers, plan, 0, {})
    assert await cluster.store.next_id(LEDGER_COUNTER) == before + 1
    ledgers = await write_part(client._context.ledgers, plan, 1, {0: rows("a"), 3: rows("b")})
    assert await commit_write(client._context.ledgers, plan, ledgers)
    after = await cluster.store.next_id(LEDGER_COUNTER)
    assert after - before - 2 <= 2 * share_of(plan.stage) < 300
    assert stored(cluster.store, topic_prefix(IDS, topic.uid)) == []


@pytest.mark.parametrize("order", [(3, 0, 12, 1), (0, 1, 2, 3), (12, 11, 0, 40), (999, 0, 500)])
async def test_ids_rise_from_part_to_part_whichever_begins_first(
    autojump_clock: MockClock,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, ...],
) -> None:
    """Also where others reserve ids between the steps of one of them."""
    real, chance = client._context.store.next_id, random.Random(repr(order))

    async def slow(counter: str, count: int = 1) -> int:
        first = await real(counter, count)
        await trio.sleep(chance.random())
        return first

    monkeypatch.setattr(client._context.store, "next_id", slow)
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    found: dict[int, list[SealedLedger]] = {}

    async def write(index: int, attempt: int) -> None:
        ledgers = await write_part(
            client._context.ledgers, plan, index, {-1: rows(f"{index}")}, attempt=attempt
        )
        found.setdefault(index, []).extend(ledgers)

    async with trio.open_nursery() as nursery:
        for index in order:
            for attempt in range(ATTEMPTS + 1):
                nursery.start_soon(write, index, attempt)
    ids = [sorted(ledger.ledger_id for ledger in found[index]) for index in sorted(order)]
    assert all(len(set(each)) == ATTEMPTS + 1 for each in ids)
    assert [last[-1] < first[0] for last, first in pairwise(ids)] == [True] * (len(order) - 1)
    assert await commit_write(
        client._context.ledgers, plan, [found[index][0] for index in sorted(order)]
    )
    assert await read_all(client, NAME) == [f"{index}" for index in sorted(order)]


async def test_more_ledgers_than_can_be_shown_at_once_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "SHOWN_MAX", 599)
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    with pytest.raises(TopicError, match="coalesce"):
        await commit_write(client._context.ledgers, plan, ledgers * 600)
    with pytest.raises(TopicError, match="tasks"):
        await write_part(client._context.ledgers, plan, PARTS_MAX, {-1: rows("a")})


async def test_hundreds_of_ledgers_are_shown_at_once(
    cluster: MemoryCluster, client: Client
) -> None:
    await made(client, partitions=10)
    parts = [{p: rows(f"{index}.{p}") for p in range(10)} for index in range(40)]
    await write_job(client._context.ledgers, NAME, *parts)
    assert len(await read_all(client, NAME)) == 400
    assert len(stored(cluster.store, LANES)) == 10


async def test_too_few_bookies_are_told(cluster: MemoryCluster, client: Client) -> None:
    await made(client, replication=3)
    plan = await plan_write(client._context.ledgers, NAME)
    for name in ("b1", "b2"):
        cluster.kill(name)
    with pytest.raises(NotEnoughBookies):
        await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})


# --- the topic gone, or altered ----------------------------------------------------------------


async def test_a_topic_that_was_deleted_or_made_anew_gets_nothing(client: Client) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    await client.topics.delete(NAME)
    with pytest.raises((NoSuchTopic, JobLost)):
        await commit_write(client._context.ledgers, plan, ledgers)
    await made(client)
    late = await write_part(client._context.ledgers, plan, 1, {-1: rows("a")})
    with pytest.raises(NoSuchTopic):
        await commit_write(client._context.ledgers, plan, late)
    assert await read_all(client, NAME) == []


async def test_a_topic_altered_meanwhile_is_no_reason_to_fail(client: Client) -> None:
    await made(client, partitions=1)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {0: rows("a")})
    await client.topics.alter(NAME, partitions=2)
    await commit_write(client._context.ledgers, plan, ledgers)
    assert await read_all(client, NAME) == ["a"]
