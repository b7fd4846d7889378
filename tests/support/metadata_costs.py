"""What lanes, rolls, followers, bookies and moves cost the store, counted on small clusters.

The client, the roles of bookies and their calls are the real ones. The store is one in memory that
counts, the bookies are fakes, and time is virtual, so a minute takes no minute and no figure
depends on the machine. Each is counted once in a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import NamedTuple

import trio
from memory_cluster import MemoryCluster, memory_cluster
from memory_store import MemoryStore
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from bookie.config import BookieConfig
from ledger_client import Producer, RollPolicy
from ledger_client.cluster.operations.rebalance import Rebalancer
from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.roles import run_roles
from metadata import store as contract
from metadata.groups.coordinator import Coordinator
from metadata.records import BookieRecord, encode_record
from metadata.time.timekeeper import Timekeeper

WARM_S = 40.0
"""Every task has settled into its routine by then."""
WINDOW_S = 120.0
TOPIC = "load/topic"


class Cost(NamedTuple):
    """What something costs the store. Fractions are averages."""

    changes: float = 0.0
    """keys and leases written"""
    commits: float = 0.0
    """transactions that must be durable; concurrent ones share a sync"""
    reads: float = 0.0
    """calls that read"""
    size: float = 0.0
    """bytes of values, both ways"""

    def per(self, count: float) -> Cost:
        return Cost(*(part / count for part in self))

    def times(self, count: float) -> Cost:
        return Cost(*(part * count for part in self))

    def plus(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Cost) -> Cost:
        return Cost(*(max(a - b, 0.0) for a, b in zip(self, other, strict=True)))


class CountingStore(MemoryStore):
    """Counts its calls, by name in *calls*."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.changed = self.commits = self.size = 0

    @property
    def cost(self) -> Cost:
        reads = sum(n for name, n in self.calls.items() if name in READS)
        return Cost(self.changed, self.commits, reads, self.size)

    async def get(self, key: str) -> contract.Versioned | None:
        found = await super().get(key)
        self._read("get", 0 if found is None else len(found.value))
        return found

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> contract.Page:
        page = await super().list(prefix, after=after, limit=limit)
        self._read("list", sum(len(found.value) for _, found in page))
        return page

    async def leases(self, prefix: str, *, after: str = "") -> contract.Leases:
        found = await super().leases(prefix, after=after)
        self._read("leases", sum(len(lease.value) for lease in found))
        return found

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> contract.Changes:
        found = await super().changes(prefix, since=since, wait_s=wait_s)
        self._read("changes", sum(map(len, found.keys)))
        return found

    async def now_ms(self) -> int:
        self._read("now_ms", 0)
        return await super().now_ms()

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        self._write("put", 1, len(value))
        return await super().put(key, value, expected=expected)

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        self._write("delete", 1, 0)
        await super().delete(key, expected=expected)

    async def transact(self, ops: Sequence[contract.Op]) -> contract.Versions:
        count = sum(isinstance(op, contract.Put | contract.Delete) for op in ops)
        size = sum(len(op.value) for op in ops if isinstance(op, contract.Put))
        if count:
            self._write("transact", count, size)
        else:
            self._read("transact", 0)
        return await super().transact(ops)

    async def next_id(self, counter: str, count: int = 1) -> int:
        self._write("next_id", 0, 0)
        return await super().next_id(counter, count)

    async def open_session(self, owner: str, *, ttl_s: float) -> contract.StoreSession:
        self._write("open_session", 0, 0)
        return await super().open_session(owner, ttl_s=ttl_s)

    async def keep_session(self, session: contract.StoreSession) -> None:
        self._write("keep_session", 0, 0)
        await super().keep_session(session)

    async def grant(
        self, name: str, session: contract.StoreSession, *, owner: str = "", value: bytes = b""
    ) -> contract.Lease:
        self._write("grant", 1, len(value))
        return await super().grant(name, session, owner=owner, value=value)

    async def update(self, lease: contract.Lease, value: bytes) -> contract.Lease:
        self._write("update", int(value != lease.value), len(value))
        return await super().update(lease, value)

    async def release(self, lease: contract.Lease) -> None:
        self._write("release", 1, 0)
        await super().release(lease)

    def _read(self, name: str, size: int) -> None:
        self.calls[name] += 1
        self.size += size

    def _write(self, name: str, changed: int, size: int) -> None:
        self.calls[name] += 1
        self.changed += changed
        self.commits += 1
        self.size += size


READS = {"get", "list", "leases", "changes", "now_ms"}


class Host:
    """A bookie as its roles see it."""

    limbo = False
    doubts = 0

    def __init__(self, bookie_id: str, store: contract.MetadataStore) -> None:
        self.bookie_id = bookie_id
        self.address = f"memory:{bookie_id[1:]}"
        self.figures = Figures()
        self.coordinator = Coordinator(store)
        self.timekeeper = Timekeeper(store)

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        return doubts is None


class Figures:
    leads = False
    marks = repaired = failed = copied_size = 0


