"""Groups under random trouble: members come, go and hang, leaders change, the store is away."""

from __future__ import annotations

import pytest
import trio
from member_storm import MemberStorm
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client import Client, LedgerError
from ledger_client.groups.consumer import GroupConsumer
from metadata.groups.assignment import Part
from metadata.groups.rows import (
    GROUP_MEMBERS,
    PROGRESS,
    decode_member,
    decode_progress,
    member_key,
    parts_of,
)
from metadata.store import Versioned

TOPIC = "shop/orders"
PARTITIONS = 6
CALM_S = 60.0


class Watcher:
    """Checks each commit when it is made, and notes what was delivered."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.delivered: set[int] = set()
        self.commits = 0
        self._cluster = cluster
        self._places: dict[str, dict[int, tuple[int, int, int]]] = {}
        cluster.store.on_change = self.see

    def see(self, key: str, value: Versioned | None) -> None:
        if key.startswith(GROUP_MEMBERS):
            self.check_owners()
        if not key.startswith(PROGRESS) or value is None:
            return
        self.commits += 1
        row = decode_progress(key, value.value)
        _, group, uid, partition = key.split("/")
        part = Part(int(uid), int(partition) - 1)
        owner = self._cluster.store.values[member_key(group, row.member)]
        assert part in parts_of(decode_member(key, owner.value).parts), "it is not the owner's"
        places = {each.lane: (each.number, each.entry, each.skip) for each in row.lanes}
        for lane, place in self._places.get(key, {}).items():
            assert places[lane] >= place, "progress went back"
        self._places[key] = places

    def check_owners(self) -> None:
        rows = [
            decode_member(key, found.value)
            for key, found in self._cluster.store.values.items()
            if key.startswith(GROUP_MEMBERS)
        ]
        owned = [part for row in rows for part in parts_of(row.parts)]
        assert len(owned) == len(set(owned)), "two members have one partition"


class Storm(MemberStorm):
    """Random trouble for a group, drawn from a seed."""

    def __init__(self, cluster: MemoryCluster, client: Client, seed: int) -> None:
        super().__init__(cluster, seed)
        self.client = client
        self.watcher = Watcher(cluster)
        self.sent = 0

    async def send(self) -> None:
        count = self.chance.randrange(1, 30)
        async with self.client.producer(TOPIC) as producer:
            for number in range(self.sent, self.sent + count):
                await producer.send(b"%d" % number, key=b"%d" % number)
        self.sent += count

    async def consume(self, leaves: bool) -> None:
        """Consume until cancelled; without *leaves*, fall silent as a killed process does."""
        with trio.CancelScope() as scope:
            self.living.append(scope)
            try:
                async with (
                    self.cluster.client() as client,
                    client.consumer(
                        TOPIC, group="billing", start="earliest", auto_commit_s=2
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
                    values = await self.ask(consumer)
                    if not self.is_over and self.chance.random() < 0.1:
                        await trio.sleep(self.chance.uniform(0, 15))
                    self.watcher.delivered |= {int(value or b"") for value in values}
                    await self.commit(consumer)
                except LedgerError:
                    await trio.sleep(0.5)
        finally:
            if scope.cancel_called and not leaves:
                consumer._membership._heartbeats.remove(consumer._membership.pulse)
                consumer._membership.is_member = False

    async def ask(self, consumer: GroupConsumer) -> list[bytes | None]:
        """Return the values of messages, by one of the ways to get them."""
        way = self.chance.randrange(4)
        if way == 0:
            batches = await consumer.poll_batches(
                wait_s=2, messages_max=self.chance.choice([3, 99])
            )
            return [value for batch in batches for value in batch.column("value").to_pylist()]
        if way == 1:
            values: list[bytes | None] = []
            with trio.move_on_after(2):
                values.append((await anext(consumer)).value)
            return values
        messages = await consumer.poll(wait_s=2, messages_max=self.chance.choice([3, 4096]))
        if way == 2 and self.chance.random() < 0.2:
            consumer.take_back()
            return []
        return [message.value for message in messages]

    async def commit(self, consumer: GroupConsumer) -> None:
        """Commit what was delivered, or leave that to the consumer."""
        way = self.chance.randrange(6)
        if way == 0:
            with trio.move_on_after(self.chance.choice([0.01, 5])):
                await consumer.commit()
        elif way == 1:
            consumer.commit_nowait()


@pytest.mark.parametrize("seed", drawn(range(3)))
async def test_everything_is_delivered_and_only_owners_commit(
    autojump_clock: MockClock, seed: int
) -> None:
    """TD-17; invariants 11, 12 and 13."""
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, PARTITIONS)
        storm = Storm(cluster, client, seed)
        async with trio.open_nursery() as nursery:
            await storm.run(nursery)
            end = trio.current_time() + CALM_S
            while len(storm.watcher.delivered) < storm.sent:
                assert trio.current_time() < end, "the group is stuck"
                if not storm.living:
                    nursery.start_soon(storm.consume, True)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert storm.watcher.delivered == set(range(storm.sent))
        assert storm.watcher.commits > 10
