"""Whether readers in the order of timestamps get a message, and who holds its tick back."""

from __future__ import annotations

import trio
from memory_cluster import MemoryCluster
from replaced import replaced
from traced import TOPIC
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.topics.tracing.whereabouts import TracedWriter, stand_to_ticks
from metadata.time.calls import TickNow

WRITER = TracedWriter(producer="till", host="h1", process_id=5, since_ms=0, lease_s=9.0)
HELD = TickNow(50, 50, [], "lane 0 of partition 1", lane=(1, 0), silent_s=12.3, held_s=12.5)


async def nothing(*_: object) -> None:
    """Stands for reports that do not arrive."""


def test_a_message_up_to_the_newest_tick_is_reached_by_it() -> None:
    """MV-20: whatever holds the next tick back."""
    standing = stand_to_ticks(50, HELD, WRITER)
    assert (standing.is_reached, standing.holder, standing.writer) == (True, "", None)
    assert standing.why == "readers in the order of timestamps get it: a tick has reached it"


def test_a_message_above_the_newest_tick_names_the_producer_that_does_not_report() -> None:
    """MV-36: its lane, who it is, and since when."""
    standing = stand_to_ticks(51, HELD, WRITER)
    assert not standing.is_reached
    assert (standing.partition, standing.lane, standing.writer) == (1, 0, WRITER)
    assert standing.why == (
        "readers in the order of timestamps do not get it yet: the newest tick, of 12.5 s ago, is "
        "below it; lane 0 of partition 1 holds the next one back: till on h1, process 5, has not "
        "reported it for 12.3 s"
    )


def test_what_the_next_tick_waits_for_is_said_in_each_case() -> None:
    def waits(tick: TickNow, writer: TracedWriter | None = WRITER) -> str:
        return stand_to_ticks(51, tick, writer).why.rpartition("; ")[2]

    lane, text = (1, 0), "lane 0 of partition 1"
    assert waits(TickNow(50, 50, [])) == "the next one is due"
    assert waits(TickNow(50, 50, [], "process 7 of h2")) == "the next one waits for process 7 of h2"
    assert waits(TickNow(50, 50, [], text, lane=lane)) == (
        f"the next one waits for {text}, which is written by till on h1, process 5"
    )
    assert waits(TickNow(50, 50, [], text, lane=lane), None) == (
        f"{text} holds the next one back: nobody writes it, and it is closed soon"
    )
    assert "the topic has no tick yet" in stand_to_ticks(51, TickNow(0, 0, []), None).why


async def test_a_message_under_a_silent_producer_is_traced_to_it(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """MV-36: another lane of another client holds the tick back that readers wait for."""
    cluster.lead("b1", has_ticks=True)
    await client.topics.create(TOPIC, 2, timesync=True)
    async with cluster.client() as other:
        with replaced(other._context.reports, "_report", nothing):
            async with other.producer(TOPIC, partition=1, producer_name="till") as silent:
                await silent.send(b"theirs")
                async with client.producer(TOPIC, partition=0) as producer:
                    message_id = await producer.send(b"ours")
                    await trio.sleep(5)
                    found = await client.topics.why(TOPIC, message_id)
        assert (found.verdict, found.waits_for) == ("readable", "")
        assert found.ticks is not None
        assert not found.ticks.is_reached
        await trio.sleep(3)
        again = await client.topics.why(TOPIC, message_id)
        assert again.ticks is not None
        assert again.ticks.is_reached
        assert again.ticks.timestamp is not None
        assert again.message is not None
        assert again.ticks.timestamp >= again.message.timestamp
    assert found.ticks.partition == 1
    assert found.ticks.writer is not None
    assert found.ticks.writer.producer == "till"
    assert found.ticks.silent_s > 1


async def test_a_change_of_the_topic_that_holds_ticks_is_named(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """MV-38: as long as it is under way."""
    cluster.lead("b1", has_ticks=True)
    topic = await client.topics.create(TOPIC, timesync=True)
    async with cluster.context() as context, client.producer(TOPIC) as producer:
        await producer.send(b"first")
        await trio.sleep(2)
        name = f"time-ddl/{topic.uid:020d}/x"
        value = (
            b'{"topic": "shop/orders", "below": 1, "kind": "altered", "host": "h", "process_id": 3}'
        )
        held = await context.ledgers.session.grant(name, value=value)
        message_id = await producer.send(b"second")
        await context.store.put("time/lanes", b'{"name": "shop/orders"}')
        await trio.sleep(1)
        message_id = await producer.send(b"third")
        await trio.sleep(2)
        found = await client.topics.why(TOPIC, message_id)
        assert found.ticks is not None
        assert found.ticks.why.endswith("waits for process 3 of h, by which the topic is altered")
        assert (found.ticks.lane, found.ticks.writer) == (None, None)
        await held.release()


async def test_without_a_leader_nobody_says_whether_a_tick_reached_a_message(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    leading = cluster.lead("b1", has_ticks=True)
    await client.topics.create(TOPIC, timesync=True)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x")
        leading.cancel()
        found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == "readable"
    assert found.ticks is not None
    assert (found.ticks.timestamp, found.ticks.is_reached) == (None, False)


async def test_messages_without_timestamps_do_not_stand_to_ticks(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x")
    assert (await client.topics.why(TOPIC, message_id)).ticks is None
