"""What a member of a group had that went, and what another one is told of it."""

from __future__ import annotations

from typing import Literal

import pytest
import trio
from group_rig import ORDERS
from group_shares import share_of
from prometheus_client import CollectorRegistry

from ledger_client import Client, Gap, Message, MessageId
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.share import Share
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.shared import Shared
from ledger_client.groups.taking import Taking
from ledger_client.opening import Opening
from metadata.groups.assignment import Part
from metadata.groups.shares import ShareRecord
from metadata.store import Item
from metadata.topics import RollPolicy


def told(client: Client, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(client.metrics)
    return registry.get_sample_value(f"quire_client_{name}", {"topic": ORDERS})


class Left:
    """What a member that went had, in a topic of ledgers of three entries."""

    def __init__(self, client: Client, mode: str) -> None:
        self._client = client
        self._mode = mode
        self.had: list[Message] = []

    def consumer(self, on_gap: Literal["raise", "skip"] = "raise") -> Opening[GroupConsumer]:
        return self._client.consumer(
            ORDERS,
            group="billing",
            mode=self._mode,  # type: ignore[arg-type]
            start="earliest",
            on_gap=on_gap,
        )

    async def fill(self, partitions: int, count: int) -> None:
        """Let a member take *count* messages, and go."""
        await self._client.topics.delete(ORDERS)
        await self._client.topics.create(ORDERS, partitions, roll=RollPolicy(entries=3))
        async with self.consumer() as lost:
            await lost.poll(wait_s=5)
            async with self._client.producer(ORDERS, batching=False) as producer:
                for number in range(count):
                    await producer.send(b"%d" % number, key=b"k%d" % number)
            while len(self.had) < count:
                self.had += await lost.poll(wait_s=5)

    async def purge(self, count: int) -> None:
        """Remove all ledgers that are closed, after *count* more messages."""
        async with self._client.producer(ORDERS, batching=False) as producer:
            for number in range(count):
                await producer.send(b"later", key=b"z%d" % number)
            await self._client.topics.purge(ORDERS)

    def first(self, partition: int = -1) -> MessageId:
        """The first message that the member had, of a partition if there are several."""
        return min(each.id for each in self.had if partition in (-1, each.id.partition))


async def drained(consumer: GroupConsumer) -> tuple[list[Gap], list[Message]]:
    """Return what it raises, and what it hands out."""
    gaps, found = list[Gap](), list[Message]()
    for _ in range(20):
        try:
            batch = await consumer.poll(wait_s=1)
        except Gap as gap:
            gaps.append(gap)
        else:
            await consumer.ack(batch)
            found += batch
    return gaps, found


def slow_adoptions(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let it take a while to take over a share."""
    adopt = ShareRows.adopt

    async def slowly(self: ShareRows, item: Item, share: Share, rest: ShareRecord | None) -> bool:
        await trio.sleep(seconds)
        return await adopt(self, item, share, rest)

    monkeypatch.setattr(ShareRows, "adopt", slowly)


async def left_some(client: Client, left: Left, lost: int) -> None:
    """Let a member go that had *lost* messages of one key, which are removed, and five more.

    *lost*: a multiple of six.
    """
    await client.topics.delete(ORDERS)
    await client.topics.create(ORDERS, roll=RollPolicy(entries=6))
    async with left.consumer() as member, client.producer(ORDERS, batching=False) as producer:
        await member.poll(wait_s=5)
        for number in range(lost + 5):
            await producer.send(b"%d" % number, key=b"k")
            left.had += await member.poll(wait_s=5)
        await client.topics.purge(ORDERS)


def lose(consumer: GroupConsumer, *partitions: int) -> Taking:
    """Let a message of a lost member be gone in each partition; one look finds it."""
    delivery = consumer._delivery
    assert isinstance(delivery, Shared)
    (uid,) = delivery._partitions.feeds
    for partition in partitions:
        share = share_of("a", name=f"lost-{partition}", topic=uid)
        share.part = Part(uid, partition)
        share.messages = [None]
        gap = Gap(
            ORDERS,
            partition=partition,
            lane=0,
            position=MessageId(1, 0, partition, 0),
            first=None,
            missing=1,
        )
        delivery.miss(gap, share, share.lose([]))
        delivery._holdings.add(share)
    delivery.tell()
    return delivery._taking
