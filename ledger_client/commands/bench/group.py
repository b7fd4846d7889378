"""``quire bench consume --group``: consumers of a group beside plain readers, in one run.

    idle      producers alone, then members             share of a core
    reading   reader, consumer, reader, consumer, ...   the same messages, in turn
    delay     reader, consumer, ...                     followers of one producer
    commits   one member, then many                     each commit is waited for
    acks      one member of a shared group              each message is acknowledged
    moving    a member joins, another one leaves        while messages come in every partition

A machine is never as fast twice. So each figure of a group is taken in turn with the figure that
it is compared with, and CPU time stands beside wall time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import NamedTuple, Unpack

import msgspec
import trio

from ledger_client.commands.bench import usage
from ledger_client.commands.bench.comparison import Commits, Delay, GroupResult, Idle, Pair
from ledger_client.commands.bench.disk import Floor
from ledger_client.commands.bench.load import Samples, send_many
from ledger_client.commands.bench.moving import Moved, measure_moving
from ledger_client.commands.sandbox import Sandbox
from ledger_client.groups.consumer import GroupConsumer, open_consumer
from ledger_client.groups.dead_letters import DeadLetters
from ledger_client.groups.feed_ticks import FeedTicks
from ledger_client.groups.heartbeats import SharedHeartbeats
from ledger_client.groups.options import ConsumerSettings
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.producing.producer_options import ProducerSettings
from ledger_client.topics.reading.options import ReadSettings
from ledger_client.topics.reading.reader import TopicReader, open_reader
from ledger_client.topics.topics import Topics

PARTS = 8
"""Measurements, for the progress bar."""
TOPIC = "bench/reading"
BATCH_SIZE = 1 << 20
COMMITTED_SIZE = 16
"""Bytes of the messages that are committed."""
COMMITS_MAX = 60_000
"""Commits in each measurement."""
SETTLE_S = 40.0
"""Until a cluster is idle after members have joined: the leader looks at their lag once more."""
READY_S = 60.0
LOOK_S = 0.05


class Access(NamedTuple):
    """What these measurements use of a client."""

    topics: Topics
    context: TopicContext
    heartbeats: SharedHeartbeats

    def producer(
        self, topic: str, **settings: Unpack[ProducerSettings]
    ) -> AbstractAsyncContextManager[Producer]:
        """As Client.producer()."""
        return topic_producer(self.context, topic, **settings)

    def reader(
        self, topic: str, **settings: Unpack[ReadSettings]
    ) -> AbstractAsyncContextManager[TopicReader]:
        """As Client.reader()."""
        return open_reader(self.context, topic, **settings)

    def consumer(
        self, topic: str, **settings: Unpack[ConsumerSettings]
    ) -> AbstractAsyncContextManager[GroupConsumer]:
        """As Client.consumer()."""
        return open_consumer(
            self.context, self.heartbeats, DeadLetters, FeedTicks, topic, **settings
        )


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    partitions: int
    message_size: int
    messages: int
    batch: int
    rate: float
    rate_s: float
    members: int
    group_partitions: int
    lanes: int
    rounds: int
    idle_s: float


async def measure_group(
    client: Access,
    sandbox: Sandbox,
    plan: GroupPlan,
    floor: Floor,
    on_part: Callable[[float], None],
) -> GroupResult:
    """Measure everything in turn; *on_part* gets the part that is done."""
    parts = count(1)

    def done() -> None:
        on_part(next(parts) / PARTS)

    idle = await _idle(client, sandbox, plan)  # first, as bookies look at the lag of all groups
    done()
    await _fill(client, plan)
    pairs: list[Pair] = []
    for read, poll in _WAYS:
        pairs.append(await _compare(client, plan, read, poll))
        done()
    objects, lists, batches = pairs
    delay = await _delay(client, plan)
    done()
    store_per_s = await _changes(client, plan.rate_s)
    many = max(plan.members, 64)
    commits = [await _commits(client, plan, *way) for way in ((1, 1), (1, 64), (many, 1))]
    done()
    join, leave = await _moving(client, plan)
    done()
    return GroupResult(
        copies=plan.bookies,
        message_size=plan.message_size,
        batch=plan.batch,
        objects=objects,
        lists=lists,
        batches=batches,
        delay=delay,
        rate=plan.rate,
        store_per_s=store_per_s,
        commits=commits,
        acks_per_s=await _acks(client, plan),
        join=join,
        leave=leave,
        idle=idle,
        floor=floor,
    )


# --- reading ----------------------------------------------------------------------------

Take = Callable[[], Awaitable[int]]
"""Takes some messages and returns their number."""


async def _fill(client: Access, plan: GroupPlan) -> None:
    await client.topics.create(TOPIC, plan.partitions, replication=plan.bookies)
    async with client.producer(
        TOPIC,
        access="exclusive",
        batch_messages=plan.batch,
        batch_bytes=max(BATCH_SIZE, plan.message_size),
    ) as producer:
        await send_many(producer, plan.message_size, plan.messages, arrow=False)


async def _read_objects(source: TopicReader | GroupConsumer, messages: int) -> Timer:
    timer = Timer()
    left = messages
    async for _ in source:
        timer.start(1)
        left -= 1
        if not left:
            break
    return timer.stopped(messages)


async def _read_lists(reader: TopicReader, messages: int) -> Timer:
    async def take() -> int:
        return len(await reader.next_messages())

    return await _read(take, messages)


async def _poll_lists(consumer: GroupConsumer, messages: int) -> Timer:
    async def take() -> int:
        return len(await consumer.poll())

    return await _read(take, messages)


async def _read_batches(reader: TopicReader, messages: int) -> Timer:
    batches = reader.read_batches()

    async def take() -> int:
        rows: int = (await anext(batches)).num_rows
        return rows

    return await _read(take, messages)


async def _poll_batches(consumer: GroupConsumer, messages: int) -> Timer:
    async def take() -> int:
        rows = 0
        for batch in await consumer.poll_batches():
            rows += batch.num_rows
        return rows

    return await _read(take, messages)


async def _read(take: Take, messages: int) -> Timer:
    timer = Timer()
    taken = 0
    while taken < messages:
        if some := await take():
            timer.start(some)
            taken += some
    return timer.stopped(messages)


_WAYS = (
    (_read_objects, _read_objects),
    (_read_lists, _poll_lists),
    (_read_batches, _poll_batches),
)


class Timer:
    """Wall and CPU time of the process for a message, of those after the first ones."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self.cpu_per_s = 0.0
        """messages in a second of CPU time"""
        self._first = 0

    def start(self, messages: int) -> None:
        """Count from now on, after these first messages, unless it counts already."""
        if not self._first:
            self._first = messages
            self._cpu_began = time.process_time()
            self._began = time.perf_counter()

    def stopped(self, messages: int) -> Timer:
        """Stop, after *messages* in all."""
        counted = messages - self._first
        self.per_s = counted / (time.perf_counter() - self._began)
        self.cpu_per_s = counted / max(time.process_time() - self._cpu_began, 1e-6)
        return self


