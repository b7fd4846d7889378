"""Producing through real lanes, on bookies in memory: rolls, losses, take-overs, sharing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
import trio
from lane_process import HASTY, Process
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.errors import (
    BadGroup,
    BadTopic,
    EventTimeBack,
    LedgerError,
    NoSuchTopic,
    NotEnoughBookies,
    ProducerBusy,
    ProducerFenced,
    Retryable,
    SendUnknown,
)
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.lanes.lane_lease import Access
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from metadata.sessions import SESSION_S
from metadata.topics import RollPolicy

TOPIC = "shop/orders"
IMPATIENT = Options(append_timeout_s=3.0, replace_timeout_s=1.0, metadata_timeout_s=2.0)


async def read_all(client: Client) -> list[Message]:
    async with client.reader(TOPIC) as reader:
        return [message async for message in reader]


async def test_what_is_sent_is_read_with_the_same_ids(autojump_clock: MockClock) -> None:
    """TD-08, TD-10, PS-05, PS-06: all ways of sending end in the same lane, in order."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        sent: dict[MessageId, bytes] = {}
        async with client.producer(TOPIC) as producer:
            sent[await producer.send(b"one", key=b"k", headers={"h": b"v"})] = b"one"
            ticket = producer.send_nowait(b"two", event_time=5)
            sent[await ticket.message_id()] = b"two"
            values = [b"%d" % number for number in range(2500)]
            sent.update(zip(await producer.send_many(values), values, strict=True))
        found = await read_all(client)
        assert [(m.id, m.value) for m in found] == list(sent.items())
        assert (found[0].key, found[0].headers, found[1].event_time) == (b"k", {"h": b"v"}, 5)
        assert [m.id.entry_id for m in found[:3]] == [1, 2, 3]  # 0 is the lane's state


async def test_an_event_time_is_a_datetime_or_nanoseconds(autojump_clock: MockClock) -> None:
    """To the microsecond, before 1970, too; what is neither is named, and nothing is sent."""
    east = timezone(timedelta(hours=5))
    times = [datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=east), datetime(1969, 12, 31, tzinfo=UTC)]
    wanted = [1_714_546_800_000_001_000, -86_400_000_000_000]
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            for time in times:
                await producer.send(b"v", event_time=time)
            await producer.send_many([b"v"] * 4, event_times=[*times, None, 7])
            with pytest.raises(TypeError, match="has no time zone: name one"):
                await producer.send(b"v", event_time=times[0].replace(tzinfo=None))
            with pytest.raises(TypeError, match=r"not '2024-05-01' \(str\)"):
                producer.send_nowait(b"v", event_time="2024-05-01")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"not 1.5 \(float\)"):
                await producer.send_many([b"v"], event_times=[1.5])
            with pytest.raises(TypeError, match=r"bytes, not str: encode it"):
                await producer.send("text")
        found = await read_all(client)
    assert [message.event_time for message in found] == [*wanted, *wanted, None, 7]


