"""Cutting messages into batches, and the partitions they go to."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from batches import Sent, batches, columns_of
from hypothesis import given, settings, strategies as st

from native import batch
from native.batch import NO_PARTITION, Binary, Columns, cut, encode, murmur3, route, rows_of
from native.errors import TooLarge

MURMUR = [
    # Of the reference implementation (SMHasher), as published and used all over.
    (b"", 0, 0),
    (b"", 1, 0x514E28B7),
    (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50),
    (b"\x21\x43\x65\x87", 0, 0xF55B516B),
    (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
    (b"\x21\x43\x65", 0, 0x7E4A8634),
    (b"\x21\x43", 0, 0xA0F7B07A),
    (b"\x21", 0, 0x72661CF4),
    (bytes(4), 0, 0x2362F9DE),
    (bytes(3), 0, 0x85F0B427),
    (bytes(2), 0, 0x30F4C306),
    (bytes(1), 0, 0x514E28B7),
    (b"hello", 0, 0x248BFA47),
    (b"hello, world", 0, 0x149BBB7F),
    (b"The quick brown fox jumps over the lazy dog", 0, 0x2E4FF723),
]
PULSAR = {  # of the tests of Pulsar's Murmur3_32Hash
    b"k1": 2110152746,
    b"k2": 1479966664,
    b"key1": 462881061,
    b"key2": 1936800180,
    b"key01": 39696932,
    b"key02": 751761803,
}


@pytest.mark.parametrize(("data", "seed", "expected"), MURMUR)
def test_murmur3_gives_the_published_hashes(data: bytes, seed: int, expected: int) -> None:
    assert murmur3(data, seed) == expected


def test_partitions_are_those_of_pulsars_clients() -> None:
    keys = list(PULSAR)
    for partitions in (1, 3, 16, 1000, 0x7FFFFFFF):
        expected = [hashed % partitions for hashed in PULSAR.values()]
        assert route(Binary.of(keys), partitions).tolist() == expected


def test_the_sign_of_a_hash_does_not_count() -> None:
    key = b"\x21\x43\x65\x87"
    assert murmur3(key) >= 1 << 31
    assert route(Binary.of([key]), 1000).tolist() == [(murmur3(key) & 0x7FFFFFFF) % 1000]


@given(st.lists(st.none() | st.binary(max_size=9), max_size=40), st.integers(1, 9))
def test_every_key_goes_to_one_partition_and_null_to_none(
    keys: list[bytes | None], partitions: int
) -> None:
    partition_of = route(Binary.of(keys), partitions)
    groups = rows_of(partition_of, partitions)
    expected: list[list[int]] = [[] for _ in range(partitions)]
    for row, key in enumerate(keys):
        if key is not None:
            expected[(murmur3(key) & 0x7FFFFFFF) % partitions].append(row)
        else:
            assert partition_of[row] == NO_PARTITION
    assert [group.tolist() for group in groups] == expected


def test_rows_of_no_known_partition_are_refused() -> None:
    with pytest.raises(ValueError, match="partition beyond 2"):
        rows_of(array("I", [0, 3]), 3)
    with pytest.raises(ValueError, match="partitions"):
        rows_of(array("I", [0]), 0)


@pytest.mark.parametrize("partitions", [0, -1, NO_PARTITION])
def test_there_is_no_routing_to_so_many_partitions(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        route(Binary.of([b"k"]), partitions)


@given(
    batches,
    st.integers(1, 400),
    st.integers(1, 6),
    st.binary(max_size=9).filter(lambda name: name.isascii()),
)
def test_batches_keep_to_both_limits_and_are_as_full_as_can_be(
    messages: list[Sent], size_max: int, count_max: int, producer: bytes
) -> None:
    columns = columns_of(messages)
    ends = cut(columns, size_max=size_max, count_max=count_max, producer=producer)
    assert ends[-1] == len(messages)
    for start, stop in pairwise([0, *ends]):
        size = len(encode(columns, start, stop, producer=producer))
        assert stop - start <= count_max
        assert size <= size_max or stop - start == 1
        if stop < len(messages) and stop - start < count_max:
            more = len(encode(columns, start, stop + 1, producer=producer))
            assert more > size_max - 150 - left_out(messages[start : stop + 1])


def left_out(messages: list[Sent]) -> int:
    """The bytes of columns that are reckoned with, and that a batch of these does without."""
    each = 4 * all(message.value is None for message in messages)
    each += 4 * all(message.key is None for message in messages)
    each += 8 * all(message.event_time is None for message in messages)
    each += 8 * all(message.timestamp == 0 for message in messages)
    each += 4 * all(not message.headers for message in messages)
    return each * len(messages)


def test_batches_of_like_messages_are_full() -> None:
    columns = Columns.of([b"x" * 100] * 2000)
    ends = cut(columns, size_max=10_000, count_max=10_000)
    sizes = [len(encode(columns, start, stop)) for start, stop in pairwise([0, *ends])]
    assert all(9_700 < size <= 10_000 for size in sizes[:-1])


@given(batches, st.data())
def test_rows_are_cut_as_if_they_were_all_there_is(
    messages: list[Sent], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(messages) - 1), min_size=1, max_size=30))
    picked = [messages[row] for row in rows]
    cells = [Sent(b"", b"", 1, 1, {"n": b""}), Sent(None)]  # so that both have every column
    everything = columns_of(messages + cells)
    alone = columns_of(picked + cells)
    expected = cut(alone, size_max=200, count_max=5, rows=array("I", range(len(rows))))
    assert cut(everything, size_max=200, count_max=5, rows=array("I", rows)) == expected


def test_more_ends_than_are_found_at_once() -> None:
    ends = cut(Columns.of([b""] * 10_000), size_max=1000, count_max=1)
    assert ends.tolist() == list(range(1, 10_001))


def test_nothing_to_cut_has_no_ends() -> None:
    assert len(cut(Columns.of([]), size_max=1000, count_max=1)) == 0
    assert len(cut(Columns.of([b"a"]), size_max=1000, count_max=1, rows=array("I"))) == 0


def test_a_message_over_the_size_wanted_is_a_batch_of_its_own() -> None:
    columns = Columns.of([b"a", b"b", bytes(5000), b"c", b"d"])
    assert cut(columns, size_max=1000, count_max=100).tolist() == [2, 3, 5]


def test_a_message_that_fits_no_entry_is_named() -> None:
    columns = Columns.of([b"a", b"b", bytes(batch.SIZE_MAX), b"c"])
    with pytest.raises(TooLarge) as refused:
        cut(columns, size_max=1000, count_max=1)
    assert refused.value.index == 2
    assert refused.value.size > refused.value.size_max == batch.SIZE_MAX


@settings(max_examples=30)  # some MiB each
@given(st.integers(0, 300), st.integers(0, 40))
def test_whatever_cut_lets_pass_can_be_encoded(slack: int, name_size: int) -> None:
    producer = b"n" * name_size
    columns = Columns.of([bytes(batch.SIZE_MAX - slack)], keys=[b"k"], headers=[{"n": b"v"}])
    try:
        cut(columns, size_max=batch.SIZE_MAX, count_max=1, producer=producer)
    except TooLarge:
        assert slack < 300  # what the columns' gaps may take, at most
    else:
        assert len(encode(columns, 0, 1, producer=producer)) <= batch.SIZE_MAX


def test_columns_that_do_not_fit_together_are_not_cut() -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        cut(Columns.of([b"a"]), size_max=10, count_max=1, rows=array("I", [1]))
    broken = Binary(memoryview(array("i", [0, 9])), memoryview(b"a"))
    with pytest.raises(ValueError, match="out of bounds"):
        cut(Columns(count=1, values=broken), size_max=10, count_max=1)
    with pytest.raises(ValueError, match="out of bounds"):
        route(broken, 2)
