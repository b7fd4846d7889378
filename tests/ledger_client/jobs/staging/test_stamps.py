"""What jobs show in topics with timesync: one timestamp, which no tick reaches before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from staged_rig import NAME, count_calls, made, rows, write_job, write_until_cut
from trio.testing import MockClock

from ledger_client import Client, Timestamp
from ledger_client.jobs.staging import showing, writing_job
from ledger_client.jobs.staging.showing import Showing
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.messages import Message
from metadata import pointers
from metadata.errors import MetadataUnavailable
from metadata.pointers import finish
from metadata.store import MetadataStore, Op
from metadata.topics import LANES, decode_lane

JOB = ({0: rows("a", "b"), 1: rows("c")}, {1: rows("d"), 0: rows("e")})
JOB_VALUES = ["a", "b", "e", "c", "d"]
"""by partition and place"""
CALLS = 130


class Shop:
    """A topic of two partitions in a cluster that makes ticks."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def send(self, *values: str) -> None:
        async with self.client.producer(NAME) as producer:
            for value in values:
                await producer.send(value.encode(), key=value.encode())

    async def job(self) -> None:
        await write_job(self.client._context.ledgers, NAME, *JOB)

    async def truth(self) -> list[Message]:
        """All messages by timestamp, equal ones by partition, lane and place."""
        async with self.client.reader(NAME) as reader:
            found = [message async for message in reader]
        return sorted(found, key=lambda each: (each.timestamp, each.id.partition, each.lane))

    async def ordered(self) -> list[Message]:
        async with self.client.reader(NAME, order="timestamp") as reader:
            return [message async for message in reader]


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await made(client, partitions=2, timesync=True)
        yield Shop(cluster, client)