async def test_an_option_of_a_wrong_type_is_named(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        with pytest.raises(BadTopic, match=r"linger_ms takes a number or None, not '5' \(str\)"):
            async with client.producer(TOPIC, linger_ms="5"):  # type: ignore[arg-type]
                pass
        with pytest.raises(BadTopic, match=r"follow takes True or False, not 'no'"):
            async with client.reader(TOPIC, follow="no"):  # type: ignore[arg-type]
                pass
        with pytest.raises(BadGroup, match="session_s takes a number"):
            async with client.consumer(TOPIC, group="g", session_s="12"):  # type: ignore[arg-type]
                pass


async def test_nothing_is_lost_or_reordered_while_ledgers_roll(autojump_clock: MockClock) -> None:
    """PS-29: a ledger that ends holds nobody up."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2, roll=RollPolicy(entries=3))
        sent: dict[MessageId, bytes] = {}
        async with client.producer(TOPIC, batch_messages=5) as producer:

            async def send(task: int) -> None:
                for number in range(20):
                    value = b"%d %d" % (task, number)
                    sent[await producer.send(value, key=b"%d" % task)] = value

            async with trio.open_nursery() as nursery:
                for task in range(20):
                    nursery.start_soon(send, task)
        found = await read_all(client)
        assert {m.id: m.value for m in found} == sent
        assert len({m.id.ledger_id for m in found}) > 4
        for task in range(20):
            own = [m.value for m in found if m.key == b"%d" % task]
            assert own == [b"%d %d" % (task, number) for number in range(20)]


async def test_a_bookie_that_dies_costs_nothing(autojump_clock: MockClock) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, replication=3)
        values = [b"%d" % number for number in range(300)]
        async with client.producer(TOPIC, batch_messages=10) as producer:
            await producer.send_many(values[:100])
            dead = cluster.record((await producer.send(values[100])).ledger_id)
            cluster.kill(dead.fragments[0].bookies[0])
            await producer.send_many(values[101:])
        assert [m.value for m in await read_all(client)] == values


async def test_of_two_exclusive_producers_one_wins_and_the_other_learns_it_at_once(
    autojump_clock: MockClock,
) -> None:
    """TB-02, TB-49: one writer a partition, cluster-wide."""
    async with memory_cluster(3) as cluster, cluster.client() as one, cluster.client() as two:
        await one.topics.create(TOPIC, order="event-time")
        async with one.producer(TOPIC, producer_name="first") as producer:
            began = trio.current_time()
            with pytest.raises(ProducerBusy, match="first") as busy:
                async with two.producer(TOPIC):
                    pass
            assert (busy.value.partition, busy.value.lane) == (-1, 0)
            assert trio.current_time() - began < 1
            await producer.send(b"x", event_time=1)
        async with two.producer(TOPIC) as producer:
            with pytest.raises(EventTimeBack, match="last accepted, 1 ns"):
                await producer.send(b"y", event_time=0)


async def test_after_a_take_over_the_old_producer_is_never_acknowledged(
    autojump_clock: MockClock,
) -> None:
    """TB-02: and what it had acknowledged is before what the new one writes."""
    async with memory_cluster(3) as cluster, cluster.client() as one, cluster.client() as two:
        await one.topics.create(TOPIC)
        async with one.producer(TOPIC, access="exclusive") as old:
            await old.send(b"old")
            async with two.producer(TOPIC, access="take-over") as new:
                await new.send(b"new")
                with pytest.raises((ProducerFenced, SendUnknown)):
                    await old.send(b"late")
                with pytest.raises(ProducerFenced):
                    await old.send(b"later")
                await new.send(b"newer")
        assert [m.value for m in await read_all(two)] == [b"old", b"new", b"newer"]


@pytest.mark.parametrize("access", ["exclusive", "take-over"])
async def test_who_was_away_while_another_wrote_is_fenced_when_it_comes_back(
    autojump_clock: MockClock, access: Access
) -> None:
    """TB-02: though the other has left by then, and nobody could tell it."""
    async with memory_cluster(3) as cluster, cluster.client() as theirs:
        process = Process(cluster)
        async with process.client(HASTY) as ours:
            await ours.topics.create(TOPIC)
            async with ours.producer(TOPIC, access="exclusive") as old:
                await old.send(b"old")
                process.kill()
                with pytest.raises(SendUnknown):
                    await old.send(b"unknown")
                await trio.sleep(SESSION_S)
                async with theirs.producer(TOPIC, access=access) as new:
                    await new.send(b"new")
                process.heal()
                for _ in range(2):
                    with pytest.raises(ProducerFenced):
                        await old.send(b"late")
        assert [m.value for m in await read_all(theirs)] == [b"old", b"new"]


async def test_who_was_away_while_nobody_wrote_goes_on(autojump_clock: MockClock) -> None:
    """A lane that was closed meanwhile, for readers, is opened anew."""
    async with memory_cluster(3) as cluster, cluster.client() as theirs:
        process = Process(cluster)
        async with process.client(HASTY) as ours:
            topic = await ours.topics.create(TOPIC)
            async with ours.producer(TOPIC, producer_name="p") as producer:
                await producer.send(b"0", sequence=0)
                process.kill()
                with pytest.raises(SendUnknown):
                    await producer.send(b"1", sequence=1)
                await trio.sleep(SESSION_S)
                await close_lane(theirs._context.ledgers, topic, -1, 1)
                assert [m.value for m in await read_all(theirs)] == [b"0"]
                process.heal()
                for number in range(3):
                    await send_until_kept(producer, number)
        assert [m.value for m in await read_all(theirs)] == [b"0", b"1", b"2"]


async def test_who_waits_gets_the_partition_when_it_is_free(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as one, cluster.client() as two:
        await one.topics.create(TOPIC)

        async def wait() -> None:
            async with two.producer(TOPIC, access="wait") as producer:
                await producer.send(b"second")

        async with (
            trio.open_nursery() as nursery,
            one.producer(TOPIC, access="exclusive") as producer,
        ):
            nursery.start_soon(wait)
            await trio.sleep(5)
            await producer.send(b"first")
        assert [m.value for m in await read_all(one)] == [b"first", b"second"]


async def test_many_producers_share_a_partition_each_on_its_own_lane(
    autojump_clock: MockClock,
) -> None:
    """TB-36: many loaders; each one's order is kept."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)

        async def produce(task: int, name: str) -> None:
            async with cluster.client() as own, own.producer(TOPIC, producer_name=name) as producer:
                for number in range(20):
                    await producer.send(b"%d %d" % (task, number))

        async with trio.open_nursery() as nursery:
            for task, name in enumerate(("", "", "a", "b")):
                nursery.start_soon(produce, task, name)
        found = await read_all(client)
        assert len({m.lane for m in found}) == 4
        for task in range(4):
            own = [m.value for m in found if (m.value or b"").startswith(b"%d " % task)]
            assert own == [b"%d %d" % (task, number) for number in range(20)]


async def test_a_named_producer_that_died_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    """PS-39: across a crash; sending everything again keeps it once."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        values = [b"%d" % number for number in range(50)]
        for attempt in range(4):
            with trio.move_on_after(0.02 + 0.01 * attempt):
                async with (
                    cluster.client() as own,
                    own.producer(TOPIC, producer_name="p", access="take-over") as producer,
                ):
                    for number, value in enumerate(values):
                        await producer.send(value, sequence=number)
        async with client.producer(TOPIC, producer_name="p", access="take-over") as producer:
            assert await producer.last_sequence() >= 0
            await producer.send_many(values, sequence=0)
        assert [m.value for m in await read_all(client)] == values


async def test_without_bookies_the_outcome_is_unknown_and_sending_again_keeps_all_once(
    autojump_clock: MockClock,
) -> None:
    """PS-39: after an outage, by the same producer and with the same numbers."""
    async with memory_cluster(3) as cluster, cluster.client(IMPATIENT) as client:
        await client.topics.create(TOPIC, replication=3)
        async with client.producer(TOPIC, producer_name="p", batch_messages=1) as producer:
            await producer.send(b"0")
            for name in list(cluster.bookies):
                cluster.kill(name)
            tickets = [producer.send_nowait(b"%d" % number) for number in range(1, 10)]
            for ticket in tickets:
                with pytest.raises(SendUnknown):
                    await ticket.message_id()
            with pytest.raises(LedgerError):  # the lane cannot be opened
                await producer.send(b"1", sequence=1)
            for name in list(cluster.bookies):
                cluster.revive(name)
            for number in range(10):
                await send_until_kept(producer, number)
        assert [m.value for m in await read_all(client)] == [b"%d" % n for n in range(10)]


async def send_until_kept(producer: Producer, number: int) -> None:
    with trio.fail_after(600):
        while True:
            try:
                await producer.send(b"%d" % number, sequence=number)
            except (SendUnknown, Retryable):
                await trio.sleep(1)
            else:
                return


async def test_each_partition_is_written_to_its_own_bookies_by_one_client(
    autojump_clock: MockClock,
) -> None:
    """TB-32, TB-33: connections to all the bookies that a topic's lanes are on."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=8, replication=1)
        async with client.producer(TOPIC) as producer:
            ids = [await producer.send(b"%d" % index, partition=index) for index in range(8)]
            holders = {cluster.record(one.ledger_id).fragments[0].bookies[0] for one in ids}
        assert len(holders) > 1
        assert holders <= set(cluster.dialled)
        async with client.reader(TOPIC, partitions=[2, 5]) as reader:
            assert {message.value async for message in reader} == {b"2", b"5"}


async def test_a_topic_that_is_gone_is_named(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(NoSuchTopic, match="quire topic create shop/orders"):
            async with client.producer(TOPIC):
                pass


async def test_too_few_bookies_are_named_by_the_send_that_needs_them(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(2) as cluster, cluster.client(IMPATIENT) as client:
        await client.topics.create(TOPIC, replication=2)
        cluster.kill("b1")
        async with client.producer(TOPIC) as producer:
            with pytest.raises(NotEnoughBookies):
                await producer.send(b"x")
            cluster.revive("b1")
            await trio.sleep(100)
            await producer.send(b"y")
        assert [m.value for m in await read_all(client)] == [b"y"]
