from __future__ import annotations

import pickle

import pytest
import trio
from memory_cluster import MemoryCluster
from topic_rig import begun, lay_lane, ledger_ids, row, stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import BadTopic, JobLost
from ledger_client.jobs.staging.job import (
    JobStage,
    create_staged,
    new_job_id,
    open_job,
    staged_ledgers,
)
from ledger_client.topics.retention.explanation import explain
from ledger_client.topics.retention.job_rows import discard, live_jobs, read_pins
from ledger_client.topics.times import PublishTime
from metadata.jobs import JOBS, PINS, PINS_MAX, STAGED, job_lease, staged_prefix
from metadata.records import LedgerState, ledger_key
from metadata.sessions import SESSION_S
from metadata.store import Lease, Op, Put
from metadata.topics import Retention, TopicRecord


@pytest.fixture
async def topic(client: Client) -> TopicRecord:
    wanted = TopicRecord(name="shop/orders", uid=0, replication=2, ack_quorum=2)
    return await client._context.catalogue.create(wanted)


async def staged(client: Client, stage: JobStage, *payloads: bytes) -> int:
    async with create_staged(client._context.ledgers, stage, partition=-1) as ledger:
        for payload in payloads:
            await ledger.append_many([payload])
    return ledger.id


# --- the lease ---------------------------------------------------------------------------


async def test_a_job_lives_as_long_as_its_block(
    autojump_clock: MockClock, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "replay") as job:
        await trio.sleep(10 * SESSION_S)
        assert await live_jobs(client._context.store) == {(topic.uid, job.id)}
        await client._context.store.transact([job.check])
    assert await live_jobs(client._context.store) == set()


async def test_a_store_that_is_away_for_a_moment_ends_no_job(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "replay") as job:
        cluster.store.available = False
        await trio.sleep(SESSION_S / 2)
        cluster.store.available = True
        await trio.sleep(SESSION_S)
        await client._context.store.transact([job.check])


