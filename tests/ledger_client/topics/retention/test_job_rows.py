from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import begun, lay_lane, ledger_ids, row, stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.jobs.staging.job import JobStage, create_staged, open_job, owner_row
from metadata.errors import LeaseLost
from metadata.jobs import (
    IDS,
    PINS,
    STAGED,
    IdRun,
    JobIds,
    JobPins,
    PinnedLane,
    encode_job_row,
    ids_key,
    job_lease,
    pins_key,
    staged_key,
)
from metadata.leadership import Term
from metadata.sessions import SESSION_S
from metadata.topics import Retention, TopicRecord


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


@pytest.fixture
async def topic(client: Client) -> TopicRecord:
    wanted = TopicRecord(name="s/t", uid=0, replication=1, retention=Retention(age_s=0))
    return await client._context.catalogue.create(wanted)


@pytest.fixture
async def term(cluster: MemoryCluster) -> Term:
    return Term(await grant(cluster.store, "coordinator", "me", ttl_s=3600))


@pytest.fixture
def keeper(client: Client) -> Housekeeper:
    return Housekeeper(client._context, HousekeepingOptions())


async def left_by(client: Client, topic: TopicRecord, job_id: str) -> int:
    """Stage a ledger, and pin one, for a job without a lease."""
    stage = JobStage(topic=topic, job_id=job_id)
    async with create_staged(client._context.ledgers, stage, partition=-1) as ledger:
        await ledger.append_many([b"x"])
    pins = JobPins(kind="write", lanes=[PinnedLane(-1, 0, 0)])
    await client._context.store.put(pins_key(topic.uid, job_id), encode_job_row(pins))
    ids = JobIds(runs=[IdRun(0, 1, 8, ledger.id + 1)])
    await client._context.store.put(ids_key(topic.uid, job_id), encode_job_row(ids))
    return ledger.id


async def test_what_a_dead_job_left_goes_in_the_second_round(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, keeper: Housekeeper, term: Term
) -> None:
    ledger_id = await left_by(client, topic, "dead")
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [ledger_id]  # it may be about to take its lease again
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == []
    rows = [row for kind in (STAGED, PINS, IDS) for row in stored(cluster.store, kind)]
    assert rows == []


async def test_what_a_living_job_staged_stays(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, keeper: Housekeeper, term: Term
) -> None:
    async with open_job(client._context.ledgers, topic, "compaction") as job:
        async with create_staged(client._context.ledgers, job.stage, partition=-1) as ledger:
            await ledger.append_many([b"x"])
        for _ in range(3):
            await keeper.look_after_all(term)
        assert ledger_ids(cluster.store) == [ledger.id]


async def test_a_job_that_takes_its_lease_again_in_time_keeps_all(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, keeper: Housekeeper, term: Term
) -> None:
    ledger_id = await left_by(client, topic, "back")
    await keeper.look_after_all(term)
    name = job_lease(topic.uid, "back")
    lease = await grant(cluster.store, name, "back", ttl_s=60, value=owner_row(topic, "write"))
    await keeper.look_after_all(term)
    await client._context.store.release(lease)
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [ledger_id]
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == []


async def test_the_staged_ledgers_of_a_topic_that_is_gone_go_too(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, keeper: Housekeeper, term: Term
) -> None:
    await client.topics.delete(topic.name)
    await left_by(client, topic, "late")
    for _ in range(2):
        await keeper.look_after_all(term)
    assert stored(cluster.store, STAGED) == []


async def test_a_leader_whose_term_is_over_gives_nothing_up(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, keeper: Housekeeper, term: Term
) -> None:
    ledger_id = await left_by(client, topic, "dead")
    await keeper.look_after_all(term)
    await cluster.store.release(term.lease)
    with pytest.raises(LeaseLost):
        await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [ledger_id]


async def test_a_key_that_is_no_job_s_is_told_once_and_left(
    cluster: MemoryCluster,
    client: Client,
    topic: TopicRecord,
    keeper: Housekeeper,
    term: Term,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.store.change("staged/x", b"")
    await left_by(client, topic, "dead")
    for _ in range(3):
        await keeper.look_after_all(term)
    assert stored(cluster.store, STAGED) == ["staged/x"]
    assert len([text for text in caplog.messages if "staged/x" in text]) == 1


async def test_retention_waits_for_a_job_that_was_killed_no_longer_than_its_lease(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    topic: TopicRecord,
    keeper: Housekeeper,
    term: Term,
) -> None:
    """PS-35: pins of running jobs win, those of dead ones do not."""
    await lay_lane(cluster.store, topic, [row(0), begun(1)], written=True)
    name = job_lease(topic.uid, "killed")
    row_of_job = owner_row(topic, "replay")
    await grant(cluster.store, name, "killed", ttl_s=SESSION_S, value=row_of_job)
    pins = JobPins(kind="replay", lanes=[PinnedLane(-1, 0, 0)])
    await client._context.store.put(pins_key(topic.uid, "killed"), encode_job_row(pins))
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [100, 101]
    await trio.sleep(SESSION_S + 1)
    await keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [101]
    assert staged_key(topic.uid, "killed", 1) not in stored(cluster.store, STAGED)
