"""A user's program in all three surfaces, for a type checker that sees the installed package only.

.ci/run checks it against the wheel, and `pytest` against the sources. Nothing runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import ledger_client
from ledger_client import aio, blocking
from ledger_client.values import encode_json, json_decoder

CLUSTER = "bookie://127.0.0.1:3181"


async def with_trio() -> None:
    async with ledger_client.connect(CLUSTER) as client:
        assert_type(client, ledger_client.Client)
        await client.topics.create("shop/orders", partitions=4)
        async with client.producer("shop/orders", producer_name="till") as producer:
            assert_type(await producer.send(b"one", key=b"k"), ledger_client.MessageId)
        async with client.reader("shop/orders", follow=True) as reader:
            async for message in reader:
                assert_type(message, ledger_client.Message)
                assert_type(message.value, bytes | None)
                assert_type(message.key, bytes | None)
                assert_type(message.headers, Mapping[str, bytes])
        async with client.ledgers.create(ensemble_size=3) as ledger:
            assert_type(await ledger.append(b"an entry"), int)
        async with client.ledgers.open(ledger.id) as entries:
            assert_type(await entries.read(0, entries.last_confirmed), ledger_client.Entries)


async def with_asyncio() -> None:
    async with (
        aio.connect(CLUSTER) as client,
        client.consumer("shop/orders", group="billing") as consumer,
    ):
        async for message in consumer:
            assert_type(message, ledger_client.Message)


def with_threads() -> None:
    with blocking.connect(CLUSTER) as client, client.reader("shop/orders") as reader:
        for message in reader:
            assert_type(message.id, ledger_client.MessageId)


def with_objects() -> None:
    with blocking.connect(CLUSTER) as client:
        with client.producer("shop/orders", value_encoder=encode_json) as producer:
            assert_type(producer.send({"item": "pen"}), ledger_client.MessageId)
            producer.send_many([{"item": "ink"}, None])
        with client.reader("shop/orders", value_decoder=json_decoder(dict[str, str])) as reader:
            for message in reader:
                assert_type(message.value, bytes | None)
                assert_type(message.decoded, Any)
