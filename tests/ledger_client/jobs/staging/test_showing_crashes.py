"""A job cut off at each of its calls of the store: readers see all of it, or nothing."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
import trio
from cut_line import Cut
from hypothesis import given, settings, strategies as st
from lane_process import HASTY, Process, shuffle_by
from memory_cluster import MemoryCluster, memory_cluster
from staged_rig import NAME, made, read_all, rows, write_job
from topic_rig import ledger_ids, stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.errors import LedgerError
from ledger_client.jobs.staging.showing import SHOW_S
from ledger_client.jobs.staging.writing_job import WRITE_S, SinkBatch
from metadata.jobs import STAGED
from metadata.leadership import Term
from metadata.topics import LANE_LEDGERS, TopicRecord, decode_lane_ledger

NEW = [{-1: rows("a", "b")}, {-1: rows("c")}]
OLD = ["p", "q"]


async def old(client: Client, topic: TopicRecord) -> None:
    """Write what is there before, by a producer whose numbers must survive."""
    async with client.producer(NAME, producer_name="n", access="exclusive") as producer:
        await producer.send_many([value.encode() for value in OLD], sequence=0)


async def clean(cluster: MemoryCluster, client: Client) -> None:
    """Let the job's lease run out, and the leader do its rounds."""
    await trio.sleep(WRITE_S + 1)
    term = Term(await cluster.store.grant("coordinator", "me", ttl_s=3600))
    keeper = Housekeeper(client._context, HousekeepingOptions())
    for _ in range(2):
        await keeper.look_after_all(term)


def check_ledgers(cluster: MemoryCluster) -> None:
    """Every ledger is one of a lane, and nothing is staged; versions have no hole."""
    items = [item for item in cluster.store.values.items() if item[0].startswith(LANE_LEDGERS)]
    lanes: dict[str, list[tuple[int, int]]] = {}
    for key, value in sorted(items):
        row = decode_lane_ledger(key, value.value)
        lanes.setdefault(key.rpartition("/")[0], []).append((row.base_version, row.entries))
    assert stored(cluster.store, STAGED) == []
    assert len(ledger_ids(cluster.store)) == len(items)
    for spans in lanes.values():
        for (base, entries), (following, _) in pairwise(spans):
            assert following == base + entries


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("at", [*range(1, 62)])
async def test_a_job_may_be_killed_at_any_call_of_the_store(
    autojump_clock: MockClock, at: int, is_done: bool
) -> None:
    """Old or new, nothing is left over, and the lane goes on."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = await made(client)
        await old(client, topic)
        process = Process(cluster)
        process.line = Cut(cluster, at, is_done=is_done)
        shown = False
        async with process.client(HASTY) as doomed:
            with suppress(LedgerError):
                shown = await write_job(doomed._context.ledgers, NAME, *NEW)
        seen = await read_all(client, NAME)
        assert seen in ([*OLD], [*OLD, "a", "b", "c"])
        if shown:
            assert len(seen) == 5
        await clean(cluster, client)
        assert await read_all(client, NAME) == seen
        async with client.producer(NAME, producer_name="n", access="exclusive") as producer:
            await producer.send_many([b"p", b"q", b"r"], sequence=0)
        assert await read_all(client, NAME) == [*seen, "r"]
        check_ledgers(cluster)


async def test_all_calls_of_a_job_are_tried() -> None:
    """The range of the test above reaches beyond the last one."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client, await made(client))
        process = Process(cluster)
        process.line = line = Cut(cluster, 0, is_done=False)
        async with process.client(HASTY) as writing:
            await write_job(writing._context.ledgers, NAME, *NEW)
        assert 30 < line.calls < 61


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30), losses=st.sampled_from([0.1, 0.3, 0.6]))
def test_jobs_whose_answers_get_lost_are_there_once_or_not_at_all(seed: int, losses: float) -> None:
    """Also when a transaction that nobody waits for any more is made late."""
    trio.run(_storm, seed, losses, clock=MockClock(autojump_threshold=0))


async def _storm(seed: int, losses: float) -> None:
    shuffle_by(seed)
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        await made(client, partitions=2)
        shown: dict[str, bool | None] = {}
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(_job, cluster, name, losses, shown)
        await clean(cluster, client)
        seen = await read_all(client, NAME)
        check_ledgers(cluster)
    for name, is_shown in shown.items():
        own = sorted(value for value in seen if value[0] == name)
        whole = [f"{name}{part}{p}" for part in range(2) for p in range(2)]
        assert own == whole if is_shown else own in (whole, [])


async def _job(
    cluster: MemoryCluster, name: str, losses: float, shown: dict[str, bool | None]
) -> None:
    process = Process(cluster, losses=losses)
    parts = [{p: rows(f"{name}{part}{p}") for p in range(2)} for part in range(2)]
    async with process.client(HASTY) as client:
        for _ in range(3):
            try:
                await write_job(client._context.ledgers, NAME, *parts, sink=SinkBatch(name, 0))
            except LedgerError:
                shown[name] = None
                await trio.sleep(SHOW_S / 10)
            else:
                shown[name] = True  # now, or by an attempt before whose outcome was unknown
                return