async def _compare(
    client: Access,
    plan: GroupPlan,
    read: Callable[[TopicReader, int], Awaitable[Timer]],
    poll: Callable[[GroupConsumer, int], Awaitable[Timer]],
) -> Pair:
    import pyarrow  # noqa: F401 - keeps its import out of the measurement

    readers: list[Timer] = []
    groups: list[Timer] = []
    for _ in range(plan.rounds):
        async with client.reader(TOPIC, follow=True) as reader:
            readers.append(await read(reader, plan.messages))
        async with client.consumer(TOPIC, group=_new_group(), start="earliest") as consumer:
            groups.append(await poll(consumer, plan.messages))
    rounds = list(zip(readers, groups, strict=True))
    return Pair(
        reader_per_s=round(statistics.median(each.per_s for each in readers), 1),
        group_per_s=round(statistics.median(each.per_s for each in groups), 1),
        to_reader=_ratio([group.per_s / one.per_s for one, group in rounds]),
        cpu_to_reader=_ratio([one.cpu_per_s / group.cpu_per_s for one, group in rounds]),
    )


def _ratio(rounds: Sequence[float]) -> float:
    return round(statistics.median(rounds), 3)


_groups = count()


def _new_group() -> str:
    """Return the name of a group that does not exist yet."""
    return f"bench-{next(_groups)}"


