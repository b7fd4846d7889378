"""Ticks as a tick ledger keeps them: changes of covers fold into entries and out of them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ledger_client.topics.ticks import Tick, entry_of, unfolded
from native.errors import Corrupt
from native.tick import LaneIndex, decode_tick, encode_tick

lanes = st.tuples(st.integers(-1, 2), st.integers(0, 3))
steps = st.lists(st.dictionaries(lanes, st.integers(0, 5), max_size=4), min_size=1, max_size=12)


@given(steps, st.integers(1, 4))
def test_ticks_come_back_with_all_their_covers(
    gains: list[dict[LaneIndex, int]], whole_every: int
) -> None:
    ticks, covers = [], dict[LaneIndex, int]()
    for number, gain in enumerate(gains):
        covers = {**covers, **{lane: covers.get(lane, 0) + n for lane, n in gain.items()}}
        ticks.append(Tick(10 * number + 10, covers, 10 * number + 10))
    payloads = [
        entry_of(tick, ticks[n - 1].covers if n % whole_every else None, created_ms=0)
        for n, tick in enumerate(ticks)
    ]
    found = list(unfolded(payloads))
    assert [(t.timestamp, t.covers) for t in found] == [(t.timestamp, t.covers) for t in ticks]
    middle = len(payloads) // 2
    if middle:
        assert list(unfolded(payloads[middle:], found[middle - 1])) == found[middle:]


def test_an_entry_says_only_the_covers_that_changed() -> None:
    tick = Tick(9, {(0, 0): 5, (0, 1): 7}, 9)
    changes = decode_tick(entry_of(tick, {(0, 0): 5, (0, 1): 6}, created_ms=0))
    assert (changes.covers, changes.is_whole) == ({(0, 1): 7}, False)
    assert decode_tick(entry_of(tick, None, created_ms=0)).is_whole


@pytest.mark.parametrize(
    "second",
    [
        encode_tick(5, {(0, 0): 4}, is_whole=True),
        encode_tick(6, {(0, 0): 2}, is_whole=True),
        encode_tick(6, {(0, 0): 2}, is_whole=False),
        encode_tick(6, {(0, 1): 9}, is_whole=True),
    ],
    ids=["same time", "less whole", "less changed", "without a lane"],
)
def test_ticks_that_contradict_each_other_are_damage(second: bytes) -> None:
    first = encode_tick(5, {(0, 0): 3}, is_whole=True)
    with pytest.raises(Corrupt):
        list(unfolded([first, second]))


def test_changes_are_not_read_without_what_they_change() -> None:
    with pytest.raises(Corrupt, match="not known"):
        list(unfolded([encode_tick(5, {}, is_whole=False)]))
