"""The encoders and decoders that are there, and values in every surface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from group_rig import ORDERS, shop
from loop_rig import Program, run
from trio.testing import MockClock

from ledger_client import BadValue, Client, Message
from ledger_client.aio import AioClient
from ledger_client.blocking import BlockingClient
from ledger_client.groups.turns import TopicEvent
from ledger_client.portal import Portal
from ledger_client.values import (
    decode_json,
    decode_text,
    encode_json,
    encode_text,
    json_decoder,
)

TOPIC = "shop/orders"
__all__ = ["run"]  # a fixture


class Order(msgspec.Struct, frozen=True):
    item: str
    count: int


PEN, INK = Order("pen", 2), Order("ink", 1)


def test_text_and_json_are_there_and_back() -> None:
    assert encode_text("zwölf") == "zwölf".encode()
    assert decode_text(encode_text("zwölf")) == "zwölf"
    assert encode_json(PEN) == b'{"item":"pen","count":2}'
    assert decode_json(encode_json(PEN)) == {"item": "pen", "count": 2}
    assert json_decoder(Order)(encode_json(PEN)) == PEN
    assert json_decoder(list[int])(b"[1]") == [1]


def test_what_cannot_be_encoded_or_decoded_is_named() -> None:
    with pytest.raises(TypeError, match=r"encode_text takes a str, not 5 \(int\)"):
        encode_text(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="object"):
        encode_json(object())
    with pytest.raises(msgspec.ValidationError, match="count"):
        json_decoder(Order)(b'{"item": "pen"}')
    with pytest.raises(TypeError, match="not supported"):
        json_decoder(object())  # type: ignore[arg-type]


# --- readers and consumers -------------------------------------------------------------


async def test_a_value_that_cannot_be_decoded_fails_alone(autojump_clock: MockClock) -> None:
    """Where it is used, with its message's topic and id; the reader goes on."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([encode_json(PEN), b"{", None])
        async with client.reader(ORDERS, value_decoder=json_decoder(Order)) as reader:
            first, bad, null = [message async for message in reader]
        assert (first.decoded, null.decoded) == (PEN, None)
        assert first.value == encode_json(PEN)
        sentence = f"topic {ORDERS}: the value of message {bad.id} cannot be decoded: DecodeError: "
        for _ in range(2):
            with pytest.raises(BadValue) as refused:
                _ = bad.decoded
            assert str(refused.value).startswith(sentence)
            assert refused.value.message_id == bad.id
            assert isinstance(refused.value.__cause__, msgspec.DecodeError)


async def test_without_a_decoder_a_message_says_so(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send(b"a")
        async with client.reader(ORDERS) as reader:
            message = await anext(reader)
        with pytest.raises(BadValue, match="has no decoder: read it with value_decoder="):
            _ = message.decoded


async def test_messages_are_decoded_after_a_seek_and_within_a_batch(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(5)])
        async with client.reader(ORDERS, value_decoder=int) as reader:
            assert (await anext(reader)).decoded == 0
            assert [each.decoded for each in await reader.next_messages(2)] == [1, 2]
            (batch,) = [batch async for batch in reader.read_batches()]
            assert batch.column("value").to_pylist() == [b"3", b"4"]
            await reader.seek("earliest")
            assert [message.decoded async for message in reader] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "key-shared"])
async def test_a_consumer_decodes(autojump_clock: MockClock, mode: Any) -> None:  # noqa: ANN401
    """However it takes messages; decoded ones are committed and acknowledged as others are."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS, value_encoder=encode_json) as producer:
            await producer.send_many([PEN, INK, None])
        async with client.consumer(
            ORDERS, group="g", mode=mode, start="earliest", value_decoder=json_decoder(Order)
        ) as consumer:
            messages = [await anext(consumer)]
            while len(messages) < 3:
                messages += await consumer.poll(messages_max=1)
            assert [message.decoded for message in messages] == [PEN, INK, None]
            for message in messages:
                await (consumer.commit(message) if mode == "exclusive" else consumer.ack(message))
        async with client.consumer(ORDERS, group="g", mode=mode) as consumer:
            assert await consumer.poll(wait_s=40) == []


async def test_events_of_topics_are_not_decoded(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send(b"5")
        async with client.consumer(
            ORDERS, group="g", start="earliest", with_meta=True, value_decoder=int
        ) as consumer:
            event, message = await anext(consumer), await anext(consumer)
        assert isinstance(event, TopicEvent)
        assert (event.kind, message.decoded) == ("created", 5)


async def test_a_hook_that_is_no_function_is_named(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        sentence = r"value_decoder takes a function of one argument, or None, not 'json' \(str\)"
        with pytest.raises(TypeError, match=sentence):
            async with client.reader(ORDERS, value_decoder="json"):  # type: ignore[arg-type]
                pass
        with pytest.raises(TypeError, match=sentence):
            async with client.consumer(
                ORDERS,
                group="g",
                value_decoder="json",  # type: ignore[arg-type]
            ):
                pass
        with pytest.raises(TypeError, match=r"value_encoder takes a function .*, not 5 \(int\)"):
            async with client.producer(ORDERS, value_encoder=5):  # type: ignore[arg-type]
                pass


# --- other surfaces --------------------------------------------------------------------


def values(messages: list[Message]) -> list[object]:
    return [message.decoded for message in messages]


def test_asyncio_encodes_and_decodes(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, value_encoder=encode_json) as producer:
            await producer.send(PEN)
            await producer.send_nowait(INK).message_id()
            await producer.send_many([None, PEN])
            with pytest.raises(TypeError, match="object"):
                await producer.send(object())
            await producer.send(INK)
        async with client.reader(TOPIC, value_decoder=json_decoder(Order)) as reader:
            found = [message async for message in reader]
        assert values(found) == [PEN, INK, None, PEN, INK]

    run(program)


@asynccontextmanager
async def client_and_cluster() -> AsyncIterator[Client]:
    async with shop(1) as (_, client):
        yield client


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    portal = Portal(client_and_cluster)
    yield BlockingClient(portal, portal.value)
    portal.close()


def test_threads_encode_and_decode(client: BlockingClient) -> None:
    with client.producer(TOPIC, value_encoder=encode_json) as producer:
        producer.send(PEN)
        producer.send_nowait(INK).message_id()
        producer.send_many([None, PEN])
        with pytest.raises(TypeError, match="object"):
            producer.send(object())
        producer.send(INK)
    with client.reader(TOPIC, value_decoder=json_decoder(Order)) as reader:
        assert values(list(reader)) == [PEN, INK, None, PEN, INK]
    with client.consumer(
        TOPIC, group="g", start="earliest", value_decoder=json_decoder(Order)
    ) as consumer:
        assert values([next(consumer), next(consumer)]) == [PEN, INK]