# --- delay ------------------------------------------------------------------------------


async def _delay(client: Access, plan: GroupPlan) -> Delay:
    topic = "bench/delay"
    await client.topics.create(topic, replication=plan.bookies)
    reading, consuming = Samples(), Samples()
    messages = max(1, round(plan.rate * plan.rate_s / plan.rounds))
    async with client.producer(topic, access="exclusive") as producer:
        for _ in range(plan.rounds):
            async with client.reader(topic, follow=True, start="latest") as reader:
                await _follow(producer, reader, messages, plan, reading)
            async with client.consumer(topic, group=_new_group(), start="latest") as consumer:
                await _assigned(consumer, 1)
                await _follow(producer, consumer, messages, plan, consuming)
    one, group = reading.percentiles(), consuming.percentiles()
    return Delay(reader=one, group=group, p99_to_reader=round(group.p99_ms / one.p99_ms, 3))


async def _follow(
    producer: Producer,
    source: TopicReader | GroupConsumer,
    messages: int,
    plan: GroupPlan,
    samples: Samples,
) -> None:
    """Send at a fixed rate, and note when *source* returns each message."""

    async def take() -> None:
        left = messages
        async for message in source:
            sent_at = float((message.value or b"").partition(b" ")[0])
            samples.add(time.perf_counter() - sent_at)
            left -= 1
            if not left:
                break

    filling = b" " + bytes(max(plan.message_size - 20, 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        started = time.perf_counter()
        for number in range(messages):
            wait_s = started + number / plan.rate - time.perf_counter()
            if wait_s > 0:
                await trio.sleep(wait_s)
            nursery.start_soon(producer.send, b"%.9f" % time.perf_counter() + filling)


async def _assigned(consumer: GroupConsumer, partitions: int) -> None:
    """Wait until *consumer* has so many partitions. Raises trio.TooSlowError after a minute."""
    with trio.fail_after(READY_S):
        while True:
            if len(consumer.assignment()) == partitions:
                return
            await trio.sleep(LOOK_S)


# --- commits ----------------------------------------------------------------------------


async def _changes(client: Access, seconds: float) -> float:
    """Return how many changes of a row the store makes in a second, one after the other."""
    store = client.context.store
    made, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        await store.put("bench/row", b"x" * 300)
        made += 1
    made_s = time.perf_counter() - started
    await store.delete("bench/row")
    return round(made / made_s, 1)


async def _commits(client: Access, plan: GroupPlan, members: int, at_once: int) -> Commits:
    """Let each member commit messages of its partition, *at_once* at a time."""
    topic, group = f"bench/commits-{members}-{at_once}", _new_group()
    messages = COMMITS_MAX // members
    await client.topics.create(topic, members, replication=plan.bookies)
    async with client.producer(topic, access="exclusive") as producer:
        for partition in range(members):
            await producer.send_many([bytes(COMMITTED_SIZE)] * messages, partition=partition)
    async with AsyncExitStack() as stack:
        ready: list[tuple[GroupConsumer, list[Message]]] = []
        consumers = await _open_members(stack, client, topic, group, members)
        for consumer in consumers:
            await _assigned(consumer, 1)
            ready.append((consumer, await _polled(consumer, messages)))
        per_s = await _commit_all(ready, at_once, plan.rate_s)
    return Commits(members=members, at_once=at_once, per_s=round(per_s, 1))


async def _open_members(
    stack: AsyncExitStack, client: Access, topic: str, group: str, members: int
) -> Sequence[GroupConsumer]:
    consumers: list[GroupConsumer] = []
    for _ in range(members):
        opened = client.consumer(topic, group=group, start="earliest", auto_commit_s=None)
        consumers.append(await stack.enter_async_context(opened))
    return consumers


async def _polled(consumer: GroupConsumer, messages: int) -> list[Message]:
    found: list[Message] = []
    with trio.fail_after(READY_S):
        while len(found) < messages:
            found += await consumer.poll(messages_max=messages - len(found))
    return found


async def _commit_all(
    ready: Sequence[tuple[GroupConsumer, list[Message]]], at_once: int, seconds: float
) -> float:
    """Commit until the time is over, or all is committed; return commits a second."""
    done = 0
    started = time.perf_counter()

    async def commit(consumer: GroupConsumer, messages: Sequence[Message]) -> None:
        nonlocal done
        for message in messages:
            if time.perf_counter() - started > seconds:
                return
            await consumer.commit(message)
            done += 1

    async with trio.open_nursery() as nursery:
        for consumer, messages in ready:
            for first in range(at_once):
                nursery.start_soon(commit, consumer, messages[first::at_once])
    return done / (time.perf_counter() - started)


async def _acks(client: Access, plan: GroupPlan) -> float:
    """Return how many messages a second a member of a shared group takes and acknowledges."""
    settings: ConsumerSettings = {"group": _new_group(), "start": "earliest", "mode": "shared"}
    timer = Timer()
    left = plan.messages
    async with client.consumer(TOPIC, **settings) as consumer:
        async for message in consumer:
            timer.start(1)
            consumer.ack_nowait(message)
            left -= 1
            if not left:
                break
        await consumer.flush()
        return round(timer.stopped(plan.messages).per_s, 1)


# --- members come and go ----------------------------------------------------------------


async def _moving(client: Access, plan: GroupPlan) -> tuple[Moved, Moved]:
    topic, group = "bench/moving", _new_group()
    await client.topics.create(topic, plan.group_partitions, replication=plan.bookies)
    async with client.producer(topic, access="exclusive") as producer:
        return await measure_moving(
            lambda: client.consumer(topic, group=group, start="earliest"),
            lambda partition: producer.send_nowait(b"x", partition=partition),
            members=plan.members,
            partitions=plan.group_partitions,
            rate=plan.rate,
        )


# --- at rest ----------------------------------------------------------------------------


async def _idle(client: Access, sandbox: Sandbox, plan: GroupPlan) -> Idle:
    topic, group = "bench/idle", _new_group()
    partitions = plan.group_partitions
    await client.topics.create(topic, partitions, replication=plan.bookies)
    processes = [bookie.process_id for bookie in sandbox.bookies]
    async with AsyncExitStack() as stack:
        for _ in range(plan.lanes):
            producer = await stack.enter_async_context(client.producer(topic))
            async with trio.open_nursery() as nursery:
                for partition in range(partitions):
                    nursery.start_soon(partial(producer.send, b"x", partition=partition))
        alone = await _shares(processes, plan.idle_s)
        async with _waiting_members(stack, client, topic, group, plan):
            shares = await _shares(processes, plan.idle_s)
    return Idle(
        members=plan.members,
        lanes=plan.lanes * partitions,
        client_before=alone[0],
        client=shares[0],
        bookies_before=alone[1],
        bookies=shares[1],
    )


@asynccontextmanager
async def _waiting_members(
    stack: AsyncExitStack, client: Access, topic: str, group: str, plan: GroupPlan
) -> AsyncIterator[None]:
    """Let members read everything, and wait for more."""
    left = plan.lanes * plan.group_partitions
    done = trio.Event()

    async def consume(consumer: GroupConsumer) -> None:
        nonlocal left
        async for _ in consumer:
            left -= 1
            if left <= 0:
                done.set()

    consumers = await _open_members(stack, client, topic, group, plan.members)
    async with trio.open_nursery() as nursery:
        for consumer in consumers:
            nursery.start_soon(consume, consumer)
        with trio.fail_after(READY_S):
            await done.wait()
        yield
        nursery.cancel_scope.cancel()


async def _shares(processes: Sequence[int], seconds: float) -> tuple[float, float]:
    """Return the CPU time of this process and of the bookies, in per cent of wall time."""
    await trio.sleep(min(SETTLE_S, 2 * seconds))
    client_s, bookies_s, began = time.process_time(), usage.cpu_s(processes), time.perf_counter()
    await trio.sleep(seconds)
    wall_s = time.perf_counter() - began
    return (
        round(100 * (time.process_time() - client_s) / wall_s, 2),
        round(100 * (usage.cpu_s(processes) - bookies_s) / wall_s, 2),
    )
