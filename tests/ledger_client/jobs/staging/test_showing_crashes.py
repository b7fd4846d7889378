"""A job cut off at each of its calls of the store: readers see all of it, or nothing."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from hypothesis import given, settings, strategies as st
from memory_cluster import memory_cluster
from staged_rig import (
    NAME,
    check_ledgers,
    clean,
    count_calls,
    made,
    read_all,
    rows,
    storm_of_jobs,
    write_until_cut,
)
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.jobs.staging.showing import SHOW_S
from metadata.topics import TopicRecord

NEW = [{-1: rows("a", "b")}, {-1: rows("c")}]
OLD = ["p", "q"]
CUTS = [*((at, False) for at in range(1, 62)), *((at, True) for at in range(1, 62, 5))]
"""For the store, a cut after a call is one before the next call: some of these are enough."""


async def old(client: Client, topic: TopicRecord) -> None:
    """Write what is there before, by a producer whose numbers must survive."""
    async with client.producer(NAME, producer_name="n", access="exclusive") as producer:
        await producer.send_many([value.encode() for value in OLD], sequence=0)


@pytest.mark.parametrize(("at", "is_done"), CUTS)
async def test_a_job_may_be_killed_at_any_call_of_the_store(
    autojump_clock: MockClock, at: int, is_done: bool
) -> None:
    """Old or new, nothing is left over, and the lane goes on."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = await made(client)
        await old(client, topic)
        shown = await write_until_cut(cluster, at, *NEW, is_done=is_done)
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
        assert 30 < await count_calls(cluster, *NEW) < 66


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30), losses=st.sampled_from([0.1, 0.3, 0.6]))
def test_jobs_whose_answers_get_lost_are_there_once_or_not_at_all(seed: int, losses: float) -> None:
    """Also when a transaction that nobody waits for any more is made late."""
    storm = partial(storm_of_jobs, rest_s=SHOW_S / 10)
    trio.run(storm, seed, losses, check_ledgers, clock=MockClock(autojump_threshold=0))
