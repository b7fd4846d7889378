"""Compaction by Spark, against a real cluster, a dictionary, and the same work without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import pytest
import trio
from never_twice import never_twice

import ledger_client
from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import LedgerError, MessagesLost
from ledger_client.jobs.compaction.job import Compaction, Runner
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.spark.compaction import SparkRunner
from ledger_client.topics.messages import Message
from ledger_client.topics.retention.holdings import read_set
from metadata.compaction import CompactedSet
from metadata.topics import RollPolicy
from native.latest import MEMORY_MIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

ROUTED, SPREAD = "c/routed", "c/spread"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        for name in (ROUTED, SPREAD):
            connected.topics.create(name, partitions=3, roll=RollPolicy(entries=15))
            send(connected, name, 1)
        yield connected


def send(client: BlockingClient, name: str, seed: int) -> None:
    """Two lanes in each partition; keys by hash, or all over the partitions."""
    chance = random.Random(seed)
    router: Literal["key", "round-robin"] = "key" if name == ROUTED else "round-robin"
    with (
        client.producer(name, producer_name="p", router=router, access="shared") as one,
        client.producer(name, router=router, access="shared") as other,
    ):
        for turn in range(60):
            for producer in (one, other):
                count = chance.choice([1, 5, 40])
                producer.send_many(
                    [chance.choice([b"", b"v%d" % turn, b"w" * 99]) for _ in range(count)],
                    keys=[
                        chance.choice([None, b"", b"k%d" % chance.randrange(300)])
                        for _ in range(count)
                    ],
                    event_times=[chance.choice([None, turn]) for _ in range(count)],
                )


def everything(client: BlockingClient, name: str, **settings: bool) -> list[Message]:
    with client.reader(name, **settings) as reader:  # type: ignore[arg-type]
        return list(reader)


def wanted(messages: list[Message], *, keyless: bool) -> list[Message]:
    """Return the latest of each key, by publish time, partition, lane and place."""
    latest: dict[bytes, tuple[tuple[int, ...], Message]] = {}
    orders: dict[tuple[int, int], int] = {}
    for message in messages:
        lane = message.id.partition, message.lane
        orders[lane] = max(orders.get(lane, 0), message.publish_time)
        mark = (orders[lane], *lane, message.version, message.id.batch_index)
        if message.key is not None and latest.get(message.key, ((), message))[0] < mark:
            latest[message.key] = mark, message
    found = [message for _, message in latest.values() if message.value]
    found += [each for each in messages if keyless and each.key is None]
    return sorted(found, key=place)


def place(message: Message) -> tuple[int, ...]:
    return message.id.partition, message.lane, message.version, message.id.batch_index


async def compacted(
    url: str, name: str, runner: Runner | None, *, drop: bool = True
) -> tuple[Compaction, CompactedSet]:
    async with ledger_client.connect(url) as client:
        if drop:
            await client.topics.drop_compacted(name)
        runner = runner or LocalRunner(client._context, memory_max=MEMORY_MIN)
        done = await client.topics.compact(name, runner=runner, null_keys="keep")
        topic = await client.topics.info(name)
        found = await read_set(client._context.store, topic.uid)
        assert found is not None
        return done, found.set


@pytest.mark.parametrize("name", [ROUTED, SPREAD])
@never_twice()
def test_spark_keeps_what_the_dictionary_has_and_what_one_process_keeps(
    spark: SparkSession, client: BlockingClient, url: str, name: str
) -> None:
    """PS-37: by partition, and across all where keys are anywhere."""
    runner = SparkRunner(lambda: spark, url)
    by_spark, _ = trio.run(partial(compacted, url, name, runner))
    expected = wanted(everything(client, name), keyless=True)
    assert len(expected) > 300
    assert sorted(everything(client, name, compacted=True), key=place) == expected
    by_one, _ = trio.run(partial(compacted, url, name, None))
    assert sorted(everything(client, name, compacted=True), key=place) == expected
    assert by_spark.report is not None
    assert by_one.report is not None
    for report in (by_spark.report, by_one.report):
        assert report.shuffled == (name == SPREAD)
        assert report.keys == len({each.key for each in expected if each.key is not None})
        assert report.messages_out == len(expected)
    assert (by_spark.report.engine, by_one.report.engine) == ("spark", "process")


@pytest.mark.parametrize("name", [ROUTED, SPREAD])
@never_twice()
def test_runs_over_runs_stay_the_dictionary(
    spark: SparkSession, client: BlockingClient, url: str, name: str
) -> None:
    """PS-37: the former set and what came since."""
    runner = SparkRunner(lambda: spark, url)
    for seed in (7, 8):
        trio.run(partial(compacted, url, name, runner, drop=False))
        send(client, name, seed)
    trio.run(partial(compacted, url, name, runner, drop=False))
    expected = wanted(everything(client, name), keyless=True)
    assert sorted(everything(client, name, compacted=True), key=place) == expected


def test_an_error_of_a_task_is_one_line(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """The set, and what it was made of, stay; what was staged is given up."""
    _, before = trio.run(partial(compacted, url, ROUTED, None))
    client.ledgers.delete(before.ledgers[0].ledger_id)
    send(client, ROUTED, 9)
    runner = SparkRunner(lambda: spark, url)
    with pytest.raises(LedgerError, match=r"^[^\n]*is gone[^\n]*--drop[^\n]*$") as told:
        trio.run(partial(compacted, url, ROUTED, runner, drop=False))
    assert not isinstance(told.value, MessagesLost) or told.value.ledger_id
    trio.run(partial(compacted, url, ROUTED, runner))
