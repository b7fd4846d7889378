"""A namespace is rebuilt in another one from what a consumer is told, with real bookies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import cluster

from ledger_client import TopicEvent, blocking
from ledger_client.blocking import BlockingClient

DEADLINE_S = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[BlockingClient]:
    with cluster(tmp_path, 3) as url, blocking.connect(url) as client:
        yield client


def send(client: BlockingClient, topic: str, *values: bytes) -> None:
    with client.producer(topic) as producer:
        producer.send_many(values)


def mirror(client: BlockingClient, until: int) -> list[str]:
    """Apply what is told to the namespace "copy"; return what was done, in order."""
    done: list[str] = []
    end = time.monotonic() + DEADLINE_S
    with client.consumer(
        namespace="shop", group="mirror", start="earliest", with_meta=True
    ) as consumer:
        while len(done) < until:
            assert time.monotonic() < end, done
            for message in consumer.poll():
                if isinstance(message, TopicEvent):
                    name = message.record.name.replace("shop/", "copy/")
                    if message.kind == "created":
                        client.topics.create(name, message.record.partitions)
                    elif message.kind == "deleted":
                        client.topics.delete(name)
                    done.append(f"{message.kind} {name}")
                else:
                    send(client, message.topic.replace("shop/", "copy/"), message.value or b"")
                    done.append((message.value or b"").decode())
            consumer.commit()
    return done


@pytest.mark.slow
def test_a_namespace_is_rebuilt_from_what_a_consumer_is_told(client: BlockingClient) -> None:
    """TD-02, TD-69: no message comes before its topic; a restart goes on where it stopped."""
    client.topics.create("shop/orders", 2)
    send(client, "shop/orders", b"1", b"2")
    client.topics.create("shop/returns")
    send(client, "shop/returns", b"3")
    first = mirror(client, 5)
    assert first.index("created copy/orders") < min(first.index("1"), first.index("2"))
    assert first.index("created copy/returns") < first.index("3")
    assert len(first) == 5
    client.topics.delete("shop/returns")
    client.topics.create("shop/refunds", 3)
    send(client, "shop/refunds", b"4")
    send(client, "shop/orders", b"5")
    second = mirror(client, 4)
    assert sorted(second) == ["4", "5", "created copy/refunds", "deleted copy/returns"]
    assert second.index("created copy/refunds") < second.index("4")
    copied = client.topics.list("copy")
    assert [(each.name, each.partitions) for each in copied] == [
        ("copy/orders", 2),
        ("copy/refunds", 3),
    ]
    with client.reader("copy/orders") as reader:
        assert sorted(message.value or b"" for message in reader) == [b"1", b"2", b"5"]
