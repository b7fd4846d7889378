"""Messages as Arrow columns, as Spark reads them and Parquet files hold them.

    message ranges ──► groups of some thousand rows ──► a RecordBatch each, of the wanted columns

A value shared by all messages of a batch is filled in at once, and reused while it stays the same
from batch to batch; Arrow assembles the ids. Keys and values are not copied unless small batches
are joined. Nothing is done message by message. In a compacted entry, the values that a raw entry
shares differ by message: they come from the origins of its messages (_COMPACTED).

Spark has no unsigned numbers: timestamps are the same 64 bits as a signed number, which is equal
until the year 3084. Timestamps, event times, keys, headers and producers are null where a message
has none.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ledger_client.message_id import NOT_BATCHED
from ledger_client.topics.messages import MessageBatch, MessageRange
from ledger_client.topics.reading.compacted import CompactedBatch
from native.batch import Binary, Columns
from native.columns import Buffer

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIME = pa.timestamp("us", tz="UTC")
_KEPT_ROWS = 1 << 16
"""Rows of the indexes that are kept; batches with more are rare."""
_ENOUGH_SIZE = 4 << 20
"""Bytes of values, keys and headers with which a batch is large enough, however few its rows."""


def batches_of(
    ranges: Iterator[MessageRange], columns: Sequence[str], *, rows_min: int, rows_max: int
) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the number of rows and the named columns, batch by batch.

    Batches have *rows_min* rows or enough bytes, except the last and where the next entry does
    not fit, and *rows_max* rows at most.
    """
    gathered: list[MessageRange] = []
    rows = size = 0
    for messages in _cut(ranges, min(rows_max, _KEPT_ROWS)):
        count = messages.stop - messages.start
        if rows + count > rows_max:
            yield rows, columns_of(gathered, columns)
            gathered, rows, size = [], 0, 0
        gathered.append(messages)
        rows += count
        size += _size(messages.batch.decoded.columns) * count // messages.batch.count
        if rows >= rows_min or size >= _ENOUGH_SIZE:
            yield rows, columns_of(gathered, columns)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield rows, columns_of(gathered, columns)


def _size(columns: Columns) -> int:
    """Return the bytes of all values, keys, and headers."""
    strings = [columns.values, columns.keys]
    if columns.headers is not None:
        strings += [columns.headers.names, columns.headers.values]
    return sum(each.data.nbytes for each in strings if each is not None)


def columns_of(ranges: Sequence[MessageRange], columns: Sequence[str]) -> list[pa.Array]:
    """Return the named columns of these messages, each as one array."""
    raw = not any(isinstance(messages.batch, CompactedBatch) for messages in ranges)
    counts = [messages.stop - messages.start for messages in ranges]
    return [
        _PER_BATCH[name].spread(ranges, counts)
        if raw and name in _PER_BATCH
        else _joined([_builder(name, messages)(messages) for messages in ranges])
        for name in columns
    ]


def _builder(name: str, messages: MessageRange) -> Callable[[MessageRange], pa.Array]:
    if isinstance(messages.batch, CompactedBatch) and name in _COMPACTED:
        return _COMPACTED[name]
    return _PER_BATCH[name].column if name in _PER_BATCH else _BUILDERS[name]


def _cut(ranges: Iterator[MessageRange], rows_max: int) -> Iterator[MessageRange]:
    for batch, start, stop in ranges:
        for first in range(start, stop, rows_max):
            yield MessageRange(batch, first, min(first + rows_max, stop))


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# --- values shared by a batch --------------------------------------------------------


@lru_cache(maxsize=64)
def _kept(value: object, kind: pa.DataType, bits: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), 1 << bits)