async def test_a_job_that_is_taken_for_dead_ends_with_one_error(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    with pytest.raises(JobLost, match="run it again") as lost:
        async with open_job(client._context.ledgers, topic, "compaction") as job:
            cluster.store.available = False
            await trio.sleep(2 * SESSION_S)
            cluster.store.available = True
            await trio.sleep_forever()
    assert lost.value.job_id == job.id
    assert lost.value.topic == "shop/orders"


async def test_an_error_of_the_block_leaves_as_it_is(client: Client, topic: TopicRecord) -> None:
    with pytest.raises(KeyError):
        async with open_job(client._context.ledgers, topic, "replay"):
            raise KeyError("k")
    assert await live_jobs(client._context.store) == set()


# --- staging -----------------------------------------------------------------------------


async def test_a_staged_ledger_is_whole_and_no_part_of_the_topic(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        ledger_id = await staged(client, job.stage, b"one", b"two")
        record = cluster.record(ledger_id)
        assert (record.state, record.last_entry) == (LedgerState.CLOSED, 1)
        assert (record.write_quorum, record.ack_quorum) == (2, 2)
        assert record.custom == {"topic": "shop/orders", "partition": "-1", "job": job.id}
        (found,) = await staged_ledgers(client._context.ledgers, topic.uid, job.id)
        assert (found.ledger.ledger_id, found.ledger.partition) == (ledger_id, -1)
        assert (await explain(client._context.catalogue, topic.name)).lanes == []


async def test_workers_get_the_stage_pickled(client: Client, topic: TopicRecord) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        stage = pickle.loads(pickle.dumps(job.stage))  # our own
        assert stage == job.stage
        await staged(client, stage, b"one")


async def test_what_is_not_shown_is_given_up_at_the_end(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        for _ in range(3):
            await staged(client, job.stage, b"x")
    assert ledger_ids(cluster.store) == []
    assert stored(cluster.store, STAGED) == []


async def test_what_a_worker_stages_while_the_job_ends_is_given_up_too(
    cluster: MemoryCluster,
    client: Client,
    topic: TopicRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        release = client._context.store.release

        async def stage_and_release(lease: Lease) -> None:
            await staged(client, job.stage, b"the last moment")
            await release(lease)
            with pytest.raises(JobLost):
                await staged(client, job.stage, b"too late")

        monkeypatch.setattr(client._context.store, "release", stage_and_release)
    assert ledger_ids(cluster.store) == []
    assert stored(cluster.store, STAGED) == []


async def test_what_is_shown_stays(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        ledger_id = await staged(client, job.stage, b"x")
        await staged(client, job.stage, b"y")
        first = (await staged_ledgers(client._context.ledgers, topic.uid, job.id))[0]
        await client._context.store.transact([job.check, first.shown, Put("result", b"")])
    assert ledger_ids(cluster.store) == [ledger_id]
    assert stored(cluster.store, STAGED) == []


async def test_what_was_given_up_cannot_be_shown(client: Client, topic: TopicRecord) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        await staged(client, job.stage, b"x")
        (found,) = await staged_ledgers(client._context.ledgers, topic.uid, job.id)
        await discard(client._context.store, staged_prefix(topic.uid, job.id))
        ops: list[Op] = [found.shown, Put("result", b"")]
        assert await client._context.ledgers.catalogue.transact(ops) is None
    assert await client._context.store.get("result") is None


async def test_a_worker_of_a_lost_job_stages_nothing(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        stage = job.stage
    with pytest.raises(JobLost):
        await staged(client, stage, b"x")
    assert ledger_ids(cluster.store) == []


async def test_a_stage_without_an_epoch_asks_for_no_lease(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    stage = JobStage(topic=topic, job_id=new_job_id("write"))
    ledger_id = await staged(client, stage, b"x")
    assert ledger_ids(cluster.store) == [ledger_id]


async def test_a_worker_that_fails_leaves_a_ledger_to_be_given_up(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        with pytest.raises(RuntimeError, match="mine"):
            async with create_staged(client._context.ledgers, job.stage, partition=-1) as ledger:
                raise RuntimeError("mine")
        assert cluster.record(ledger.id).state == LedgerState.CLOSED
    assert ledger_ids(cluster.store) == []


async def test_any_number_of_ledgers_is_given_up(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    for number in range(450):
        ledger_id = 1000 + number
        key = f"{staged_prefix(topic.uid, 'many')}{ledger_id:020d}"
        cluster.store.change(key, b"not even JSON")
        cluster.store.change(ledger_key(ledger_id), b"{}")
    assert await discard(cluster.store, staged_prefix(topic.uid, "many")) == 450
    assert ledger_ids(cluster.store) == []


# --- pins --------------------------------------------------------------------------------


async def test_what_a_job_needs_stays_until_it_ends(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    """PS-35: neither retention nor a purge removes what a running job reads."""
    await client.topics.alter(topic.name, retention=Retention(age_s=0))
    await lay_lane(cluster.store, topic, [row(0), row(1), row(2), begun(3)])
    async with open_job(client._context.ledgers, topic, "replay", pins=[(-1, 0, 1)]) as job:
        purged = await client.topics.purge(topic.name)
        assert [fate.ledger.ledger_id for fate in purged.removed] == [100]
        (kept,) = purged.kept
        assert (kept.reason, kept.why) == ("pinned", f"needed by replay job {job.id}")
        told = (await client.topics.explain(topic.name)).lanes[0].ledgers
        assert [fate.reason for fate in told] == ["pinned", "pinned", "open"]
    assert stored(cluster.store, PINS) == []
    purged = await client.topics.purge(topic.name, before=PublishTime(1 << 50))
    assert [fate.ledger.ledger_id for fate in purged.removed] == [101, 102]


async def test_pins_count_only_while_the_lease_lives(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "replay", pins=[(-1, 0, 1)]) as job:
        assert len(await read_pins(client._context.store, topic)) == 1
        (lease,) = await client._context.store.leases(JOBS)
        await client._context.store.release(lease)
        assert stored(cluster.store, PINS)
        assert await read_pins(client._context.store, topic) == []
        with pytest.raises(JobLost):
            await job.pin([(-1, 0, 0)])


async def test_pins_are_replaced_as_a_whole(client: Client, topic: TopicRecord) -> None:
    async with open_job(client._context.ledgers, topic, "compaction", pins=[(-1, 0, 1)]) as job:
        await job.pin([(-1, 1, 7), (-1, 2, 8)])
        pins = await read_pins(client._context.store, topic)
        assert [(pin.lane, pin.number) for pin in pins] == [(1, 7), (2, 8)]


async def test_pins_of_another_topic_keep_nothing(client: Client, topic: TopicRecord) -> None:
    other = await client._context.catalogue.create(TopicRecord(name="shop/returns", uid=0))
    async with open_job(client._context.ledgers, other, "replay", pins=[(-1, 0, 0)]):
        assert await read_pins(client._context.store, topic) == []


async def test_more_pins_than_fit_are_refused(client: Client, topic: TopicRecord) -> None:
    with pytest.raises(BadTopic, match="at most"):
        async with open_job(
            client._context.ledgers, topic, "replay", pins=[(0, 0, 0)] * (PINS_MAX + 1)
        ):
            raise AssertionError
    assert await client._context.store.leases(job_lease(topic.uid, "")) == []


# --- the topic is deleted ------------------------------------------------------------------


async def test_a_topic_that_is_deleted_takes_what_jobs_staged_with_it(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction", pins=[(-1, 0, 0)]) as job:
        await staged(client, job.stage, b"x")
        await client.topics.delete(topic.name)
        assert ledger_ids(cluster.store) == []
        assert stored(cluster.store, STAGED) + stored(cluster.store, PINS) == []
