"""One load on a topic, by one client library, in a process of its own.

    python peer_worker.py CLIENT HOST:PORT TOPIC LOAD COUNT SIZE

CLIENT and LOAD are keys of LOADS. It prints one line of JSON, an Outcome. The servers acknowledge
what they have synced to the disk. Clients have their default settings, but Kafka's gather 1 MiB or
5 ms for bulk.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

import ledger_client

TASKS = 1000
RATE = 1000
CHUNK = 20_000
FIRST = b"first"
"""Acknowledged and followed before any message is timed."""
BULK = {"linger_ms": 5, "batch_size": 1 << 20}


class Outcome(msgspec.Struct):
    """What a load gave; *acked_ms* and *followed_ms* only where each message is timed."""

    messages: int
    seconds: float = 0.0
    cpu_s: float = 0.0
    acked_ms: list[float] = []
    followed_ms: list[float] = []


Call = Callable[[str, str, int, int], Outcome]


class Stopwatch:
    """Runs from where it is made."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._cpu_began_s = time.process_time()

    def outcome(self, messages: int) -> Outcome:
        """Return what *messages* took until now."""
        seconds = time.perf_counter() - self.began
        return Outcome(messages, seconds, time.process_time() - self._cpu_began_s)

    def end(self, outcome: Outcome) -> Outcome:
        """Return *outcome* with the time until now."""
        ended = self.outcome(outcome.messages)
        outcome.seconds, outcome.cpu_s = ended.seconds, ended.cpu_s
        return outcome

    def until_due_s(self, number: int) -> float:
        """Return the seconds until message *number* is due, at RATE messages a second."""
        return self.began + number / RATE - time.perf_counter()


def percentile(times: list[float], part: float) -> float:
    """Return the time that *part* of *times* do not exceed; 0 if there are none."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] if times else 0.0


def value(size: int) -> bytes:
    """Return a value of *size* bytes that begins with the time, by this host's clock."""
    return time.perf_counter_ns().to_bytes(8, "big") + b"x" * (size - 8)


def age_ms(sent: bytes) -> float:
    """Return the milliseconds since value() made *sent*."""
    return (time.perf_counter_ns() - int.from_bytes(sent[:8], "big")) / 1e6


# --- quire -----------------------------------------------------------------------------------


def _with_client(load: Callable[..., Awaitable[Outcome]]) -> Call:
    def call(address: str, topic: str, count: int, size: int) -> Outcome:
        async def main() -> Outcome:
            async with ledger_client.connect(f"bookie://{address}") as client:
                return await load(client, topic, count, size)

        return trio.run(main)

    return call


async def _quire_produce(
    client: ledger_client.Client, topic: str, count: int, size: int
) -> Outcome:
    await client.topics.create(topic, 1, replication=1)
    values = [os.urandom(size) for _ in range(CHUNK)]
    async with client.producer(topic) as producer:
        watch = Stopwatch()
        for start in range(0, count, CHUNK):
            await producer.send_many(values[: count - start])
        return watch.outcome(count)


async def _quire_consume(
    client: ledger_client.Client, topic: str, count: int, size: int
) -> Outcome:
    async with client.reader(topic, start="earliest") as reader:
        watch = Stopwatch()
        found = 0
        async for message in reader:
            assert message.value is not None and len(message.value) == size
            found += 1
            if found == count:
                break
        return watch.outcome(found)


async def _quire_tasks(client: ledger_client.Client, topic: str, count: int, size: int) -> Outcome:
    await client.topics.create(topic, 1, replication=1)
    data = os.urandom(size)
    async with client.producer(topic) as producer:
        watch = Stopwatch()

        async def send() -> None:
            for _ in range(count // TASKS):
                await producer.send(data)

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(send)
        return watch.outcome(count // TASKS * TASKS)


async def _quire_paced(client: ledger_client.Client, topic: str, count: int, size: int) -> Outcome:
    await client.topics.create(topic, 1, replication=1)
    outcome = Outcome(count)
    async with (
        client.producer(topic) as producer,
        client.reader(topic, follow=True) as reader,
        trio.open_nursery() as nursery,
    ):

        async def follow(task_status: trio.TaskStatus[None]) -> None:
            async for message in reader:
                if message.value == FIRST:
                    task_status.started()
                    continue
                assert message.value is not None
                outcome.followed_ms.append(age_ms(message.value))
                if len(outcome.followed_ms) == count:
                    break

        async def send() -> None:
            sent = value(size)
            await producer.send(sent)
            outcome.acked_ms.append(age_ms(sent))

        await producer.send(FIRST)
        await nursery.start(follow)
        watch = Stopwatch()
        for number in range(count):
            if (wait_s := watch.until_due_s(number)) > 0:
                await trio.sleep(wait_s)
            nursery.start_soon(send)
    return watch.end(outcome)


# --- confluent-kafka ---------------------------------------------------------------------------


def _confluent(address: str, **settings: object) -> Any:  # noqa: ANN401 - it has no types
    import confluent_kafka

    return confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all", **settings})


def _confluent_reader(address: str, topic: str) -> Any:  # noqa: ANN401
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"group-{os.getpid()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    return consumer


def _confluent_create(address: str, topic: str) -> None:
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": address})
    client.create_topics([admin.NewTopic(topic, 1, 1)])[topic].result()


def _confluent_produce(address: str, topic: str, count: int, size: int) -> Outcome:
    _confluent_create(address, topic)
    settings = {"linger.ms": BULK["linger_ms"], "batch.size": BULK["batch_size"]}
    producer = _confluent(address, **settings)
    values = [os.urandom(size) for _ in range(CHUNK)]
    watch = Stopwatch()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % CHUNK])
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return watch.outcome(count)


