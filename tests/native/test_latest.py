"""The latest message of each key: against a dictionary, in bounded memory, in slices."""

from __future__ import annotations

from array import array
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from native import latest
from native.batch import Binary, Columns, murmur3
from native.errors import Full
from native.latest import Latest, Survivors

SIZE = 1 << 20


class Shown(NamedTuple):
    """A message, as far as compaction looks at it."""

    key: bytes | None
    value: bytes | None
    step: int
    """by how much its order is over that of the message before it in its lane"""


shown = st.builds(
    Shown,
    key=st.none() | st.binary(max_size=2) | st.sampled_from([b"a", b"b", b"long" * 40]),
    value=st.none() | st.binary(max_size=1),
    step=st.integers(0, 2),
)
lanes = st.lists(st.lists(shown, max_size=40), min_size=1, max_size=4)


def orders_of(messages: list[Shown]) -> array[int]:
    """Return the order of each message of a lane."""
    orders = array("q", bytes(8 * len(messages)))
    total = -3
    for i, message in enumerate(messages):
        total += message.step
        orders[i] = total
    return orders


def columns_of(messages: list[Shown]) -> Columns:
    """Return them as columns."""
    return Columns.of([m.value for m in messages], keys=[m.key for m in messages])


def model(lanes: list[list[Shown]], *, tombstones: bool = False) -> list[set[int]]:
    """Return the ordinals of each lane that are left."""
    newest: dict[bytes, tuple[tuple[int, int, int], bool]] = {}
    for lane, messages in enumerate(lanes):
        for ordinal, (order, message) in enumerate(zip(orders_of(messages), messages, strict=True)):
            place = (order, lane, ordinal)
            if message.key is not None and place >= newest.get(message.key, (place, False))[0]:
                newest[message.key] = place, bool(message.value)
    left: list[set[int]] = [set() for _ in lanes]
    for (_, lane, ordinal), alive in newest.values():
        if alive or tombstones:
            left[lane].add(ordinal)
    return left


def show(table: Latest, lane: int, messages: list[Shown], step: int) -> None:
    """Show a lane by batches of *step* messages."""
    orders = orders_of(messages)
    for base in range(0, len(messages), step):
        some = messages[base : base + step]
        table.add(columns_of(some), base=base, lane=lane, orders=orders[base : base + step])


def marked(table: Latest, lanes: list[list[Shown]], *, tombstones: bool = False) -> list[set[int]]:
    """Return the ordinals of each lane that a table marks."""
    left = []
    for lane, messages in enumerate(lanes):
        survivors = Survivors(len(messages))
        table.mark(survivors, lane=lane, tombstones=tombstones)
        left.append(set(survivors.rows(0, len(messages))))
        assert survivors.marked == len(left[-1])
    return left


@given(lanes, st.integers(1, 50), st.randoms(use_true_random=False), st.booleans())
def test_what_is_left_is_what_a_dictionary_says_in_whatever_order_lanes_come(
    given_lanes: list[list[Shown]], step: int, random: Random, tombstones: bool
) -> None:
    table = Latest(memory_max=SIZE)
    turns = list(enumerate(given_lanes))
    random.shuffle(turns)
    for lane, messages in turns:
        show(table, lane, messages, step)
    assert marked(table, given_lanes, tombstones=tombstones) == model(
        given_lanes, tombstones=tombstones
    )
    keys = {m.key for lane in given_lanes for m in lane} - {None}
    alive = sum(map(len, model(given_lanes)))
    state = table.state
    assert (state.keys, state.tombstones) == (len(keys), len(keys) - alive)
    assert state.null_keys == sum(m.key is None for lane in given_lanes for m in lane)


@given(lanes, st.integers(1, 5))
def test_slices_of_the_keys_are_all_of_them_once(
    given_lanes: list[list[Shown]], slices: int
) -> None:
    survivors = [Survivors(len(messages)) for messages in given_lanes]
    keys = 0
    for index in range(slices):
        table = Latest(memory_max=SIZE, slices=slices, slice_index=index)
        for lane, messages in enumerate(given_lanes):
            show(table, lane, messages, 7)
        keys += table.state.keys
        for lane, each in enumerate(survivors):
            table.mark(each, lane=lane)
    assert [set(each.rows(0, each.count)) for each in survivors] == model(given_lanes)
    assert keys == len({m.key for lane in given_lanes for m in lane} - {None})


def test_of_equal_orders_the_greater_lane_and_then_the_later_place_wins() -> None:
    table = Latest(memory_max=SIZE)
    twice = Columns.of([b"x", b"y"], keys=[b"k", b"k"])
    for lane in (1, 2, 0):
        table.add(twice, base=10, lane=lane, orders=5)
    for lane, rows in ((0, []), (1, []), (2, [11])):
        survivors = Survivors(2, first=10)
        table.mark(survivors, lane=lane)
        assert [10 + row for row in survivors.rows(10, 2)] == rows