def values(messages: Sequence[Message]) -> list[str]:
    return [(message.value or b"").decode() for message in messages]


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pointer show everything, in steps of one ledger."""
    monkeypatch.setattr(showing, "DIRECT_OPS_MAX", 0)
    monkeypatch.setattr(showing, "STEP_COUNT", 1)
    monkeypatch.setattr(pointers, "STEP_COUNT", 1)


@pytest.mark.parametrize("by_pointer", [False, True])
async def test_all_that_is_shown_at_once_has_one_timestamp(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, by_pointer: bool
) -> None:
    """MV-13, MV-40, MV-41: as objects, as Arrow data, from a timestamp, and resumed anywhere."""
    if by_pointer:
        shrink(monkeypatch)
    async with shop() as place:
        await place.send("1", "2", "3")
        await place.job()
        await place.send("4", "5")
        found = await place.ordered()
        assert values(found) == ["1", "2", "3", *JOB_VALUES, "4", "5"]
        assert found == await place.truth()
        stamp = found[3].timestamp
        assert [each.timestamp for each in found[3:8]] == [stamp] * 5
        assert found[2].timestamp < stamp < found[8].timestamp
        async with place.client.reader(NAME, order="timestamp") as reader:
            batches = [batch async for batch in reader.read_batches(rows_max=3)]
        stamps = [one for batch in batches for one in batch.column("timestamp").to_pylist()]
        assert stamps == [each.timestamp for each in found]
        for count in range(len(found)):
            async with place.client.reader(NAME, order="timestamp") as reader:
                head = [await anext(reader) for _ in range(count)]
                position = reader.position()
            async with place.client.reader(NAME, order="timestamp", start=position) as reader:
                assert head + [message async for message in reader] == found
        async with place.client.reader(
            NAME, order="timestamp", start=Timestamp(stamp), end=Timestamp(stamp)
        ) as reader:
            assert [message async for message in reader] == found[3:8]
        async with place.client.reader(NAME, start=Timestamp(stamp + 1)) as reader:
            assert sorted(values([message async for message in reader])) == ["4", "5"]


@pytest.mark.parametrize("by_pointer", [False, True])
async def test_a_cut_has_all_that_a_job_shows_at_once_or_nothing_of_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, by_pointer: bool
) -> None:
    """D-02: right before its timestamp, at it, and after it."""
    if by_pointer:
        shrink(monkeypatch)
    async with shop() as place:
        await place.send("1", "2", "3")
        await place.job()
        create = place.client.cuts.create
        await create("now", NAME)
        await place.send("4", "5")
        stamp = (await place.ordered())[3].timestamp
        await create("at", NAME, at=Timestamp(stamp))
        await create("before", NAME, at=Timestamp(stamp - 1))
        for name, count in (("now", 8), ("at", 8), ("before", 3)):
            for order in ("arrival", "timestamp"):
                async with place.client.reader(NAME, ending_cut=name, order=order) as reader:
                    assert len([message async for message in reader]) == count
                async with place.client.reader(NAME, starting_cut=name, order=order) as reader:
                    assert len([message async for message in reader]) == 10 - count


@pytest.mark.parametrize("by_pointer", [False, True])
async def test_ticks_wait_for_what_has_a_timestamp_and_is_not_shown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, by_pointer: bool
) -> None:
    """MV-20: however long each step of showing takes."""
    if by_pointer:
        shrink(monkeypatch)

    def slow(step: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def slowed(*args: object, **options: object) -> object:
            await trio.sleep(1)
            result = await step(*args, **options)
            await trio.sleep(1)
            return result

        return slowed

    monkeypatch.setattr(LaneRows, "hold_ticks", slow(LaneRows.hold_ticks))
    monkeypatch.setattr(showing, "_allot", slow(showing._allot))
    monkeypatch.setattr(Showing, "_show", slow(Showing._show))
    async with shop() as place:
        await place.send("0")
        followed: list[Message] = []
        sent = 1

        async def follow() -> None:
            async with place.client.reader(NAME, order="timestamp", follow=True) as reader:
                while True:
                    followed.append(await anext(reader))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            async with place.client.producer(NAME) as producer, trio.open_nursery() as writing:

                async def produce() -> None:
                    nonlocal sent
                    while True:
                        await producer.send(b"%d" % sent)
                        sent += 1
                        await trio.sleep(0.1)

                writing.start_soon(produce)
                await place.job()
                await trio.sleep(1)
                writing.cancel_scope.cancel()
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        truth = await place.truth()
        assert followed == truth == await place.ordered()
        assert len(truth) >= sent + 5


async def test_a_result_that_is_shown_and_not_settled_counts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MV-20: the pointer shows it, while the records of its lanes say as before that it is hidden.

    Its job is gone after that change, and the leader saw these records before it.
    """
    shrink(monkeypatch)
    calls = 0

    async def finish_once(store: MetadataStore, uid: int, job_id: str) -> bool:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise MetadataUnavailable("killed")
        return await finish(store, uid, job_id)

    async def nothing(*_: object) -> None:
        """Stands for what a job that was killed does not do."""

    monkeypatch.setattr(showing, "finish", finish_once)
    monkeypatch.setattr(writing_job, "discard", nothing)
    async with shop() as place:
        show = Showing._show

        async def show_later(job: Showing, ops: Sequence[Op]) -> bool | None:
            await place.send("2")  # opens and closes a lane, so the leader looks at all
            await trio.sleep(1)
            return await show(job, ops)

        monkeypatch.setattr(Showing, "_show", show_later)
        await place.send("1")
        await place.job()
        assert calls == 2
        found = await place.ordered()
        assert sorted(values(found)) == sorted(["1", "2", *JOB_VALUES])
        assert found == await place.truth()


@pytest.mark.slow
@pytest.mark.parametrize("by_pointer", [False, True])
async def test_a_job_that_is_killed_at_any_call_of_the_store_holds_no_tick_for_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, by_pointer: bool
) -> None:
    """MV-20, MV-36: what followed before, follows after, and a replay has the same."""
    if by_pointer:
        shrink(monkeypatch)
    for number, at in enumerate(range(CALLS // 4, CALLS, 13)):
        async with shop() as place:
            await place.send("1", "2")
            followed: list[Message] = []

            async def follow(place: Shop = place, got: list[Message] = followed) -> None:
                async with place.client.reader(NAME, order="timestamp", follow=True) as reader:
                    while True:
                        got.append(await anext(reader))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await write_until_cut(place.cluster, at, *JOB, is_done=number % 2 == 1)
                await trio.sleep(20)  # the lease of the job's process, and some for the leader
                await place.send("3")
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
            assert values(followed) in (["1", "2", "3"], ["1", "2", *JOB_VALUES, "3"])
            assert followed == await place.ordered() == await place.truth()
            lanes = [
                decode_lane(key, found.value)
                for key, found in place.cluster.store.values.items()
                if key.startswith(LANES)
            ]
            assert not any(lane.holds_ticks for lane in lanes)


async def test_all_calls_of_a_job_are_tried(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of the test above reaches beyond the last one."""
    shrink(monkeypatch)
    async with shop() as place:
        await place.send("1", "2")
        assert CALLS // 2 < await count_calls(place.cluster, *JOB) < CALLS
