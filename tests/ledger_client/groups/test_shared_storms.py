"""Shared groups under random trouble: no message is lost, none is with two members at once."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
import trio
from member_storm import MemberStorm
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client import Client, LedgerError, Message
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.share import Share, State
from metadata.groups.shares import SHARES, decode_share
from metadata.store import Versioned

TOPIC = "shop/orders"
DEAD = "shop/mail.dead"
PARTITIONS = 3
CALM_S = 120.0
DELIVERIES_MAX = 4
Mode = Literal["shared", "key-shared"]
Place = tuple[int, int]
"""ledger id and entry id: each message has an entry of its own"""


class Watcher:
    """Compares what the rows hold with what members were handed and acknowledged."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.sent: dict[int, Place] = {}
        self.handed = Counter[int]()
        self.counts: dict[int, list[int]] = {}
        """how often each message was delivered, as its members were told"""
        self.acknowledged: set[int] = set()
        """acknowledged, or that was tried"""
        self.poison: set[int] = set()
        self._cluster = cluster
        self._held: set[Place] = set()
        """messages that some member had"""
        self.given_up: set[Place] = set()
        """messages whose last delivery was counted, though perhaps not made: its member was lost"""
        cluster.store.on_change = self.note

    def note(self, key: str, found: Versioned | None) -> None:
        if not key.startswith(SHARES) or found is None:
            return
        record = decode_share(key, found.value)
        share = Share(record, "", is_blind=False)
        for index, count in record.tries.items():
            if count == DELIVERIES_MAX:
                entry = record.entry + share_entry(share, index)
                self.given_up.add((record.ledger_id, entry))

    def see(self, consumer: GroupConsumer, messages: list[Message]) -> None:
        for message in messages:
            number = int(message.value or b"")
            self.handed[number] += 1
            self.counts.setdefault(number, []).append(consumer.deliveries(message))

    def check(self) -> None:
        """Between two transactions, a message that was taken is in one share, or done."""
        held = Counter[Place]()
        for key, found in self._cluster.store.values.items():
            if key.startswith(SHARES):
                record = decode_share(key, found.value)
                share = Share(record, "", is_blind=False)
                for index in share.in_state(State.READY):
                    held[record.ledger_id, record.entry + share_entry(share, index)] += 1
        assert set(held.values()) <= {1}, "two members have one message"
        self._held |= held.keys()
        done = {self.sent[number] for number in self.done()}
        assert self._held - held.keys() <= done, "a message that nobody acknowledged is gone"

    def done(self) -> set[int]:
        """Return what was acknowledged, or may be a dead letter."""
        given_up = {number for number, place in self.sent.items() if place in self.given_up}
        return self.acknowledged | given_up

    def check_counts(self) -> None:
        for number, told in self.counts.items():
            assert told == sorted(set(told)), "deliveries are counted wrong"
            assert told[-1] <= DELIVERIES_MAX
            assert told[-1] >= self.handed[number], "a delivery was not counted"


def share_entry(share: Share, index: int) -> int:
    return next(at for at, first in enumerate(share.first) if first > index) - 1


class Storm(MemberStorm):
    """Random trouble for a shared group, drawn from a seed."""

    MEMBERS = 4

    def __init__(self, cluster: MemoryCluster, client: Client, seed: int, mode: Mode) -> None:
        super().__init__(cluster, seed)
        self.client = client
        self.mode: Mode = mode
        self.watcher = Watcher(cluster)

    async def send(self) -> None:
        watcher, first = self.watcher, len(self.watcher.sent)
        async with self.client.producer(TOPIC, batching=False) as producer:
            for number in range(first, first + self.chance.randrange(1, 30)):
                if self.chance.random() < 0.02:
                    watcher.poison.add(number)
                sent = await producer.send(b"%d" % number, key=b"%d" % (number % 40))
                watcher.sent[number] = (sent.ledger_id, sent.entry_id)

    def left(self) -> str:
        """Say what is not done."""
        watcher, values = self.watcher, self.cluster.store.values
        missing = sorted(watcher.sent.keys() - watcher.done())
        shares = [f"{key}: {found.value!r}" for key, found in values.items() if SHARES in key]
        places = [(number, watcher.sent[number]) for number in missing]
        return f"{places} of {len(watcher.sent)}, {len(self.living)} members, {shares}"

    async def look(self) -> None:
        while True:
            await trio.sleep(0.05)
            self.watcher.check()

    async def consume(self, leaves: bool) -> None:
        """Consume until cancelled; without *leaves*, fall silent as a killed process does."""
        with trio.CancelScope() as scope:
            self.living.append(scope)
            try:
                async with (
                    self.cluster.client() as client,
                    client.consumer(
                        TOPIC,
                        group="mail",
                        mode=self.mode,
                        start="earliest",
                        deliveries_max=DELIVERIES_MAX,
                        ack_timeout_s=20,
                        unacked_max=50,
                    ) as consumer,
                ):
                    await self.take(consumer, scope, leaves=leaves)
            except* LedgerError:
                pass
            finally:
                self.living.remove(scope)

    async def take(self, consumer: GroupConsumer, scope: trio.CancelScope, *, leaves: bool) -> None:
        try:
            while True:
                try:
                    messages = await consumer.poll(wait_s=2, messages_max=5)
                    self.watcher.see(consumer, messages)
                    for message in messages:
                        await self.work_on(consumer, message)
                except LedgerError:
                    await trio.sleep(0.5)
        finally:
            if scope.cancel_called and not leaves:
                consumer._membership._heartbeats.remove(consumer._membership.pulse)
                consumer._membership.is_member = False
                consumer._shared._taking.stop()
                consumer._shared._holdings.clear()

    async def work_on(self, consumer: GroupConsumer, message: Message) -> None:
        number = int(message.value or b"")
        await trio.sleep(self.chance.uniform(0, 0.3))
        if number in self.watcher.poison or self.chance.random() < 0.05:
            consumer.nack(message, delay_s=self.chance.uniform(0, 3))
        elif self.chance.random() < 0.02:
            pass  # its time runs out
        else:
            self.watcher.acknowledged.add(number)
            await consumer.ack(message)


@pytest.mark.parametrize(
    ("seed", "mode"), [*zip(drawn(range(2)), ["shared", "key-shared"], strict=True)]
)
async def test_no_message_is_lost_and_none_is_with_two_members(
    autojump_clock: MockClock, seed: int, mode: Mode
) -> None:
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, PARTITIONS)
        storm = Storm(cluster, client, seed, mode)
        watcher = storm.watcher
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storm.look)
            await storm.run(nursery)
            end = trio.current_time() + CALM_S
            while [key for key in cluster.store.values if key.startswith(SHARES)] or (
                len(watcher.done()) < len(watcher.sent)
            ):
                assert trio.current_time() < end, f"the group is stuck: {storm.left()}"
                if not storm.living:
                    nursery.start_soon(storm.consume, True)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        watcher.check_counts()
        letters: list[Message] = []
        if any(topic.name == DEAD for topic in await client.topics.list()):
            async with client.producer(DEAD, access="take-over"):
                pass  # it closes what members left open that were lost
            async with client.reader(DEAD, end="latest") as reader:
                letters = [message async for message in reader]
        dead = {int(letter.value or b"") for letter in letters}
        assert watcher.poison <= dead
        assert {watcher.sent[number] for number in dead} <= watcher.given_up
        for letter in letters:
            assert letter.headers["quire-dead-deliveries"] == b"%d" % DELIVERIES_MAX
