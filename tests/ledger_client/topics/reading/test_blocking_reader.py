"""Reading topics from a thread without trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from laid_topic import TOPIC, LaidTopic, batches_of
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.blocking import BlockingClient
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