@given(st.lists(st.binary(max_size=3), max_size=40), st.integers(1, 7))
def test_keys_of_other_partitions_are_counted_once(keys: list[bytes], partitions: int) -> None:
    table = Latest(memory_max=SIZE, partitions=partitions, partition=partitions - 1)
    for base in (0, len(keys)):
        table.add(Columns.of([b"v"] * len(keys), keys=keys), base=base, lane=0, orders=0)
    routed = {key: (murmur3(key) & 0x7FFFFFFF) % partitions for key in keys}
    assert table.state.foreign == sum(to != partitions - 1 for to in routed.values())


@settings(max_examples=10)
@given(st.integers(1, 5000), st.integers(0, 5000))
def test_a_table_grows_without_losing_a_key(count: int, shift: int) -> None:
    table = Latest(memory_max=4 * SIZE)
    keys = [b"key-%d" % i for i in range(count)]
    again = keys[shift:]
    table.add(Columns.of([b"v"] * count, keys=keys), base=0, lane=0, orders=1)
    table.add(Columns.of([None] * len(again), keys=again), base=count, lane=0, orders=1)
    assert (table.state.keys, table.state.tombstones) == (count, len(again))
    assert marked(table, [[Shown(b"", b"", 0)] * count]) == [set(range(min(shift, count)))]


@pytest.mark.parametrize(("size", "slices"), [(16, 60), (1000, 60), (100_000, 500)])
def test_memory_stays_within_its_bound_and_slices_get_through(size: int, slices: int) -> None:
    memory_max = latest.MEMORY_MIN
    keys = [b"%d" % i + bytes(size) for i in range(min(20_000, 4_000_000 // size))]
    columns = Columns.of([b"v"] * len(keys), keys=keys)
    table = Latest(memory_max=memory_max)
    with pytest.raises(Full):
        table.add(columns, base=0, lane=0, orders=0)
    assert table.state.memory <= memory_max
    with pytest.raises(Full):
        table.add(Columns.of([b"v"], keys=[b"k"]), base=0, lane=0, orders=0)
    survivors = Survivors(len(keys))
    for index in range(slices):
        table = Latest(memory_max=memory_max, slices=slices, slice_index=index)
        table.add(columns, base=0, lane=0, orders=0)
        assert table.state.memory <= memory_max
        table.mark(survivors, lane=0)
    assert survivors.marked == len(keys)


def test_messages_without_keys_are_left_when_asked_for() -> None:
    columns = Columns.of([b"1", b"2", b"3"], keys=[None, b"k", None])
    table = Latest(memory_max=SIZE)
    survivors = Survivors(7)
    for base, batch in ((0, columns), (3, Columns.of([b"4"])), (4, columns)):
        table.add(batch, base=base, lane=0, orders=0)
        survivors.keep_null_keys(batch, base)
    table.mark(survivors, lane=0)
    assert list(survivors.rows(0, 7)) == [0, 2, 3, 4, 5, 6]
    assert list(survivors.rows(3, 3)) == [0, 1, 2]
    assert survivors.marked == 6


def test_what_does_not_fit_together_is_refused() -> None:
    columns = Columns.of([b"v"], keys=[b"k"])
    with pytest.raises(ValueError, match="bytes of orders"):
        Latest(memory_max=SIZE).add(columns, base=0, lane=0, orders=array("q", [1, 2]))
    for memory_max, slices, index, partitions, partition in (
        (1000, 1, 0, 0, 0),
        (SIZE, 0, 0, 0, 0),
        (SIZE, 2, 2, 0, 0),
        (SIZE, 1, 0, 3, 3),
    ):
        with pytest.raises(ValueError, match="slice"):
            Latest(
                memory_max=memory_max,
                slices=slices,
                slice_index=index,
                partitions=partitions,
                partition=partition,
            )
    for base, count in ((0, 3), (5, 1), (1, -1)):
        with pytest.raises(ValueError, match="messages"):
            Survivors(2, first=1).rows(base, count)


@pytest.mark.parametrize("offsets", [[0, 2], [-1, 1], [1, 0], [5, 6]])
def test_offsets_out_of_bounds_are_refused(offsets: list[int]) -> None:
    wrong = Binary(memoryview(array("i", offsets)), memoryview(b"a"))
    good = Binary.of([b"a"])
    for values, keys in ((wrong, good), (good, wrong)):
        table = Latest(memory_max=SIZE)
        with pytest.raises(ValueError, match="out of bounds"):
            table.add(Columns(count=1, values=values, keys=keys), base=0, lane=0, orders=0)
