"""Reads as of a moment, at each consistency level: what they see, and what they wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from replaced import replaced
from trio.testing import MockClock

from ledger_client import Client, Options, Producer, Timestamp, TopicState
from ledger_client.background import Background
from ledger_client.errors import BadTopic, Gap, MetadataUnavailable, ReplicasUnavailable
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.reading import consistency, state
from ledger_client.topics.reading.options import Consistency
from metadata.time.timestamps import first_at, split, utc_of
from metadata.topics import TopicRecord
from native.frame import Opcode, Request

C0 = "milvus/c0"
LEVELS: tuple[Consistency, ...] = ("strong", "bounded", "session", "eventual")
DAY_MS = 86_400_000
MORNING_MS = 1_795_000_000_000


@asynccontextmanager
async def collection(
    *, exists: bool = True, options: Options | None = None
) -> AsyncIterator[tuple[MemoryCluster, Client, Client]]:
    """A cluster with two clients, and a topic with two partitions."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client(options) as one,
        cluster.client(options) as other,
    ):
        cluster.lead("b1", has_ticks=True, wall_ms=wall_ms)
        if exists:
            await one.topics.create(C0, 2, timesync=True)
        yield cluster, one, other


def wall_ms() -> int:
    """The leader's clock."""
    return MORNING_MS + int(trio.current_time() * 1000)


async def moment(client: Client) -> Timestamp:
    return Timestamp((await client.timestamps.allocate()).first)


async def seen(
    client: Client, level: Consistency = "strong", as_of: Timestamp | None = None
) -> dict[bytes, bytes | None]:
    found = await client.topics.state(C0, consistency=level, as_of=as_of)
    return {key: message.value for key, message in found.messages.items()}


async def read(client: Client, level: Consistency, as_of: Timestamp) -> dict[bytes, bytes | None]:
    """As seen(), by a reader of all messages."""
    found: dict[bytes, bytes | None] = {}
    async with client.reader(C0, order="timestamp", consistency=level, as_of=as_of) as reader:
        async for message in reader:
            assert message.key is not None
            if message.value:
                found[message.key] = message.value
            else:
                del found[message.key]
    return found


def set_ahead(client: Client) -> None:
    """Let a client's clock be 24 hours ahead."""
    clock = client._context.clock
    now_ms = clock.now_ms
    clock.now_ms = lambda: now_ms() + DAY_MS  # type: ignore[method-assign]  # for this client


@asynccontextmanager
async def apart(cluster: MemoryCluster, away: set[int]) -> AsyncIterator[Client]:
    """A client that does not reach the bookies on some ports."""

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        if port in away:
            raise OSError("no route to it")
        return await cluster.open_stream(host, port)

    async with Background() as nursery:
        yield Client(
            TopicContext(cluster.store, nursery, open_stream=open_stream, chance=cluster.chance)
        )


def missing_out(request: Request) -> float:
    """Return the delay of a bookie that gets no more entries, and does not hear of them."""
    return 3600.0 if request.opcode in {Opcode.ADD, Opcode.WRITE_LAC} else 0.0


def unheard(request: Request) -> float:
    """Return the delay of a bookie that does not hear which entries are acknowledged."""
    return 3600.0 if request.opcode == Opcode.WRITE_LAC else 0.0


@asynccontextmanager
async def held_up(producer: Producer, value: bytes, key: bytes) -> AsyncIterator[None]:
    """For the block, let a message hang in the network that has its timestamp; then it arrives."""
    gate, append = trio.Event(), LaneWriter.append

    async def append_later(
        lane: LaneWriter, batches: Sequence[SealedBatch]
    ) -> list[tuple[int, int]]:
        await gate.wait()
        return await append(lane, batches)

    with replaced(LaneWriter, "append", append_later):
        ticket = producer.send_nowait(value, key=key)
        await trio.sleep(1)
    yield
    gate.set()
    await ticket.message_id()


