"""Fields of values as `quire read` shows them: those of topics with Avro or protobuf schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ledger_client.topics.messages import Message
from ledger_client.topics.values.kinds import is_decoded
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from ledger_client.topics.values.decoder import Decoder

_CLASH = "value_"


class MessageFields:
    """Decodes values of *topics*. What is not as the schema says has no fields: null.

    Raises:
        BadSchema, SchemaPackageMissing: as open_decoder().
    """

    def __init__(self, topics: Sequence[TopicRecord]) -> None:
        self._decoders: dict[str, Decoder] = {}
        for topic in topics:
            if is_decoded(topic.schema):
                from ledger_client.topics.values.decoder import open_decoder  # it takes pyarrow

                self._decoders[topic.name] = open_decoder(topic.name, topic.schema)
        same = len({topic.schema for topic in topics}) == 1
        self._shared = self._decoders.get(topics[0].name) if same else None

    def of(self, message: Message) -> dict[str, object]:
        """Return {"fields": ...} for a message of a topic that has some, else {}."""
        decoder = self._decoders.get(message.topic)
        if decoder is None:
            return {}
        try:
            return {"fields": None if message.value is None else decoder.decode(message.value)}
        except ValueError:  # BadValue
            return {"fields": None}

    def schema(self, plain: pa.Schema) -> pa.Schema:
        """Return *plain* with a column for each field, if all topics have the same."""
        if self._shared is None:
            return plain
        taken = {name.lower() for name in plain.names}
        for field in self._shared.fields:
            name = _CLASH + field.name if field.name.lower() in taken else field.name
            plain = plain.append(field.with_name(name))
        return plain

    def extend(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return *batch* with the columns that *schema* has more, out of its values."""
        if self._shared is None:
            return batch
        import pyarrow as pa

        from ledger_client.topics.values.decoder import struct_array

        kind = pa.struct(self._shared.fields)
        values = batch.column("value").to_pylist()
        fields = struct_array(self._shared, kind, values, lambda _value, _wrong: None)
        return pa.RecordBatch.from_arrays([*batch.columns, *fields.flatten()], schema=schema)