def _confluent_consume(address: str, topic: str, count: int, size: int) -> Outcome:
    consumer = _confluent_reader(address, topic)
    found = 0
    watch = Stopwatch()
    while found < count:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None and len(message.value()) == size
            found += 1
    outcome = watch.outcome(found)
    consumer.close()
    return outcome


def _confluent_paced(address: str, topic: str, count: int, size: int) -> Outcome:
    _confluent_create(address, topic)
    outcome = Outcome(count)

    def follow() -> None:
        consumer = _confluent_reader(address, topic)
        while len(outcome.followed_ms) < count:
            message = consumer.poll(1.0)
            if message is not None and message.value() == FIRST:
                follows.set()
            elif message is not None:
                outcome.followed_ms.append(age_ms(message.value()))
        consumer.close()

    def acked(_error: object, message: Any) -> None:  # noqa: ANN401
        outcome.acked_ms.append(age_ms(message.value()))

    follows = threading.Event()
    producer = _confluent(address)
    producer.produce(topic, FIRST)
    producer.flush()
    follower = threading.Thread(target=follow)
    follower.start()
    follows.wait()
    watch = Stopwatch()
    for number in range(count):
        while (wait_s := watch.until_due_s(number)) > 0:
            producer.poll(wait_s)
        producer.produce(topic, value(size), on_delivery=acked)
    producer.flush()
    follower.join()
    return watch.end(outcome)


# --- aiokafka ----------------------------------------------------------------------------------


def _asyncio(load: Callable[[str, str, int, int], Awaitable[Outcome]]) -> Call:
    def call(address: str, topic: str, count: int, size: int) -> Outcome:
        async def main() -> Outcome:
            return await load(address, topic, count, size)

        return asyncio.run(main())

    return call


async def _aiokafka_produce(address: str, topic: str, count: int, size: int) -> Outcome:
    import aiokafka

    _confluent_create(address, topic)
    settings = {"linger_ms": BULK["linger_ms"], "max_batch_size": BULK["batch_size"]}
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=address, acks="all", **settings
    ) as producer:
        values = [os.urandom(size) for _ in range(CHUNK)]
        watch = Stopwatch()
        for number in range(count):
            await producer.send(topic, values[number % CHUNK], partition=0)
        await producer.flush()
        return watch.outcome(count)


async def _aiokafka_consume(address: str, topic: str, count: int, size: int) -> Outcome:
    import aiokafka

    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest"
    ) as consumer:
        watch = Stopwatch()
        found = 0
        async for message in consumer:
            assert len(message.value) == size
            found += 1
            if found == count:
                break
        return watch.outcome(found)


async def _aiokafka_tasks(address: str, topic: str, count: int, size: int) -> Outcome:
    import aiokafka

    _confluent_create(address, topic)
    data = os.urandom(size)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        watch = Stopwatch()

        async def send() -> None:
            for _ in range(count // TASKS):
                await producer.send_and_wait(topic, data, partition=0)

        await asyncio.gather(*(send() for _ in range(TASKS)))
        return watch.outcome(count // TASKS * TASKS)


async def _aiokafka_paced(address: str, topic: str, count: int, size: int) -> Outcome:
    import aiokafka

    _confluent_create(address, topic)
    outcome = Outcome(count)
    async with (
        aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer,
        aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=address, auto_offset_reset="earliest"
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        follows = asyncio.Event()

        async def follow() -> None:
            async for message in consumer:
                if message.value == FIRST:
                    follows.set()
                    continue
                outcome.followed_ms.append(age_ms(message.value))
                if len(outcome.followed_ms) == count:
                    break

        async def send() -> None:
            sent = value(size)
            await producer.send_and_wait(topic, sent, partition=0)
            outcome.acked_ms.append(age_ms(sent))

        await producer.send_and_wait(topic, FIRST, partition=0)
        tasks.create_task(follow())
        await follows.wait()
        watch = Stopwatch()
        for number in range(count):
            if (wait_s := watch.until_due_s(number)) > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(send())
    return watch.end(outcome)


LOADS: dict[str, dict[str, Call]] = {
    "quire": {
        "produce": _with_client(_quire_produce),
        "consume": _with_client(_quire_consume),
        "tasks": _with_client(_quire_tasks),
        "paced": _with_client(_quire_paced),
    },
    "confluent": {
        "produce": _confluent_produce,
        "consume": _confluent_consume,
        "paced": _confluent_paced,
    },
    "aiokafka": {
        "produce": _asyncio(_aiokafka_produce),
        "consume": _asyncio(_aiokafka_consume),
        "tasks": _asyncio(_aiokafka_tasks),
        "paced": _asyncio(_aiokafka_paced),
    },
}


def main() -> None:
    """Run the load that the command line names."""
    client, address, topic, load, count, size = sys.argv[1:]
    outcome = LOADS[client][load](address, topic, int(count), int(size))
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")


if __name__ == "__main__":
    main()