@pytest.mark.parametrize("level", LEVELS)
async def test_each_read_of_the_table_sees_what_happened_before_it_and_nothing_later(
    autojump_clock: MockClock, level: Consistency
) -> None:
    """MV-01, MV-03, MV-04, MV-05, MV-46: the table of Milvus, one clock a day ahead.

    t0 create C0; t2 read: nothing; t5 insert A1; t7 read: A1; t10 insert A2; t12 read: A1, A2;
    t15 delete A1; t17 read: A2. The inserts come from a client whose clock is 24 h ahead, the
    delete from another one.
    """
    async with collection(exists=False) as (_, ahead, other):
        set_ahead(ahead)
        await other.topics.create(C0, 2, timesync=True)
        table: list[tuple[Timestamp, Mapping[bytes, bytes]]] = []
        async with ahead.producer(C0) as inserts, other.producer(C0) as deletes:
            table.append((await moment(other), {}))
            await inserts.send(b"one", key=b"A1")
            table.append((await moment(other), {b"A1": b"one"}))
            await inserts.send(b"two", key=b"A2")
            table.append((await moment(other), {b"A1": b"one", b"A2": b"two"}))
            await deletes.send(b"", key=b"A1")
            table.append((await moment(other), {b"A2": b"two"}))
            if level != "strong":  # what a weaker level sees is what it waits for, or has
                assert await seen(other) == {b"A2": b"two"}
            for at, keys in table:
                assert await seen(other, level, at) == keys
                assert await read(other, level, at) == keys
        async with other.reader(C0) as reader:
            publish = {m.key: m.publish_time async for m in reader if m.value}
        assert min(publish.values()) > split(table[-1][0].value).physical_ms + DAY_MS // 2


@pytest.mark.parametrize("level", LEVELS)
async def test_a_delete_that_is_late_on_its_way_is_waited_for_or_what_it_deletes_is_newer(
    autojump_clock: MockClock, level: Consistency
) -> None:
    """MV-06, MV-17, MV-46: no read whose moment is past the delete's sees what it deletes."""
    async with (
        collection() as (_, one, other),
        one.producer(C0) as inserts,
        other.producer(C0) as deletes,
    ):
        await inserts.send(b"one", key=b"A1")
        await deletes.send(b"two", key=b"A2")
        before = {b"A1": b"one", b"A2": b"two"}
        assert await seen(one) == before
        found: list[TopicState] = []

        async def look() -> None:
            found.append(await one.topics.state(C0, consistency=level, as_of=t17))

        async with trio.open_nursery() as nursery, held_up(deletes, b"", b"A1"):
            t17 = await moment(one)
            nursery.start_soon(look)
            await trio.sleep(3)
            assert len(found) == (level != "strong")
            for each in found:  # a state of a little earlier, and it says so
                assert each.timestamp < t17
                assert {key: m.value for key, m in each.messages.items()} == before
        async with other.reader(C0) as reader:
            (late,) = [message async for message in reader if not message.value]
        assert late.timestamp < t17.value
        assert found[0].timestamp == t17 or found[0].timestamp.value < late.timestamp
        assert await seen(one, "strong", t17) == await read(one, "strong", t17) == {b"A2": b"two"}


async def test_a_message_in_flight_holds_back_those_of_others_that_are_later(
    autojump_clock: MockClock,
) -> None:
    """MV-17: 110 of the second producer is not read while 80 of the first one is in flight."""
    async with (
        collection() as (_, one, other),
        one.producer(C0, partition=0) as first,
        other.producer(C0, partition=0) as second,
    ):
        await first.send(b"", key=b"50")
        await second.send(b"", key=b"60")
        keys: list[bytes | None] = []

        async def follow() -> None:
            async with one.reader(C0, order="timestamp", follow=True) as reader:
                async for message in reader:
                    keys.append(message.key)
                    if len(keys) == 4:
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            async with held_up(first, b"", b"80"):
                await second.send(b"", key=b"110")
                await trio.sleep(3)
                assert keys == [b"50", b"60"]
        assert keys == [b"50", b"60", b"80", b"110"]


async def test_a_request_for_several_timestamps_owns_as_many_as_it_asked_for(
    autojump_clock: MockClock,
) -> None:
    """MV-10: the reply is the first usable one, and those behind it are nobody else's."""
    async with collection() as (_, one, other):
        taken: list[int] = []
        for client, count in ((one, 1), (other, 10), (one, 1000), (other, 1), (one, 3)):
            answer = await client.timestamps.allocate(count)
            assert (answer.count, answer.last) == (count, answer.first + count - 1)
            taken += answer.timestamps()
        assert sorted(set(taken)) == taken


async def test_a_strong_read_names_what_holds_the_tick_back_when_it_waited_long_enough(
    autojump_clock: MockClock,
) -> None:
    """MV-46: the wait has a deadline."""
    async with (
        collection(options=Options(append_timeout_s=5)) as (_, one, other),
        one.producer(C0, partition=1) as producer,
    ):
        await producer.send(b"one", key=b"A1")
        assert await seen(other) == {b"A1": b"one"}
        async with held_up(producer, b"two", b"A2"):
            with pytest.raises(MetadataUnavailable, match=r"lane 0 of partition 1 holds it back"):
                await seen(other)
            with pytest.raises(MetadataUnavailable, match=r"lane 0 of partition 1 holds it back"):
                async with other.reader(C0, order="timestamp", consistency="strong"):
                    pass
            assert await seen(other, "eventual") == {b"A1": b"one"}


