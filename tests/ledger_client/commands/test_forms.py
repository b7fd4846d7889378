"""Fields of values in what `quire read` writes."""

from __future__ import annotations

import io

import msgspec
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.commands.forms import MessageFields, put_arrow, put_json, put_text
from ledger_client.errors import BadSchema
from metadata.topics import Schema, TopicRecord

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "count", "type": "int"}, {"name": "key", "type": ["null", "string"]}],
}
SCHEMA = Schema(kind="avro", definition=msgspec.json.encode(AVRO).decode())


def order(count: int, key: str | None) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(AVRO), {"count": count, "key": key})
    return out.getvalue()


VALUES = [order(1, "a"), b"\xff", None, order(2, None)]
FIELDS = [{"count": 1, "key": "a"}, None, None, {"count": 2, "key": None}]


async def test_json_has_the_fields_of_a_value_and_null_for_one_that_is_none(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        plain = await client.topics.create("s/plain")
        topic = await client.topics.create("s/t", schema=SCHEMA)
        for name in ("s/t", "s/plain"):
            async with client.producer(name) as producer:
                await producer.send_many(VALUES, keys=[b"k"] * len(VALUES))
        out: list[bytes] = []

        async def put(data: bytes) -> None:
            out.append(data)

        fields = MessageFields([topic, plain])
        async with client.reader(["s/t", "s/plain"]) as reader:
            await put_json(reader, None, put, fields)
        lines = [msgspec.json.decode(line) for line in b"".join(out).splitlines()]
        assert [line["fields"] for line in lines if line["topic"] == "s/t"] == FIELDS
        assert not any("fields" in line for line in lines if line["topic"] == "s/plain")
        assert [line["value_base64"] for line in lines if "value_base64" in line] == ["/w=="] * 2


@pytest.mark.parametrize("both", [False, True])
async def test_an_arrow_stream_has_a_column_for_each_field_that_all_topics_have(
    autojump_clock: MockClock, both: bool
) -> None:
    """A field that is called as a column of every message gets a prefix, as in Spark."""
    async with memory_cluster(2) as cluster, cluster.client() as client:
        topics = [await client.topics.create("s/t", schema=SCHEMA)]
        topics += [await client.topics.create("s/plain")] if both else []
        async with client.producer("s/t") as producer:
            await producer.send_many(VALUES)
        out: list[bytes] = []

        async def put(data: bytes) -> None:
            out.append(data)

        async with client.reader([topic.name for topic in topics]) as reader:
            await put_arrow(reader, 3, put, MessageFields(topics))
        table = pa.ipc.open_stream(b"".join(out)).read_all()
        assert table["value"].to_pylist() == VALUES[:3]
        if both:
            assert "count" not in table.column_names
        else:
            assert table["count"].to_pylist() == [1, None, None]
            assert table["value_key"].to_pylist() == ["a", None, None]


async def test_text_is_the_values_as_they_are(autojump_clock: MockClock) -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        await client.topics.create("s/t", schema=SCHEMA)
        async with client.producer("s/t") as producer:
            await producer.send_many(VALUES)
        out: list[bytes] = []

        async def put(data: bytes) -> None:
            out.append(data)

        async with client.reader("s/t") as reader:
            await put_text(reader, None, put, MessageFields([]))
        assert b"".join(out) == b"".join((value or b"") + b"\n" for value in VALUES)


def test_a_schema_that_cannot_be_used_is_told_before_anything_is_read() -> None:
    broken = TopicRecord(name="s/t", uid=1, schema=Schema(kind="avro", definition="{}"))
    with pytest.raises(BadSchema, match="topic s/t"):
        MessageFields([broken])
