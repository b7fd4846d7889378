"""Checksums of messages: the documented value, a model of ten lines, order, and bounds."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, strategies as st

from native.batch import Binary, Columns, Headers
from native.checksum import FACTOR, Checksum

WORD = (1 << 64) - 1
OPTIONAL = st.none() | st.binary(max_size=40)
TIMES = st.none() | st.integers(-(1 << 63) + 1, (1 << 63) - 1)
HEADERS = st.dictionaries(st.text(max_size=9), st.binary(max_size=9), max_size=3)
MESSAGES = st.lists(st.tuples(OPTIONAL, OPTIONAL, TIMES, HEADERS), max_size=12)
Given = list[tuple[bytes | None, bytes | None, int | None, dict[str, bytes]]]


def columns(messages: Given) -> Columns:
    return Columns.of(
        [value for _, value, _, _ in messages],
        keys=[key for key, _, _, _ in messages],
        event_times=[time for _, _, time, _ in messages],
        headers=[headers for _, _, _, headers in messages],
    )


def words(field: bytes | None) -> list[int]:
    if field is None:
        return [0]
    cells = [field[at : at + 8] for at in range(0, len(field), 8)]
    return [len(field) + 1, *(int.from_bytes(cell, "little") for cell in cells)]


def hash_of(
    key: bytes | None, value: bytes | None, time: int | None, headers: dict[str, bytes]
) -> int:
    taken = [*words(key), *words(value), *([0] if time is None else [1, time & WORD])]
    taken.append(len(headers))
    for name, content in headers.items():
        taken += [*words(name.encode()), *words(content)]
    found = 0x2545F4914F6CDD1D
    for word in [*taken, 0]:
        found = (found ^ word) * 0x9FB21C651E98DF25 & WORD
        found ^= found >> 29
    return found


def test_the_documented_message_has_the_documented_hash() -> None:
    found = Checksum().add(Columns.of([b"hi"], keys=[b"k"], event_times=[7]))
    assert found == Checksum(1, 0xF67E416491B7B086, 0xF67E416491B7B086)
    assert found.text == "f67e416491b7b086:f67e416491b7b086"
    assert found.total_text == "f67e416491b7b086"


@given(MESSAGES)
def test_it_is_what_the_rules_say(messages: Given) -> None:
    total = chain = 0
    for message in messages:
        found = hash_of(*message)
        total, chain = (total + found) & WORD, (chain * FACTOR + found) & WORD
    assert Checksum().add(columns(messages)) == Checksum(len(messages), total, chain)


@given(MESSAGES, MESSAGES)
def test_parts_make_the_whole(one: Given, other: Given) -> None:
    whole = Checksum().add(columns(one + other))
    assert Checksum().add(columns(one)).add(columns(other)) == whole
    assert Checksum().add(columns(one)).join(Checksum().add(columns(other))) == whole


@given(MESSAGES, st.randoms(use_true_random=False))
def test_only_the_chain_knows_the_order(messages: Given, chance: random.Random) -> None:
    order = list(range(len(messages)))
    chance.shuffle(order)
    shuffled = Checksum().add(columns(messages), array("I", order))
    assert shuffled == Checksum().add(columns([messages[place] for place in order]))
    assert shuffled.total == Checksum().add(columns(messages)).total
    distinct = len({hash_of(*message) for message in messages}) == len(messages)
    if distinct and order != sorted(order):
        assert shuffled.chain != Checksum().add(columns(messages)).chain


@pytest.mark.parametrize(
    "other",
    [
        Columns.of([b""], keys=[b"k"], event_times=[7]),
        Columns.of([b"k"], keys=[None], event_times=[7]),
        Columns.of([None], keys=[b"k"], event_times=[0]),
        Columns.of([None], keys=[b"k"]),
        Columns.of([None], keys=[b"k"], event_times=[7], headers=[{"h": b""}]),
    ],
)
def test_null_is_not_empty_and_columns_are_not_mixed_up(other: Columns) -> None:
    assert Checksum().add(Columns.of([None], keys=[b"k"], event_times=[7])) != Checksum().add(other)


def test_what_is_out_of_bounds_is_refused_and_changes_nothing() -> None:
    sound = Columns.of([b"a", b"b"])
    with pytest.raises(ValueError, match="out of bounds"):
        Checksum().add(sound, array("I", [0, 2]))
    offsets = memoryview(array("i", [0, 5, 9]))
    damaged = Columns(count=2, values=Binary(offsets, memoryview(b"123456")))
    with pytest.raises(ValueError, match="out of bounds"):
        Checksum(3, 1, 1).add(damaged)
    names = Binary.of([b"n"])
    wrong = Headers(memoryview(array("i", [0, 2])), names, names)
    with pytest.raises(ValueError, match="out of bounds"):
        Checksum().add(Columns(count=1, values=Binary.of([b"v"]), headers=wrong))
