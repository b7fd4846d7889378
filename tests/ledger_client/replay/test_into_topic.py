"""Replays into topics, on bookies in memory: order, places, definitions, resumption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.replay import into_topic, replay, topic_target
from ledger_client.replay.errors import ReplayDiffers, TargetForeign
from ledger_client.replay.into_topic import replay_into_topic
from ledger_client.replay.options import ReplayOptions
from ledger_client.topics.errors import BadTopic, NoSuchTopic
from ledger_client.topics.messages import Message
from metadata.replays import LANES_MAX
from metadata.topics import Retention, RollPolicy, Schema

SOURCE, TARGET = "shop/orders", "shop/copy"
Told = tuple[bytes | None, bytes | None, int | None, dict[str, bytes]]


def told(message: Message) -> Told:
    """What a copy keeps of a message."""
    return message.key, message.value, message.event_time, dict(message.headers)


async def read(client: Client, name: str, **settings: object) -> list[Message]:
    async with client.topic_reader(name, **settings) as reader:  # type: ignore[arg-type]
        return [message async for message in reader]


def lanes(messages: Sequence[Message]) -> dict[tuple[int, int], list[Told]]:
    found: dict[tuple[int, int], list[Told]] = {}
    for message in messages:
        found.setdefault((message.id.partition, message.lane), []).append(told(message))
    return found


def is_within(part: Sequence[Told], whole: Sequence[Told]) -> bool:
    """Whether *part* comes in *whole* in its order."""
    left = iter(whole)
    return all(message in left for message in part)


async def fill(client: Client, name: str, *, partitions: int = 0, producers: int = 2) -> None:
    """Several lanes of messages of every kind, in ledgers that end now and then."""
    await client.create_topic(name, partitions, roll=RollPolicy(entries=7))

    async def produce(number: int) -> None:
        async with client.producer(name, batch_messages=3 + number) as producer:
            for start in range(0, 60, 20):
                wanted = [f"{number} {start + i}".encode() for i in range(20)]
                await producer.send_many(
                    [None if i % 9 == 4 else value for i, value in enumerate(wanted)],
                    keys=[None if i % 5 == 0 else b"k%d" % (i % 7) for i in range(20)],
                    event_times=[None if i % 4 == 0 else i * 1000 + number for i in range(20)],
                    headers=[{"h": b"%d" % i, "n": b""} if i % 3 else None for i in range(20)],
                )

    async with trio.open_nursery() as nursery:
        for number in range(producers):
            nursery.start_soon(produce, number)


@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 3), (3, 2), (0, 3)])
async def test_every_message_is_copied_once_and_lanes_keep_their_order(
    autojump_clock: MockClock, order: str, before: int, after: int
) -> None:
    """TD-08: keys, values, event times and headers too."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client, SOURCE, partitions=before)
        await client.create_topic(TARGET, after)
        options = ReplayOptions(order=order, verify=True)  # type: ignore[arg-type]
        report = await replay_into_topic(client, [SOURCE], TARGET, options)
        there, copy = await read(client, SOURCE), await read(client, TARGET)
        assert Counter(map(repr, map(told, copy))) == Counter(map(repr, map(told, there)))
        assert (report.messages, report.verified, report.repeated) == (len(there), True, 0)
        if before == after:
            assert {m.id.partition for m in copy} == {m.id.partition for m in there}
        for (partition, _), messages in lanes(there).items():
            if before == after:
                (own,) = [m for (p, _), m in lanes(copy).items() if p == partition]
                assert is_within(messages, own)
            keyed: dict[bytes | None, list[Told]] = {}
            for message in messages:
                keyed.setdefault(message[0], []).append(message)
            assert all(
                any(is_within(same, own) for own in lanes(copy).values()) for same in keyed.values()
            )