@asynccontextmanager
async def small_cluster(bookies: int) -> AsyncIterator[MemoryCluster]:
    """Run a cluster with a store that counts."""
    async with memory_cluster(bookies) as cluster:
        store = CountingStore()
        store.bookies = cluster.store.bookies
        cluster.store = store
        yield cluster


def store_of(cluster: MemoryCluster) -> CountingStore:
    assert isinstance(cluster.store, CountingStore)
    return cluster.store


async def during(cluster: MemoryCluster, seconds: float) -> Cost:
    before = store_of(cluster).cost
    await trio.sleep(seconds)
    return store_of(cluster).cost.minus(before)


def run(measure: Callable[[], Awaitable[Cost]]) -> Cost:
    """Run *measure* in virtual time."""
    return trio.run(measure, clock=MockClock(autojump_threshold=0))


# --- lanes ------------------------------------------------------------------------------


@cache
def lanes_idle(lanes: int, *, followed: bool = False) -> Cost:
    """Return what so many open lanes of one client cost a second.

    *followed*: and another client that follows them. Each lane gets a message a second then, as
    followers of quiet ledgers rest: their bookies have all of them in one list.
    """

    async def measure() -> Cost:
        async with small_cluster(3) as cluster, cluster.client() as writer:
            await writer.topics.create(TOPIC, lanes, replication=2)
            async with writer.producer(TOPIC) as producer, trio.open_nursery() as nursery:
                for number in range(lanes):
                    await producer.send(b"x", partition=number)
                if followed:
                    nursery.start_soon(_follow, cluster)
                    nursery.start_soon(_send, producer, lanes)
                await trio.sleep(WARM_S)
                found = await during(cluster, WINDOW_S)
                nursery.cancel_scope.cancel()
        return found.per(WINDOW_S)

    return run(measure)


async def _send(producer: Producer, lanes: int) -> None:
    while True:
        for number in range(lanes):
            producer.send_nowait(b"x", partition=number)
        await trio.sleep(1)


async def _follow(cluster: MemoryCluster) -> None:
    async with cluster.client() as client, client.reader(TOPIC, follow=True) as reader:
        while True:
            await reader.next_messages()


@cache
def rolls(lanes: int, *, every_s: float = 30.0) -> Cost:
    """Return what so many lanes cost a second that each roll once in *every_s*."""

    async def measure() -> Cost:
        async with small_cluster(3) as cluster, cluster.client() as client:
            policy = RollPolicy(entries=1)
            await client.topics.create(TOPIC, lanes, replication=2, roll=policy)
            async with client.producer(TOPIC) as producer:
                for number in range(lanes):
                    await producer.send(b"x", partition=number)
                await trio.sleep(WARM_S)
                before = store_of(cluster).cost
                count = round(WINDOW_S / every_s)
                for _ in range(count):
                    for number in range(lanes):
                        await producer.send(b"x", partition=number)
                    await trio.sleep(every_s)
                found = store_of(cluster).cost.minus(before)
        return found.per(count * every_s)

    return run(measure)


# --- bookies ----------------------------------------------------------------------------


@cache
def bookies_idle(bookies: int) -> Cost:
    """Return what the roles of so many bookies, one of which leads, cost a second."""

    async def measure() -> Cost:
        async with small_cluster(bookies) as cluster, trio.open_nursery() as nursery:
            for name in cluster.bookies:
                nursery.start_soon(_roles, cluster, Host(name, cluster.store))
            await trio.sleep(WARM_S)
            found = await during(cluster, WINDOW_S)
            nursery.cancel_scope.cancel()
        return found.per(WINDOW_S)

    return run(measure)


async def _roles(cluster: MemoryCluster, host: Host) -> None:
    async with cluster.client() as client:
        registry = CollectorRegistry()
        context = client._context
        await run_roles(context, cluster.store, host, RepairOptions(), registry=registry)


@cache
def moves(ledgers: int) -> Cost:
    """Return what a rebalance over an added bookie costs a move, if there are so many ledgers."""

    async def measure() -> Cost:
        async with small_cluster(3) as cluster, cluster.client() as client:
            for _ in range(ledgers):
                async with client.ledgers.create(3, 3, 3) as ledger:
                    await ledger.append(bytes(1000))
            cluster.add_bookie(4)
            rebalancer = Rebalancer(client._context.ledgers, cluster.store)
            planned = (await rebalancer.look()).moves
            before = store_of(cluster).cost
            for move in planned:
                assert await rebalancer.make(move, on_copied=lambda _size: None)
            return store_of(cluster).cost.minus(before).per(len(planned))

    return run(measure)


def registration() -> Cost:
    """Return what a bookie costs a second: its session, its registration, a look at its mark."""
    looks = 3 / BookieConfig().lease_ttl_s
    record = BookieRecord("bookie-12345678", "10.0.0.1:3181", 1 << 40, 1 << 40, 1e6, rack="r1")
    return Cost(1, 2, 1, len(encode_record(record))).times(looks)