async def test_each_level_waits_for_its_guarantee_alone(autojump_clock: MockClock) -> None:
    """MV-46: what a client was acknowledged it sees in its session, whatever others do."""
    async with (
        collection() as (_, one, other),
        one.producer(C0, partition=0) as mine,
        other.producer(C0, partition=1) as theirs,
    ):
        await theirs.send(b"0", key=b"t")
        await trio.sleep(1)
        for number in range(1, 20):
            await mine.send(b"%d" % number, key=b"m")
            began = trio.current_time()
            assert (await seen(one, "session"))[b"m"] == b"%d" % number
            assert trio.current_time() - began < 1
            began = trio.current_time()
            found = await other.topics.state(C0, consistency="eventual")
            assert trio.current_time() - began < 0.1
            assert found.timestamp <= await moment(other)
        async with held_up(theirs, b"1", b"t"):
            await trio.sleep(3)
            began = trio.current_time()
            fresh = await moment(one)
            found = await one.topics.state(C0, consistency="bounded", staleness_s=4.5)
            assert trio.current_time() - began < 0.1
            found = await one.topics.state(C0, consistency="bounded")
            assert found.messages[b"t"].value == b"0"
            age_ms = split(fresh.value).physical_ms - split(found.timestamp.value).physical_ms
            assert 3000 <= age_ms <= 5000
            with trio.move_on_after(4) as waited:
                await one.topics.state(C0, consistency="bounded", staleness_s=1)
            assert waited.cancelled_caught


async def test_a_state_is_that_of_the_keys_and_partitions_that_were_asked_for(
    autojump_clock: MockClock,
) -> None:
    async with collection() as (_, one, other), one.producer(C0) as producer:
        assert (await other.topics.state(C0)).messages == {}
        at: list[datetime] = []
        for number in range(40):
            await producer.send(b"%d" % number, key=b"k%d" % (number % 8))
            await trio.sleep(0.01)
            at.append(utc_of((await moment(one)).value))
        await producer.send(b"no key")
        whole = (await other.topics.state(C0)).messages
        assert {key: m.value for key, m in whole.items()} == {
            b"k%d" % number: b"%d" % (32 + number) for number in range(8)
        }
        some = await other.topics.state(C0, keys=[b"k1", b"k5", b"none"])
        assert some.messages == {key: whole[key] for key in (b"k1", b"k5")}
        parts = [(await other.topics.state(C0, partitions=[part])).messages for part in (0, 1)]
        assert parts[0] | parts[1] == whole
        assert len(parts[0]) + len(parts[1]) == 8
        then = await other.topics.state(C0, as_of=at[20])
        assert then == await other.topics.state(C0, as_of=Timestamp(first_at(at[20])))
        assert 0 < max(int(m.value or b"") for m in then.messages.values()) <= 20
        with pytest.raises(BadTopic, match="more than 1000 bytes"):
            await other.topics.state(C0, size_max=1000)
        assert len((await other.topics.state(C0, size_max=1000, keys=[b"k1"])).messages) == 1


@pytest.mark.parametrize("compacts", [False, True])
async def test_a_state_fails_where_bookies_with_acknowledged_messages_are_away(
    autojump_clock: MockClock, compacts: bool
) -> None:
    """MV-46: the bookie that answers lacks the last message, and has not heard of it."""
    away: set[int] = set()
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as one,
        apart(cluster, away) as other,
    ):
        cluster.lead("b3", has_ticks=True, wall_ms=wall_ms)
        await one.topics.create(C0, 2, timesync=True, replication=3, ack_quorum=2)
        async with one.producer(C0, partition=0) as producer:
            await producer.send(b"1", key=b"a")
        if compacts:
            await one.topics.compact(C0)
        async with one.producer(C0, partition=0) as producer:
            await producer.send(b"2", key=b"b")
            assert await seen(other) == {b"a": b"1", b"b": b"2"}
            cluster.bookies["b3"].delay_s = missing_out
            await producer.send(b"3", key=b"b")
            away |= {1, 2}
            for name in ("b1", "b2"):
                cluster.bookies[name].drop_connections()
            with pytest.raises(ReplicasUnavailable, match="no route to it"):
                await seen(other)
            assert (await other.topics.state(C0, partitions=[1])).messages == {}
            away.clear()
            assert await seen(other) == {b"a": b"1", b"b": b"3"}


