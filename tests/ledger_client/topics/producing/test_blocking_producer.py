"""Producing without trio, over a real thread that runs a cluster in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import pyarrow as pa
import pytest
from ctrl_c import ctrl_c_when
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.blocking import BlockingClient
from ledger_client.errors import NoSuchTopic, NotSent, ProducerBusy, ProducerClosed, SendUnknown
from ledger_client.portal import Portal

TOPIC = "shop/orders"


@asynccontextmanager
async def client_and_cluster() -> AsyncIterator[Client]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        yield client


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    client.topics.create(TOPIC)
    yield client
    portal.close()


def values(client: BlockingClient) -> list[bytes | None]:
    with client.reader(TOPIC) as reader:
        return [message.value for message in reader]


def test_a_send_may_have_a_time_limit(client: BlockingClient) -> None:
    with client.producer(TOPIC, buffer_bytes=100) as producer:
        producer.send(b"a", timeout_s=30)
        with pytest.raises((NotSent, SendUnknown)) as late:  # as the lane was busy, or not
            producer.send(b"b", timeout_s=0)
        producer.send(b"c")
    was_handed_over = isinstance(late.value, SendUnknown)
    assert values(client) == ([b"a", b"b", b"c"] if was_handed_over else [b"a", b"c"])


def test_all_ways_of_sending(client: BlockingClient) -> None:
    with client.producer(TOPIC, producer_name="p") as producer:
        first = producer.send(b"a", key=b"k", headers={"h": b"v"})
        ticket = producer.send_nowait(b"b", event_time=1)
        assert ticket.sequence == 1
        ids = [first, ticket.message_id(), *producer.send_many(pa.array([b"c", b"d"]))]
        assert ticket.done
        assert producer.last_sequence() == 3
        producer.send_nowait(b"e")
        producer.flush()
        assert producer.topic == TOPIC
    with client.reader(TOPIC) as reader:
        found = list(reader)
    assert [message.value for message in found] == [b"a", b"b", b"c", b"d", b"e"]
    assert [message.id for message in found[:4]] == ids
    with pytest.raises(ProducerClosed):
        producer.send(b"late")


def test_what_is_not_durable_at_the_end_of_the_block_is_flushed(client: BlockingClient) -> None:
    with client.producer(TOPIC, linger_ms=60_000) as producer:
        producer.send_nowait(b"a")
    assert values(client) == [b"a"]


def test_several_threads_share_a_producer_and_its_batches(client: BlockingClient) -> None:
    with client.producer(TOPIC) as producer, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(producer.send, [b"%d" % number for number in range(200)]))
    assert len(set(ids)) == 200
    assert sorted(values(client), key=lambda value: int(value or b"")) == [
        b"%d" % number for number in range(200)
    ]


def test_errors_are_those_of_the_client(client: BlockingClient) -> None:
    with pytest.raises(NoSuchTopic), client.producer("shop/none"):
        pass
    with (
        client.producer(TOPIC, access="exclusive"),
        pytest.raises(ProducerBusy),
        client.producer(TOPIC, access="exclusive"),
    ):
        pass


def test_an_error_of_the_block_comes_out_as_it_is(client: BlockingClient) -> None:
    with pytest.raises(ZeroDivisionError), client.producer(TOPIC) as producer:
        producer.send(b"a")
        raise ZeroDivisionError
    with client.producer(TOPIC, access="exclusive") as producer:  # the lane is free
        producer.send(b"b")
    assert values(client) == [b"a", b"b"]


def test_ctrl_c_ends_the_block_and_leaves_the_client_usable(client: BlockingClient) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        client.producer(TOPIC, linger_ms=60_000) as producer,
        ctrl_c_when(partial(time.sleep, 0.3)),
    ):
        producer.send(b"waits for its batch")
    with client.producer(TOPIC) as producer:
        producer.send(b"after")
    assert values(client)[-1] == b"after"


def test_a_client_that_is_closed_ends_its_producers() -> None:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    client.topics.create(TOPIC)
    with pytest.raises(RuntimeError, match="closed"), client.producer(TOPIC) as producer:
        producer.send(b"a")
        portal.close()
        producer.send(b"b")
