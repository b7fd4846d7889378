"""What ``quire consume`` prints of topics that it finds on its way."""

from __future__ import annotations

import json
import math

import pytest
import trio
from group_rig import ORDERS, send, shop
from trio.testing import MockClock

from ledger_client.commands import consume
from ledger_client.commands.consume import ConsumeRequest, Printing, Settling
from ledger_client.commands.forms import MessageFields
from ledger_client.errors import BadSchema
from metadata.topics import TopicRecord


async def test_a_schema_that_cannot_be_opened_is_told_once_and_ends_nothing(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a topic that a pattern finds; of a named one it ends the command at once."""
    printed: list[bytes] = []

    async def keep(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        printed.extend(data.splitlines())

    def add(_fields: MessageFields, topic: TopicRecord) -> None:
        if topic.name == ORDERS:
            raise BadSchema("needs fastavro", topic=topic.name)

    monkeypatch.setattr(consume, "put", keep)
    monkeypatch.setattr(MessageFields, "add", add)
    async with shop(1) as (_, client):
        await client.topics.create("shop/other")
        order = ConsumeRequest("", ("shop/*",), math.inf, 4, None, True, 0)
        async with client.consumer("shop/*", group="billing", start="earliest") as consumer:
            await send(client, 0, 2)
            await send(client, 2, 3, "shop/other")
            await trio.sleep(5)
            await send(client, 3, 4)
            await Printing(client, consumer, Settling(consumer, is_shared=False), order).run()
        assert sorted(json.loads(line)["value"] for line in printed) == list("0123")
        assert capsys.readouterr().err.count("needs fastavro") == 1
        named = order._replace(topics=(ORDERS,))
        async with client.consumer(ORDERS, group="billing") as consumer:
            printing = Printing(client, consumer, Settling(consumer, is_shared=False), named)
            with pytest.raises(BadSchema):
                await printing.run()
