"""Output of ``quire read``: messages as lines, JSON objects, or an Arrow stream."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from ledger_client.commands.templates import Template
from ledger_client.topics.messages import Message
from ledger_client.topics.values.kinds import is_decoded
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import ReadableBuffer

    from ledger_client.topics.values.decoder import Decoder


_CLASH = "value_"


class MessageFields:
    """Decodes values of topics with Avro or protobuf schemas.

    A value that does not fit its schema decodes to null.

    Raises:
        BadSchema: as open_decoder().
    """

    def __init__(self, topics: Sequence[TopicRecord]) -> None:
        self._decoders: dict[str, Decoder] = {}
        for topic in topics:
            self.add(topic)
        same = len({topic.schema for topic in topics}) == 1
        self._shared = self._decoders.get(topics[0].name) if same else None

    def add(self, topic: TopicRecord) -> None:
        """Decode values of *topic*, too. Raises BadSchema."""
        if is_decoded(topic.schema):
            from ledger_client.topics.values.decoder import open_decoder  # imports pyarrow

            self._decoders[topic.name] = open_decoder(topic.name, topic.schema)

    def of(self, message: Message) -> dict[str, object]:
        """Return {"fields": ...}, or {} for a topic without such a schema."""
        decoder = self._decoders.get(message.topic)
        if decoder is None:
            return {}
        try:
            return {"fields": None if message.value is None else decoder.decode(message.value)}
        except ValueError:
            return {"fields": None}

    def schema(self, plain: pa.Schema) -> pa.Schema:
        """Return *plain* with a column for each field, if all topics have the same schema."""
        if self._shared is None:
            return plain
        taken = {name.lower() for name in plain.names}
        for field in self._shared.fields:
            name = _CLASH + field.name if field.name.lower() in taken else field.name
            plain = plain.append(field.with_name(name))
        return plain

    def extend(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return *batch* with the additional columns of *schema*, decoded from its values."""
        if self._shared is None:
            return batch
        import pyarrow as pa

        from ledger_client.topics.values.decoder import struct_array

        kind = pa.struct(self._shared.fields)
        values = batch.column("value").to_pylist()
        fields = struct_array(self._shared, kind, values, lambda _value, _wrong: None)
        return pa.RecordBatch.from_arrays([*batch.columns, *fields.flatten()], schema=schema)


Put = Callable[[bytes], Awaitable[None]]


class Source(Protocol):
    """What is read: a TopicReader, or one whose waits are explained."""

    async def next_messages(self) -> Sequence[Message]:
        """As TopicReader.next_messages()."""

    def read_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """As TopicReader.read_batches()."""


Form = Callable[[Source, int | None, Put, MessageFields], Awaitable[None]]
"""Reads messages, up to the limit, and puts them."""

_encoder = msgspec.json.Encoder()


async def put_text(reader: Source, limit: int | None, put: Put, _fields: MessageFields) -> None:
    """Put each value and a newline; null becomes an empty line."""
    async for messages in _messages(reader, limit):
        await put(text_of(messages))


async def put_template(
    reader: Source, limit: int | None, put: Put, _fields: MessageFields, *, template: Template
) -> None:
    """Put each message as *template* shows it."""
    async for messages in _messages(reader, limit):
        await put(template.text_of(messages))


async def put_json(reader: Source, limit: int | None, put: Put, fields: MessageFields) -> None:
    """Put a JSON object on a line for each message.

    Bytes that are not UTF-8 appear in base64, under a name with the suffix _base64. For topics
    with an Avro or protobuf schema, "fields" has the decoded value, or null if it does not fit.
    """
    async for messages in _messages(reader, limit):
        await put(json_of(messages, fields))


async def put_arrow(reader: Source, limit: int | None, put: Put, fields: MessageFields) -> None:
    """Put an Arrow IPC stream, which a cancellation leaves complete.

    If all topics share an Avro or protobuf schema, its fields are columns.
    """
    from ledger_client.topics.arrow import SCHEMA

    schema = fields.schema(SCHEMA)
    async with arrow_stream(put, schema) as write:
        async for batch in _cut(reader.read_batches(), limit):
            await write(fields.extend(batch, schema))


FORMS: dict[str, Form] = {"text": put_text, "json": put_json, "arrow": put_arrow}


def form_of(named: str | Template) -> Form:
    """Return the form with this name, or that of a template."""
    if isinstance(named, Template):
        return partial(put_template, template=named)
    return FORMS[named]


def text_of(messages: Sequence[Message]) -> bytes:
    """Return each value followed by a newline; null becomes an empty line."""
    return b"\n".join([*(message.value or b"" for message in messages), b""])


def json_of(messages: Sequence[Message], fields: MessageFields | None = None) -> bytes:
    """Return a JSON object on a line for each message; see put_json()."""
    if fields is None:
        return b"".join([_encoder.encode(_object(message)) + b"\n" for message in messages])
    return b"".join(
        [_encoder.encode(_object(message) | fields.of(message)) + b"\n" for message in messages]
    )


@asynccontextmanager
async def arrow_stream(
    put: Put, schema: pa.Schema | None = None
) -> AsyncIterator[Callable[[pa.RecordBatch], Awaitable[None]]]:
    """Put an Arrow IPC stream; yield the function that writes a batch to it.

    The batches have *schema*, by default that of messages.
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


async def _messages(reader: Source, limit: int | None) -> AsyncIterator[Sequence[Message]]:
    left = float("inf") if limit is None else limit
    while left > 0 and (messages := await reader.next_messages()):
        yield messages if left >= len(messages) else messages[: int(left)]
        left -= len(messages)


async def _cut(
    batches: AsyncIterator[pa.RecordBatch], limit: int | None
) -> AsyncIterator[pa.RecordBatch]:
    left = float("inf") if limit is None else limit
    while left > 0 and (batch := await anext(batches, None)) is not None:
        yield batch if left >= batch.num_rows else batch.slice(0, int(left))
        left -= batch.num_rows


def _object(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"id": str(message.id), "topic": message.topic}
    fields |= text_or_base64("key", message.key)
    fields |= text_or_base64("value", message.value)
    fields["event_time"] = message.event_time
    fields["timestamp"] = message.timestamp or None
    fields["publish_time"] = message.publish_time
    fields["producer"] = message.producer or None
    fields["sequence"] = None if message.sequence < 0 else message.sequence
    fields["lane"] = message.lane
    headers: dict[str, object] = {}
    for name, value in message.headers.items():
        headers |= text_or_base64(name, value)
    fields["headers"] = headers
    return fields


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under *name*, or in base64 under a name with the suffix _base64."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


class _Kept(io.RawIOBase):
    """A file for pyarrow; what it writes goes to *sink*, which is drained in between."""

    def __init__(self, sink: io.BytesIO) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        return self._sink.write(memoryview(data))


def _drain(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
