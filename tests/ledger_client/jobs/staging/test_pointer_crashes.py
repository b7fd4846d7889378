"""A large result, shown by a pointer: cut off at each step, and read between each two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from lane_process import Line
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import run_seed
from staged_rig import (
    NAME,
    check_ledgers,
    clean,
    count_calls,
    made,
    read_all,
    rows,
    storm_of_jobs,
    write_by,
    write_until_cut,
)
from topic_rig import stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import JobLost
from ledger_client.jobs.staging import showing
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.retention.job_rows import discard
from ledger_client.topics.times import PublishTime
from metadata import pointers
from metadata.errors import MetadataUnavailable
from metadata.jobs import POINTERS, STAGED
from metadata.topics import LANE_LEDGERS, LANES, TopicRecord, decode_lane, decode_lane_ledger

NEW = [{0: rows("a", "b"), 1: rows("c")}, {1: rows("d"), 0: rows("e")}]
ALL = ["a", "b", "c", "d", "e"]
OLD = ["p", "q"]
CALLS = 140
FIRST = 1 + run_seed() % 3
CUTS = [*((at, False) for at in range(FIRST, CALLS, 3)), (FIRST, True)]
"""A third of the calls; the search comes to the others. For the store, a cut after a call is one
before the next call."""


@pytest.fixture(autouse=True)
def by_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large: a pointer shows it, and a step has one ledger."""
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "DIRECT_OPS_MAX", 0)
    monkeypatch.setattr(showing, "STEP_COUNT", 1)
    monkeypatch.setattr(pointers, "STEP_COUNT", 1)


async def old(client: Client) -> TopicRecord:
    """Make the topic, with what a producer wrote, who left a ledger open behind it."""
    topic = await made(client, partitions=2)
    async with client.producer(NAME, producer_name="n", access="exclusive") as producer:
        for partition, value in enumerate(OLD):
            await producer.send(value.encode(), partition=partition, sequence=0)
    return topic


def check_settled(cluster: MemoryCluster) -> None:
    """Nothing names a pointer any more, and there is none."""
    assert stored(cluster.store, POINTERS) == []
    for key, found in cluster.store.values.items():
        if key.startswith(LANES):
            assert decode_lane(key, found.value).pending is None
        if key.startswith(LANE_LEDGERS):
            row = decode_lane_ledger(key, found.value)
            assert (row.pointer, row.state) == ("", "closed")


def check_all(cluster: MemoryCluster) -> None:
    check_ledgers(cluster)
    check_settled(cluster)


async def all_values(client: Client) -> list[str]:
    return sorted(await read_all(client, NAME))


@pytest.mark.parametrize(("at", "is_done"), CUTS)
async def test_a_large_result_may_be_cut_off_at_any_call_of_the_store(
    autojump_clock: MockClock, at: int, is_done: bool
) -> None:
    """All of it is read or nothing; a producer that comes next leaves it so, and the leader."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)
        shown = await write_until_cut(cluster, at, *NEW, is_done=is_done)
        seen = await all_values(client)
        assert seen in (OLD, [*ALL, *OLD])
        if shown:
            assert len(seen) == 7
        if at % 2:  # a lane is taken before the leader is there; it is the same without
            await trio.sleep(60)
            async with client.producer(NAME, access="exclusive") as producer:
                await producer.send(b"s", partition=0)
            seen = sorted([*seen, "s"])
            assert await all_values(client) == seen
        await clean(cluster, client)
        assert await all_values(client) == seen
        async with client.producer(NAME, producer_name="n", access="exclusive") as producer:
            await producer.send(b"p", partition=0, sequence=0)  # it was there before
            await producer.send(b"r", partition=0, sequence=1)
        assert await all_values(client) == sorted([*seen, "r"])
        check_all(cluster)


async def test_all_calls_of_a_large_result_are_tried() -> None:
    """The range of the test above reaches beyond the last one."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)
        assert 0.8 * CALLS < await count_calls(cluster, *NEW) < CALLS
        check_settled(cluster)


class Spied(Line):
    """A way to the store; *look* is called before each call that changes something."""

    def __init__(self, cluster: MemoryCluster, look: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__(cluster, 0.0)
        self._look = look

    async def transact(self, ops: Any) -> Any:  # noqa: ANN401
        await self._look(ops)
        return await self._store.transact(ops)


async def test_a_reader_between_two_steps_sees_all_of_a_result_or_nothing() -> None:
    seen: list[list[str]] = []
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)

        async def look(_ops: Any = ()) -> None:  # noqa: ANN401
            seen.append(await all_values(client))
            found = await client.topics.explain(NAME)
            assert found.extent.messages == len(seen[-1])

        await write_by(cluster, Spied(cluster, look), *NEW)
        await look()
    sizes = [len(values) for values in seen]
    assert sizes == sorted(sizes)
    assert set(sizes) == {2, 7}
    assert sizes.count(7) > 6  # after it was shown there are steps that settle it