def _same(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a value that many batches have, *count* times."""
    return _kept(value, kind, (count - 1).bit_length()).slice(0, count)


class _Shared(NamedTuple):
    """A column whose value is often the same in many batches."""

    kind: pa.DataType
    value: Callable[[MessageBatch], object]

    def column(self, messages: MessageRange) -> pa.Array:
        """Return the value for each message."""
        return _same(self.value(messages.batch), self.kind, messages.stop - messages.start)

    def spread(self, ranges: Sequence[MessageRange], counts: Sequence[int]) -> pa.Array:
        """Return the column of several batches."""
        values = [self.value(messages.batch) for messages in ranges]
        if values.count(values[0]) == len(values):
            return _same(values[0], self.kind, sum(counts))
        return _joined([self.column(messages) for messages in ranges])


class _Number(NamedTuple):
    """A column with one number for all messages of a batch."""

    kind: pa.DataType
    value: Callable[[MessageBatch], int]

    def column(self, messages: MessageRange) -> pa.Array:
        """Return the number for each message."""
        return self.spread([messages], [messages.stop - messages.start])

    def spread(self, ranges: Sequence[MessageRange], counts: Sequence[int]) -> pa.Array:
        """Return the column of several batches."""
        cells = b"".join(
            self.value(messages.batch).to_bytes(8, "little", signed=True) * count
            for messages, count in zip(ranges, counts, strict=True)
        )
        return pa.Array.from_buffers(self.kind, len(cells) // 8, [None, pa.py_buffer(cells)], 0)


_PER_BATCH: dict[str, _Shared | _Number] = {
    "topic": _Shared(pa.string(), lambda batch: batch.lane.topic),
    "partition": _Shared(pa.int32(), lambda batch: batch.lane.partition),
    "lane": _Shared(pa.int32(), lambda batch: batch.lane.lane),
    "ledger": _Number(pa.int64(), lambda batch: batch.place.ledger_id),
    "entry": _Number(pa.int64(), lambda batch: batch.place.entry),
    "version": _Number(pa.int64(), lambda batch: batch.place.version),
    "publish_time": _Number(TIME, lambda batch: 1000 * batch.header.created_ms),
    "producer": _Shared(pa.string(), lambda batch: batch.header.producer or None),
}


# --- values of single messages -------------------------------------------------------


@cache
def _indexes() -> pa.Array:
    return pa.array(range(_KEPT_ROWS), pa.int32())


@cache
def _colon() -> pa.Scalar:
    # pa.scalar, and what is given to Arrow as str, looks for pandas each time: 0.1 ms.
    return pa.array([":"], pa.string())[0]


@cache
def _index_texts() -> pa.Array:
    return pc.cast(_indexes(), pa.string())


def _batch_index(messages: MessageRange) -> pa.Array:
    if not messages.batch.header.batched:
        return _same(NOT_BATCHED, pa.int32(), messages.stop - messages.start)
    if messages.stop > _KEPT_ROWS:
        return pa.array(range(messages.start, messages.stop), pa.int32())
    return _indexes().slice(messages.start, messages.stop - messages.start)


def _message_id(messages: MessageRange) -> pa.Array:
    place, partition = messages.batch.place, messages.batch.lane.partition
    prefix = pa.array([f"{place.ledger_id}:{place.entry}:{partition}"], pa.string())
    if not messages.batch.header.batched:
        return prefix
    if messages.stop > _KEPT_ROWS:
        texts = pc.cast(_batch_index(messages), pa.string())
    else:
        texts = _index_texts().slice(messages.start, messages.stop - messages.start)
    return pc.binary_join_element_wise(prefix[0], texts, _colon())


def _timestamp(messages: MessageRange) -> pa.Array:
    return _words(messages, messages.batch.decoded.columns.timestamps, None)


def _event_time(messages: MessageRange) -> pa.Array:
    columns = messages.batch.decoded.columns
    return _words(messages, columns.event_times, columns.event_time_validity)


def _words(
    messages: MessageRange,
    words: memoryview | None,
    validity: Buffer | None,
) -> pa.Array:
    if words is None:
        return _same(None, pa.int64(), messages.stop - messages.start)
    bits = None if validity is None else pa.py_buffer(validity)
    buffers = [bits, pa.py_buffer(words)]
    count = messages.stop - messages.start
    unknown = -1 if validity is not None else 0
    return pa.Array.from_buffers(pa.int64(), count, buffers, unknown, messages.start)


def _key(messages: MessageRange) -> pa.Array:
    return _binary(messages, messages.batch.decoded.columns.keys)


def _value(messages: MessageRange) -> pa.Array:
    return _binary(messages, messages.batch.decoded.columns.values)


def _binary(messages: MessageRange, strings: Binary | None) -> pa.Array:
    if strings is None:
        return _same(None, pa.binary(), messages.stop - messages.start)
    return _strings(pa.binary(), strings, messages.start, messages.stop - messages.start)


def _strings(kind: pa.DataType, strings: Binary, start: int, count: int) -> pa.Array:
    validity = strings.validity
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(strings.offsets),
        pa.py_buffer(strings.data),
    ]
    return pa.Array.from_buffers(kind, count, buffers, 0 if validity is None else -1, start)


def _headers(messages: MessageRange) -> pa.Array:
    headers = messages.batch.decoded.columns.headers
    if headers is None:
        return _same(None, HEADERS, messages.stop - messages.start)
    total = headers.names.length
    pairs = pa.StructArray.from_buffers(
        HEADERS.value_type,
        total,
        [None],
        0,
        children=[
            _strings(pa.string(), headers.names, 0, total),
            _strings(pa.binary(), headers.values, 0, total),
        ],
    )
    whole = pa.ListArray.from_buffers(
        HEADERS, messages.batch.count, [None, pa.py_buffer(headers.offsets)], 0, children=[pairs]
    )
    return whole.slice(messages.start, messages.stop - messages.start)


_BUILDERS: dict[str, Callable[[MessageRange], pa.Array]] = {
    "batch_index": _batch_index,
    "message_id": _message_id,
    "timestamp": _timestamp,
    "event_time": _event_time,
    "key": _key,
    "value": _value,
    "headers": _headers,
}
NAMES = (
    *("topic", "partition", "lane", "ledger", "entry", "batch_index", "message_id", "version"),
    *("timestamp", "publish_time", "event_time", "key", "value", "headers", "producer"),
)


def _compacted(messages: MessageRange) -> CompactedBatch:
    assert isinstance(messages.batch, CompactedBatch)
    return messages.batch


def _origin_words(words: memoryview, kind: pa.DataType, messages: MessageRange) -> pa.Array:
    """Return the origins' values in a column, one for each message."""
    return _compacted_words(_compacted(messages).origins.spread(words), kind, messages)


def _compacted_words(words: memoryview, kind: pa.DataType, messages: MessageRange) -> pa.Array:
    """Return the messages' part of a column that covers the whole entry."""
    buffers = [None, pa.py_buffer(words)]
    return pa.Array.from_buffers(kind, messages.stop - messages.start, buffers, 0, messages.start)


def _compacted_ledger(messages: MessageRange) -> pa.Array:
    return _origin_words(_compacted(messages).origins.ledger_ids, pa.int64(), messages)


def _compacted_entry(messages: MessageRange) -> pa.Array:
    return _origin_words(_compacted(messages).origins.entry_ids, pa.int64(), messages)


def _compacted_version(messages: MessageRange) -> pa.Array:
    return _origin_words(_compacted(messages).origins.versions, pa.int64(), messages)


def _compacted_publish_time(messages: MessageRange) -> pa.Array:
    milliseconds = _origin_words(
        _compacted(messages).origins.created_ms, pa.timestamp("ms", tz="UTC"), messages
    )
    return milliseconds.cast(TIME)


def _compacted_producer(messages: MessageRange) -> pa.Array:
    origins = _compacted(messages).origins
    names = pa.array([name or None for name in origins.names], pa.string())
    return names.take(_origin_words(origins.producers, pa.int32(), messages))


def _compacted_batch_index(messages: MessageRange) -> pa.Array:
    return _compacted_words(_compacted(messages).batch_indexes, pa.int32(), messages)


def _compacted_message_id(messages: MessageRange) -> pa.Array:
    origins, partition = _compacted(messages).origins, messages.batch.lane.partition
    places = zip(origins.ledger_ids.tolist(), origins.entry_ids.tolist(), strict=True)
    prefixes = pa.array([f"{ledger}:{entry}:{partition}" for ledger, entry in places], pa.string())
    entries = prefixes.take(_compacted_words(origins.index, pa.int32(), messages))
    indexes = _compacted_batch_index(messages)
    whole = pc.binary_join_element_wise(entries, indexes.cast(pa.string()), ":")
    return pc.if_else(pc.equal(indexes, NOT_BATCHED), entries, whole)


_COMPACTED: dict[str, Callable[[MessageRange], pa.Array]] = {
    "ledger": _compacted_ledger,
    "entry": _compacted_entry,
    "batch_index": _compacted_batch_index,
    "message_id": _compacted_message_id,
    "version": _compacted_version,
    "publish_time": _compacted_publish_time,
    "producer": _compacted_producer,
}
"""Makes a column of some messages of a compacted entry."""
