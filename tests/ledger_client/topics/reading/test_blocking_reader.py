"""Reading topics from a thread without trio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice

import pyarrow as pa
import pytest
from laid_topic import TOPIC, LaidTopic, batches_of
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.blocking import BlockingClient, BlockingTopicReader
from ledger_client.errors import Busy
from ledger_client.portal import Portal


@asynccontextmanager
async def client_of_a_topic() -> AsyncIterator[Client]:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, partitions=2)
        for partition in (0, 1):
            await topic.lane(partition).lay(*batches_of(f"{partition}.", [7] * 6))
        yield client


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    portal = Portal(client_of_a_topic)
    yield BlockingClient(portal, portal.value)
    portal.close()


EVERYTHING = [b"%d.%d" % (partition, i) for partition in (0, 1) for i in range(42)]


def test_messages_batches_and_positions(client: BlockingClient) -> None:
    with client.reader(TOPIC) as reader:
        got = [next(reader).value for _ in range(11)]
        position = reader.position()
        got += [next(reader).value for _ in range(3)]
        for batch in reader.read_batches(rows_min=10, rows_max=10):
            got += batch.column("value").to_pylist()
        assert sorted(got, key=str) == sorted(EVERYTHING, key=str)
        assert next(reader, None) is None
        reader.seek(position)
        assert len(list(reader)) == len(EVERYTHING) - 11
        assert reader.caught_up


def test_pausing_takes_back_what_was_brought_already(client: BlockingClient) -> None:
    with client.reader(TOPIC, follow=True) as reader:
        first = next(reader)
        reader.pause([first.id.partition])
        others = [next(reader) for _ in range(42)]
        assert {message.id.partition for message in others} == {1 - first.id.partition}
        reader.resume()
        rest = [next(reader) for _ in range(41)]
        assert [m.id.partition for m in rest] == [first.id.partition] * 41
        assert len({m.id for m in [first, *others, *rest]}) == 84


def taken_by_two(take: Callable[[], Sequence[bytes]]) -> tuple[list[bytes], int]:
    """Let two threads take until nothing comes; return what came, and how often one was refused."""
    found: list[bytes] = []
    refused: list[Busy] = []

    def run() -> None:
        while True:
            try:
                taken = take()
            except Busy as busy:
                refused.append(busy)
                continue
            if not taken:
                return
            found.extend(taken)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(run) for _ in range(2)]:
            each.result()
    return found, len(refused)


@pytest.mark.parametrize("by_the", ["message", "list", "batch"])
def test_what_two_threads_take_from_one_reader_comes_once(
    client: BlockingClient, by_the: str
) -> None:
    """One of them may be refused, but neither hangs, and nothing is lost between them."""
    for _ in range(5):
        with client.reader(TOPIC) as reader:
            batches = reader.read_batches(rows_min=1)

            def take(
                reader: BlockingTopicReader = reader,
                batches: Iterator[pa.RecordBatch] = batches,
            ) -> Sequence[bytes]:
                if by_the == "list":
                    return [message.value or b"" for message in reader.next_messages()]
                if by_the == "message":
                    return [message.value or b"" for message in islice(reader, 1)]
                batch = next(batches, None)
                return [] if batch is None else batch.column("value").to_pylist()

            found, _ = taken_by_two(take)
        assert sorted(found) == sorted(EVERYTHING)


def test_a_second_thread_that_takes_is_refused_and_the_first_goes_on(
    client: BlockingClient,
) -> None:
    with client.reader(TOPIC, follow=True) as reader, ThreadPoolExecutor(1) as threads:
        found = {next(reader).value for _ in EVERYTHING}
        position = reader.position()
        first = threads.submit(next, reader)
        while not reader._taker._lock.locked():
            time.sleep(0.001)  # until it waits
        with pytest.raises(Busy):
            next(reader)
        with pytest.raises(Busy):
            reader.next_messages()
        assert reader.position() == position
        reader.seek("earliest")
        assert first.result().value in found
