"""Messages as bytes for standard output: lines, JSON objects, an Arrow stream."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from ledger_client.commands.message_fields import MessageFields
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.reader import TopicReader

if TYPE_CHECKING:
    import pyarrow as pa

    from ledger_client.topics.reading.arrow_runs import RecordBatches

Put = Callable[[bytes], Awaitable[None]]
Form = Callable[[TopicReader, int | None, Put, MessageFields], Awaitable[None]]
"""Reads up to so many messages and puts them."""

_encoder = msgspec.json.Encoder()


async def put_text(
    reader: TopicReader, limit: int | None, put: Put, _fields: MessageFields
) -> None:
    """Put the values, each with a newline behind it; null is an empty line."""
    async for messages in _messages(reader, limit):
        await put(text_of(messages))


async def put_json(reader: TopicReader, limit: int | None, put: Put, fields: MessageFields) -> None:
    """Put an object on a line for each message.

    What is no UTF-8 stands in base64 under a name that ends with _base64. Where an Avro or
    protobuf schema says what values are, "fields" has them decoded, null where they are not that.
    """
    async for messages in _messages(reader, limit):
        await put(json_of(messages, fields))


async def put_arrow(
    reader: TopicReader, limit: int | None, put: Put, fields: MessageFields
) -> None:
    """Put an Arrow IPC stream; cut short by a cancellation it is one all the same.

    Fields of an Avro or protobuf schema that all topics share are columns.
    """
    from ledger_client.topics.arrow import SCHEMA

    schema = fields.schema(SCHEMA)
    async with arrow_stream(put, schema) as write:
        async for batch in _cut(reader.read_batches(), limit):
            await write(fields.extend(batch, schema))


FORMS: dict[str, Form] = {"text": put_text, "json": put_json, "arrow": put_arrow}


def text_of(messages: Sequence[Message]) -> bytes:
    """Return the values, each with a newline behind it; null is an empty line."""
    return b"\n".join([*(message.value or b"" for message in messages), b""])


def json_of(messages: Sequence[Message], fields: MessageFields | None = None) -> bytes:
    """Return an object on a line for each message; see put_json()."""
    if fields is None:
        return b"".join([_encoder.encode(_object(message)) + b"\n" for message in messages])
    return b"".join(
        [_encoder.encode(_object(message) | fields.of(message)) + b"\n" for message in messages]
    )


@asynccontextmanager
async def arrow_stream(
    put: Put, schema: pa.Schema | None = None
) -> AsyncIterator[Callable[[pa.RecordBatch], Awaitable[None]]]:
    """Put an Arrow IPC stream of what the block writes; yield who takes its batches.

    *schema*: of the batches; by default that of messages.
    """
    import pyarrow as pa

    from ledger_client.topics.arrow import SCHEMA

    sink = io.BytesIO()

    async def write(batch: pa.RecordBatch) -> None:
        stream.write_batch(batch)
        await put(_drain(sink))

    with pa.ipc.new_stream(_Kept(sink), SCHEMA if schema is None else schema) as stream:
        await put(_drain(sink))
        yield write
    await put(_drain(sink))


async def _messages(reader: TopicReader, limit: int | None) -> AsyncIterator[Sequence[Message]]:
    left = float("inf") if limit is None else limit
    while left > 0 and (messages := await reader.next_messages()):
        yield messages if left >= len(messages) else messages[: int(left)]
        left -= len(messages)


async def _cut(batches: RecordBatches, limit: int | None) -> AsyncIterator[pa.RecordBatch]:
    left = float("inf") if limit is None else limit
    while left > 0 and (batch := await anext(batches, None)) is not None:
        yield batch if left >= batch.num_rows else batch.slice(0, int(left))
        left -= batch.num_rows


def _object(message: Message) -> dict[str, object]:
    told: dict[str, object] = {"id": str(message.id), "topic": message.topic}
    told |= _told("key", message.key)
    told |= _told("value", message.value)
    told["event_time"] = message.event_time
    told["timestamp"] = message.timestamp or None
    told["publish_ms"] = message.publish_ms
    told["producer"] = message.producer or None
    told["sequence"] = None if message.sequence < 0 else message.sequence
    told["lane"] = message.lane
    headers: dict[str, object] = {}
    for name, value in message.headers.items():
        headers |= _told(name, value)
    told["headers"] = headers
    return told


def _told(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


class _Kept(io.RawIOBase):
    """What is written goes to *sink*, which somebody else empties meanwhile."""

    def __init__(self, sink: io.BytesIO) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._sink.write(memoryview(data))  # type: ignore[arg-type]  # pyarrow gives buffers


def _drain(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
