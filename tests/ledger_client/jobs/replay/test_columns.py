"""What of Arrow data is copied: of our own form, of Spark's, in slices, with nulls."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ledger_client.jobs.replay.columns import CopiedColumns, with_ids
from ledger_client.topics.arrow import HEADERS, SCHEMA
from native.checksum import Checksum
from native.columns import Columns

SPARKS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
WANTED: list[dict[str, bytes] | None] = [{"a": b"1", "b": b""}, None, {}, {"c": b"\xff"}, None]


def batch(kind: pa.DataType, headers: list[dict[str, bytes] | None]) -> pa.RecordBatch:
    name, value = (kind.value_type.field(place).name for place in (0, 1))
    pairs = [None if h is None else [{name: n, value: v} for n, v in h.items()] for h in headers]
    count = len(headers)
    columns = {
        "ledger_id": pa.array([7] * count, pa.int64()),
        "entry_id": pa.array(range(count), pa.int64()),
        "partition": pa.array([-1] * count, pa.int32()),
        "batch_index": pa.array([i - 1 for i in range(count)], pa.int32()),
        "publish_time": pa.array([1000 + i for i in range(count)], pa.int64()),
        "key": pa.array([b"k", None, b"", b"k", None][:count], pa.binary()),
        "value": pa.array([b"v%d" % i for i in range(count)], pa.binary()),
        "event_time": pa.array([1, None, 3, 4, 5][:count], pa.int64()),
        "headers": pa.array(pairs, kind),
    }
    return pa.RecordBatch.from_pydict(columns)


def expected(start: int, stop: int) -> Checksum:
    return Checksum().add(
        Columns.of(
            [b"v%d" % i for i in range(5)][start:stop],
            keys=[b"k", None, b"", b"k", None][start:stop],
            event_times=[1, None, 3, 4, 5][start:stop],
            headers=WANTED[start:stop],
        )
    )


@pytest.mark.parametrize("kind", [HEADERS, SPARKS])
@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (1, 3), (3, 5), (2, 2)])
def test_any_slice_is_the_messages_that_it_has(kind: pa.DataType, start: int, stop: int) -> None:
    given = CopiedColumns(batch(kind, WANTED).slice(start, stop - start))
    assert Checksum().add(given.columns) == expected(start, stop)
    assert given.size == sum([3, 2, 2, 3, 2][start:stop])


def test_columns_without_anything_are_left_out() -> None:
    given = CopiedColumns(batch(HEADERS, [None, None]).slice(1))
    assert (given.keys, given.event_times, given.headers) == (None, None, None)


@pytest.mark.parametrize("headers", [[None] * 5, WANTED])
def test_ids_go_in_front_of_headers(headers: list[dict[str, bytes] | None]) -> None:
    found = with_ids(batch(HEADERS, headers)).column("headers")
    assert found.type == SCHEMA.field("headers").type
    for row, pairs in enumerate(found.to_pylist()):
        told = {pair["name"]: pair["value"] for pair in pairs}
        place = b"" if row == 0 else b":%d" % (row - 1)
        own = {"quire-id": b"7:%d:-1%s" % (row, place), "quire-publish-ms": b"%d" % (1000 + row)}
        assert told == own | (headers[row] or {})
        assert [pair["name"] for pair in pairs[:2]] == list(own)


def test_an_id_that_was_told_before_is_told_anew() -> None:
    once = with_ids(batch(HEADERS, WANTED))
    assert with_ids(once).column("headers") == once.column("headers")
