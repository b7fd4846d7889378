"""Merged order, against a sorted list: on a first run, and going on from anywhere."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given, strategies as st

from ledger_client.jobs.replay.source import Clocked, clocks_of, new_order
from ledger_client.topics.messages import MessageBatch, MessageRange
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.cursor import LaneCursor
from ledger_client.topics.reading.merging import EventTimes, MergeOrder
from metadata.replays import Order as OrderName
from native.batch import BatchHeader, Columns, Decoded

LANES = st.lists(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3)), max_size=6), min_size=1, max_size=4
)
"""of each lane, the time of each entry and how many messages it has"""


Times = Sequence[Sequence[tuple[int, int]]]


def lane_of(number: int) -> LaneRef:
    return LaneRef(0, number, 0, "t/t", 7, ordered=False)


def entry(lane: LaneRef, number: int, created_ms: int, count: int, stamp: int = 0) -> MessageRange:
    header = BatchHeader(0, "none", True, count, 10, "", -1, 0, created_ms, stamp << 18, None, None)
    columns = Columns.of([b"v"] * count)
    batch = MessageBatch(lane, Place(0, number, 0, 1, number), Decoded(header, columns))
    return MessageRange(batch, 0, count)


class Lane:
    """A lane whose entries are all here, as an order sees it."""

    def __init__(
        self, lane: LaneRef, slices: Sequence[MessageRange], *, open_end: bool = False
    ) -> None:
        self.lane = lane
        self._slices = deque(slices)
        self._open_end = open_end

    @property
    def ended(self) -> bool:
        return not self._slices and not self._open_end

    def peek(self) -> MessageRange | None:
        return self._slices[0] if self._slices else None

    def take(self, piece: MessageRange) -> MessageRange:
        assert self._slices.popleft() is piece
        return piece


def lanes_from(given_lanes: Times) -> list[list[MessageRange]]:
    return [
        [entry(lane_of(lane), number, *each) for number, each in enumerate(entries)]
        for lane, entries in enumerate(given_lanes)
    ]


def merged(
    order: MergeOrder, lanes: Mapping[LaneRef, Sequence[MessageRange]]
) -> list[tuple[int, int]]:
    """The lane and entry of each entry, in order."""
    streams = [Lane(lane, slices) for lane, slices in lanes.items()]
    found: list[tuple[int, int]] = []
    while (run := order.next_batch(cast(list[LaneCursor], streams), frozenset())) is not None:
        (piece,) = run.ranges
        found.append((piece.batch.lane.partition, piece.batch.place.entry))
    assert all(stream.ended for stream in streams)
    return found


def in_time(given_lanes: Times) -> list[tuple[int, int]]:
    """The rule, by sorting: an entry counts as of its lane's time, which never goes back."""
    keys = []
    for lane, entries in enumerate(given_lanes):
        latest = 0
        for number, (time, _) in enumerate(entries):
            latest = max(latest, time)
            keys.append((latest, lane, number))
    return [(lane, number) for _, lane, number in sorted(keys)]


def in_turn(given_lanes: Times) -> list[tuple[int, int]]:
    keys = [(n, lane) for lane, entries in enumerate(given_lanes) for n in range(len(entries))]
    return [(lane, number) for number, lane in sorted(keys)]


RULES: dict[OrderName, Callable[[Times], list[tuple[int, int]]]] = {
    "time": in_time,
    "arrival": in_turn,
}


@pytest.mark.parametrize("name", RULES)
@given(lanes=LANES, chance=st.randoms(use_true_random=False))
def test_it_is_the_sorted_list_and_goes_on_as_it_would_have(
    name: OrderName, lanes: Times, chance: random.Random
) -> None:
    slices = dict(zip(map(lane_of, range(len(lanes))), lanes_from(lanes), strict=True))
    whole = merged(new_order(name, {}), slices)
    assert whole == RULES[name](lanes)
    cut = chance.randint(0, len(whole))
    order = new_order(name, {})
    streams = cast(list[LaneCursor], [Lane(lane, each) for lane, each in slices.items()])
    for _ in range(cut):
        assert order.next_batch(streams, frozenset()) is not None
    left = {lane: list(cast(Lane, s)._slices) for lane, s in zip(slices, streams, strict=True)}
    assert merged(new_order(name, dict(clocks_of(order))), left) == whole[cut:]


def test_a_lane_that_has_nothing_here_is_waited_for() -> None:
    here = Lane(lane_of(0), [entry(lane_of(0), 0, 1, 1)])
    coming = Lane(lane_of(1), [], open_end=True)
    order = new_order("time", {})
    assert order.next_batch(cast(list[LaneCursor], [here, coming]), frozenset()) is None


def test_a_timestamp_goes_before_the_time_of_the_producer() -> None:
    late = [entry(lane_of(0), 0, created_ms=1, count=1, stamp=9)]
    early = [entry(lane_of(1), 0, created_ms=5, count=1)]
    order = new_order("time", {})
    assert merged(order, {lane_of(0): late, lane_of(1): early}) == [(1, 0), (0, 0)]


def test_the_rest_of_an_entry_is_still_of_its_turn() -> None:
    """A range may begin within an entry, and a run may end there."""
    whole = entry(lane_of(0), 0, 1, 3)
    rest = MessageRange(whole.batch, 1, 3)
    order = Clocked(new_order("arrival", {})._clock, {lane_of(0): 1})  # type: ignore[attr-defined]
    other = [entry(lane_of(1), number, 1, 1) for number in range(3)]
    expected = [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert merged(order, {lane_of(0): [rest], lane_of(1): other}) == expected


def test_event_times_are_merged_as_readers_merge_them() -> None:
    name: OrderName = "event-time"
    assert isinstance(new_order(name, {lane_of(0): 5}), EventTimes)
    assert clocks_of(new_order(name, {})) == {}
