"""Values as columns of their own, as the topic's schema defines them.

Arrow parses JSON, thousands of values at once; json_texts.py converts what JSON has as text. Avro
and protobuf are decoded one by one (topics/values/). Each JSON value is wrapped in an object of
its own, so that none can run into the next or count as two. Where some do not parse, bisection
finds the others.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ledger_client.errors import SparkError
from ledger_client.spark.json_texts import from_text, text_kind
from ledger_client.topics.values.decoder import Decoder, struct_array

Mode = Literal["permissive", "failfast"]
_SHOWN = 80


class ValueParser:
    """Parses values into *fields*.

    Args:
        topic: name for error messages.
        fields: the fields wanted of each value.
        mode: with "permissive" all fields of a value that does not parse are null, like those
            of a null value; with "failfast" it is an error.
        decoder: decodes values that are not JSON.
    """

    def __init__(
        self, topic: str, fields: list[pa.Field], mode: Mode, decoder: Decoder | None = None
    ) -> None:
        self._topic = topic
        self._decoder = decoder
        self._names = [field.name for field in fields]
        self._kind = pa.struct(fields)
        self._mode = mode

    def check(self) -> None:
        """Raise pa.ArrowNotImplementedError where Arrow cannot parse a field's type."""
        self._parse(pa.array([b"null"], pa.binary()))

    def columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the fields of binary *values*, by name.

        Raises:
            SparkError: a value does not parse, with mode "failfast".
        """
        if self._decoder is None:
            parsed = self._whole_or_halves(values)
        else:
            parsed = struct_array(self._decoder, self._kind, values.to_pylist(), self._on_bad)
        return {name: pc.struct_field(parsed, name) for name in self._names}

    def _whole_or_halves(self, values: pa.Array) -> pa.Array:
        if not len(values):
            return pa.array([], self._kind)
        try:
            return self._parse(values)
        except pa.ArrowInvalid as wrong:
            if len(values) > 1:
                middle = len(values) // 2
                halves = values.slice(0, middle), values.slice(middle)
                return pa.concat_arrays([self._whole_or_halves(half) for half in halves])
            if self._mode == "failfast":
                raise self._unreadable(values[0].as_py(), wrong) from wrong
            return pa.nulls(1, self._kind)

    def _parse(self, values: pa.Array) -> pa.Array:
        """Return the parsed values. Raises pa.ArrowInvalid if one does not parse."""
        texts = pc.fill_null(values.cast(pa.string()), "null")  # the cast checks UTF-8
        lines = pc.binary_join_element_wise('{"v":', texts, "}\n", "")
        text = pa.py_buffer(b"") if lines.buffers()[2] is None else lines.buffers()[2]
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([pa.field("v", text_kind(self._kind))]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        if table.num_rows != len(values):
            raise pa.ArrowInvalid("a value ends, and another begins, within it")
        if not table.num_rows:
            return pa.array([], self._kind)
        return from_text(table["v"].combine_chunks(), self._kind)

    def _on_bad(self, value: bytes, wrong: Exception) -> None:
        if self._mode == "failfast":
            raise self._unreadable(value, wrong) from wrong

    def _unreadable(self, value: bytes, wrong: Exception) -> SparkError:
        shown = repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
        reason = str(wrong).removesuffix(" in row 0").replace("(/v", "(")
        return SparkError(
            f"topic {self._topic}: {shown} is not what its schema says: {reason}; "
            'with mode "permissive" the columns are null'
        )


def texts_of(topic: str, values: pa.Array, mode: Mode) -> pa.Array:
    """Return binary *values* as strings, null where they are not UTF-8.

    Raises:
        SparkError: a value is not UTF-8, with mode "failfast".
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as wrong:
        if len(values) > 1:
            middle = len(values) // 2
            halves = values.slice(0, middle), values.slice(middle)
            return pa.concat_arrays([texts_of(topic, half, mode) for half in halves])
        if mode == "failfast":
            shown = repr(values[0].as_py()[:_SHOWN])
            raise SparkError(f"topic {topic}: {shown} is not UTF-8") from wrong
        return pa.nulls(1, pa.string())