async def test_a_state_has_messages_that_no_bookie_knows_to_be_acknowledged(
    autojump_clock: MockClock,
) -> None:
    """The tick says that they are, though its writer hangs, so that no bookie hears of it."""
    async with collection() as (cluster, one, other), one.producer(C0, partition=0) as producer:
        await producer.send(b"1", key=b"a")
        assert await seen(other) == {b"a": b"1"}
        for bookie in cluster.bookies.values():
            bookie.delay_s = unheard
        await producer.send(b"2", key=b"a")
        await trio.sleep(1)
        began = trio.current_time()
        assert await seen(other, "eventual") == {b"a": b"2"}
        assert trio.current_time() - began < 0.1


async def test_what_is_no_moment_is_refused(autojump_clock: MockClock) -> None:
    async with collection() as (_, one, _other):
        await one.topics.create("milvus/plain")
        with pytest.raises(BadTopic, match="without timesync"):
            await one.topics.state("milvus/plain")
        for wrong in (
            {"consistency": "weak"},
            {"staleness_s": -1},
            {"as_of": utc_of(0).replace(tzinfo=None)},
            {"as_of": 5},
            {"keys": "A1"},
            {"keys": b"A1"},
            {"keys": ["A1"]},
        ):
            with pytest.raises(BadTopic, match=next(iter(wrong))):
                await one.topics.state(C0, **wrong)
        for beside in ({"follow": True}, {"end": Timestamp(1)}, {"order": "arrival"}):
            with pytest.raises(BadTopic):
                async with one.reader(
                    C0, **{"order": "timestamp", "consistency": "strong"} | beside
                ):
                    pass


async def test_a_state_needs_the_history_up_to_its_moment(autojump_clock: MockClock) -> None:
    """What retention or compaction removed is an error, or what is left is asked for."""
    async with collection() as (_, one, other):
        async with one.producer(C0, partition=0) as producer:
            for key in (b"a", b"b", b"a"):
                await producer.send(b"1", key=key)
        first = await moment(one)
        await one.topics.compact(C0)
        assert await seen(other) == await seen(other, as_of=first) == {b"a": b"1", b"b": b"1"}
        async with one.producer(C0, partition=0) as producer:
            await producer.send(b"2", key=b"a")
            await producer.send(b"", key=b"b")
        assert await seen(other) == {b"a": b"2"}
        assert await seen(other, as_of=first) == {b"a": b"1", b"b": b"1"}
        await one.topics.compact(C0)
        for level in LEVELS:  # the older ledgers are still there
            assert await seen(other, level) == {b"a": b"2"}
            assert await seen(other, level, first) == {b"a": b"1", b"b": b"1"}
        second = await moment(one)
        await one.topics.purge(C0)
        for level in LEVELS:
            assert await seen(other, level) == await seen(other, level, second) == {b"a": b"2"}
        with pytest.raises(Gap):
            await seen(other, as_of=first)
        left = await other.topics.state(C0, as_of=first, on_gap="skip")
        assert left.messages == {}
        await one.topics.drop_compacted(C0)
        with pytest.raises(Gap):
            await seen(other)


async def test_compaction_keeps_what_is_latest_though_a_clock_is_ahead(
    autojump_clock: MockClock,
) -> None:
    """MV-05: the value of the clock that is a day ahead is the older one."""
    async with collection() as (_, ahead, other):
        set_ahead(ahead)
        async with (
            ahead.producer(C0, partition=0) as first,
            other.producer(C0, partition=0) as second,
        ):
            await first.send(b"old", key=b"A")
            await first.send(b"gone", key=b"B")
            await second.send(b"new", key=b"A")
            await second.send(b"", key=b"B")
        assert await seen(other) == {b"A": b"new"}
        await other.topics.compact(C0)
        await other.topics.purge(C0)
        assert await seen(other) == {b"A": b"new"}


async def test_a_state_that_is_compacted_meanwhile_is_read_again(autojump_clock: MockClock) -> None:
    """A set that is newer than the moment may lack what was latest then."""
    async with collection() as (_, one, other):
        async with one.producer(C0, partition=0) as producer:
            await producer.send(b"1", key=b"a")
        await one.topics.compact(C0)
        look, looks = consistency.visible, 0

        async def compact_behind(
            context: TopicContext, topics: Sequence[TopicRecord], level: Consistency, **rest: object
        ) -> int:
            nonlocal looks
            looks += 1
            found = await look(context, topics, level, **rest)  # type: ignore[arg-type]  # passed on
            if looks == 1:
                async with one.producer(C0, partition=0) as producer:
                    await producer.send(b"2", key=b"a")
                await one.topics.compact(C0)
            return found

        with replaced(state, "visible", compact_behind):
            assert await seen(other) == {b"a": b"2"}
        assert looks == 2
