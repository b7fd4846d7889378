"""Columns: from sequences and buffers, and back to lists."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from native.batch import Binary, Columns, Headers, cut, encode
from native.columns import null_places, pack_bits, slice_bits

strings = st.lists(st.none() | st.binary(max_size=9), max_size=40)


@given(strings)
def test_strings_come_back_from_a_column(values: list[bytes | None]) -> None:
    column = Binary.of(values)
    assert column.length == len(values)
    assert column.to_list() == values
    assert (column.validity is None) == (None not in values)


@given(st.lists(st.binary(max_size=9), max_size=40), st.data())
def test_a_slice_of_foreign_buffers_is_a_column(values: list[bytes], data: st.DataObject) -> None:
    valid = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    whole = Binary.of(values)
    part = Binary.of_buffers(
        whole.offsets, whole.data, pack_bits(bytes(valid)), first=first, count=count
    )
    expected = [v if there else None for v, there in zip(values, valid, strict=True)]
    assert part.to_list() == expected[first : first + count]
    if count:
        taken = encode(Columns(count=count, values=part), 0, count)
        assert taken == encode(Columns.of(expected[first : first + count]), 0, count)


def test_buffers_that_are_too_small_are_refused() -> None:
    whole = Binary.of([b"a", b"b"])
    for first, count in ((0, 3), (2, 1), (-1, 1), (3, None)):
        with pytest.raises(ValueError, match="offsets for strings"):
            Binary.of_buffers(whole.offsets, whole.data, first=first, count=count)
    with pytest.raises(ValueError, match="bits 0 to 2 of 0"):
        Binary.of_buffers(whole.offsets, whole.data, b"")


@given(st.lists(st.booleans(), max_size=70), st.data())
def test_bits_are_sliced_at_any_place(flags: list[bool], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(flags)))
    count = data.draw(st.integers(0, len(flags) - first))
    bits = slice_bits(pack_bits(bytes(flags)), first, count)
    expected = [i for i in range(count) if not flags[first + i]]
    assert null_places(bits, count) == expected


@pytest.mark.parametrize("wrong", [["text"], [b"a", "text"], [None, 7], [object()]])
def test_what_is_no_bytes_is_refused(wrong: Sequence[bytes | None]) -> None:
    with pytest.raises(TypeError):
        Binary.of(wrong)


def test_bytes_like_values_count_their_bytes() -> None:
    like: list[Any] = [bytearray(b"ab"), memoryview(b"c")]
    assert Binary.of(like).to_list() == [b"ab", b"c"]
    longer: list[Any] = [memoryview(array("i", [1, 2]))]
    with pytest.raises(TypeError, match="no bytes"):
        Binary.of(longer)


def test_headers_come_back_from_columns() -> None:
    given = [{"a": b"1", "ü": b""}, None, {}, {"": b"2"}]
    assert Headers.of(given).to_list() == [{"a": b"1", "ü": b""}, {}, {}, {"": b"2"}]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 messages"):
        Columns.of([b"a", b"b"], keys=[None])
    with pytest.raises(ValueError, match="3 event times for 2 messages"):
        Columns.of([b"a", b"b"], event_times=[1, 2, 3])
    with pytest.raises(ValueError, match="0 timestamps for 2 messages"):
        Columns.of([b"a", b"b"], timestamps=[])
    with pytest.raises(ValueError, match="1 headers for 2 messages"):
        Columns.of([b"a", b"b"], headers=[None])


def test_event_times_may_be_numbers_in_an_array() -> None:
    times = array("q", [3, -4])
    columns = Columns.of([b"a", b"b"], event_times=times)
    assert columns.event_times_list() == [3, -4]
    assert Columns.of([b"a"], event_times=[None]).event_times_list() == [None]
    assert Columns.of([b"a"]).event_times_list() == [None]


@pytest.mark.parametrize("time", [1 << 63, -(1 << 63) - 1])
def test_a_time_that_does_not_fit_is_refused(time: int) -> None:
    with pytest.raises(OverflowError):
        Columns.of([b"a"], event_times=[time])


def test_a_column_that_is_cut_short_is_not_read() -> None:
    values = Binary.of([b"a", b"b"])
    short = Columns(count=2, values=values._replace(validity=b""))
    with pytest.raises(ValueError, match="a column of 0 bytes; it takes 1"):
        encode(short, 0, 2)
    half = Headers(memoryview(array("i", [0, 1, 1])), Binary.of([b"n"]), Binary.of([]))
    with pytest.raises(ValueError, match="a name and a value"):
        cut(Columns(count=2, values=values, headers=half), size_max=9, count_max=9)


def test_columns_in_a_cycle_of_garbage_bring_nothing_down() -> None:
    # CPython before 3.12.7 crashes on a memoryview in a cycle, if something holds its buffer.
    for _ in range(50):
        columns = Columns.of([b"a", None], keys=[b"k", None], event_times=[1, None])
        encode(columns, 0, 2)
        cycle: list[object] = [columns, columns.values, columns.loan]
        cycle.append(cycle)
        del columns, cycle
    gc.collect()