async def test_a_purge_and_a_truncation_take_what_was_shown_and_not_settled(
    autojump_clock: MockClock,
) -> None:
    for remove in ("purge", "truncate"):
        async with memory_cluster(3) as cluster, cluster.client() as client:
            await old(client)
            await write_by(cluster, Until(cluster), *NEW)
            if remove == "purge":
                went = await client.topics.purge(NAME, before=PublishTime(1 << 45))
                assert went.messages == 7
            else:
                truncated = await client.topics.truncate(NAME, "earliest", force=True)
                assert truncated.messages == 7
            assert await all_values(client) == []
            await clean(cluster, client)
            assert await all_values(client) == []
            check_settled(cluster)


async def test_the_leader_settles_a_result_while_its_job_still_counts_as_alive(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)
        await write_by(cluster, Until(cluster), *NEW)
        assert stored(cluster.store, POINTERS) != []
        await clean(cluster, client, wait_s=0.0)
        assert stored(cluster.store, POINTERS) == []
        assert len(await all_values(client)) == 7


@pytest.mark.parametrize("who", ["a writer", "the leader"])
async def test_who_decides_before_the_job_has_it_show_its_result_anew(
    autojump_clock: MockClock, who: str
) -> None:
    """A rival takes one of the lanes, or gives up the job, just before the pointer is shown."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = await old(client)
        tries = iter([True])

        async def act(ops: Any) -> None:  # noqa: ANN401
            if is_showing(ops) and next(tries, False):
                if who == "a writer":
                    rows = LaneRows(client._context.ledgers.catalogue, topic, 0, 0)
                    await rows.claim("", writer="rival")
                else:
                    assert await discard(cluster.store, STAGED) == 6  # a lane's state too

        if who == "a writer":
            assert await write_by(cluster, Spied(cluster, act), *NEW)
        else:
            with pytest.raises(JobLost):
                await write_by(cluster, Spied(cluster, act), *NEW)
        assert next(tries, None) is None
        assert await all_values(client) == ([*ALL, *OLD] if who == "a writer" else OLD)
        await clean(cluster, client)
        assert await all_values(client) == ([*ALL, *OLD] if who == "a writer" else OLD)
        check_all(cluster)


async def test_who_discards_after_it_was_shown_discards_nothing(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)
        await write_by(cluster, Until(cluster), *NEW)
        assert await discard(cluster.store, STAGED) == 0
        assert await all_values(client) == [*ALL, *OLD]
        await clean(cluster, client)
        assert await all_values(client) == [*ALL, *OLD]
        check_all(cluster)


class Silent(Line):
    """A way to the store that loses the answer when a result is shown, once."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster, 0.0)
        self._lost = False

    async def transact(self, ops: Any) -> Any:  # noqa: ANN401
        versions = await self._store.transact(ops)
        if is_showing(ops) and not self._lost:
            self._lost = True
            raise MetadataUnavailable("no answer", outcome_unknown=True)
        return versions


async def test_a_job_without_an_answer_looks_whether_its_result_is_shown(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await old(client)
        assert await write_by(cluster, Silent(cluster), *NEW)
        assert await all_values(client) == [*ALL, *OLD]
        check_all(cluster)


def is_showing(ops: Any) -> bool:  # noqa: ANN401
    """Whether this is the change that shows a result."""
    return any(b'"state":"shown"' in getattr(op, "value", b"") for op in ops)


class Until(Line):
    """A way to the store that is cut once a pointer is shown."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster, 0.0)

    async def transact(self, ops: Any) -> Any:  # noqa: ANN401
        self._pass()
        versions = await self._store.transact(ops)
        self.is_cut = is_showing(ops)
        return versions


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30), losses=st.sampled_from([0.1, 0.3, 0.5]))
def test_large_results_whose_answers_get_lost_are_there_once_or_not_at_all(
    seed: int, losses: float
) -> None:
    """Also when a step that nobody waits for any more is made late, and jobs compete for lanes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        shrink(monkeypatch)
        storm = partial(storm_of_jobs, rest_s=10)
        trio.run(storm, seed, losses, check_all, clock=MockClock(autojump_threshold=0))
