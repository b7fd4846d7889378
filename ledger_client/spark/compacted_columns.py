"""Columns of compacted entries that are the same throughout a raw one: where messages were.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ledger_client.topics.message_id import NOT_BATCHED
from ledger_client.topics.messages import Slice
from ledger_client.topics.reading.compacted_batch import CompactedBatch

TIME = pa.timestamp("us", tz="UTC")


def _batch(piece: Slice) -> CompactedBatch:
    assert isinstance(piece.batch, CompactedBatch)
    return piece.batch


def _each(words: memoryview, kind: pa.DataType, piece: Slice) -> pa.Array:
    """Return what each origin has, for each message."""
    return _words(_batch(piece).origins.spread(words), kind, piece)


def _words(words: memoryview, kind: pa.DataType, piece: Slice) -> pa.Array:
    """Return what the messages have of a column that has an item for each of the entry."""
    buffers = [None, pa.py_buffer(words)]
    return pa.Array.from_buffers(kind, piece.stop - piece.start, buffers, 0, piece.start)


def _ledger(piece: Slice) -> pa.Array:
    return _each(_batch(piece).origins.ledger_ids, pa.int64(), piece)


def _entry(piece: Slice) -> pa.Array:
    return _each(_batch(piece).origins.entry_ids, pa.int64(), piece)


def _version(piece: Slice) -> pa.Array:
    return _each(_batch(piece).origins.versions, pa.int64(), piece)


def _publish_time(piece: Slice) -> pa.Array:
    milliseconds = _each(_batch(piece).origins.created_ms, pa.timestamp("ms", tz="UTC"), piece)
    return milliseconds.cast(TIME)


def _producer(piece: Slice) -> pa.Array:
    origins = _batch(piece).origins
    names = pa.array([name or None for name in origins.names], pa.string())
    return names.take(_each(origins.producers, pa.int32(), piece))


def _batch_index(piece: Slice) -> pa.Array:
    return _words(_batch(piece).batch_indexes, pa.int32(), piece)


def _message_id(piece: Slice) -> pa.Array:
    origins, partition = _batch(piece).origins, piece.batch.lane.partition
    places = zip(origins.ledger_ids.tolist(), origins.entry_ids.tolist(), strict=True)
    prefixes = pa.array([f"{ledger}:{entry}:{partition}" for ledger, entry in places], pa.string())
    entries = prefixes.take(_words(origins.index, pa.int32(), piece))
    indexes = _batch_index(piece)
    whole = pc.binary_join_element_wise(entries, indexes.cast(pa.string()), ":")
    return pc.if_else(pc.equal(indexes, NOT_BATCHED), entries, whole)


VARYING: dict[str, Callable[[Slice], pa.Array]] = {
    "ledger": _ledger,
    "entry": _entry,
    "batch_index": _batch_index,
    "message_id": _message_id,
    "version": _version,
    "publish_time": _publish_time,
    "producer": _producer,
}
"""Makes a column of some messages of a compacted entry."""
