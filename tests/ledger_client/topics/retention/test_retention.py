from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from topic_rig import HOUR_MS, begun, holdings, row

from ledger_client.topics.retention.holdings import LaneHoldings, Pin
from ledger_client.topics.retention.retention import (
    RESEND_S,
    Before,
    Fate,
    plan_purge,
    plan_retention,
    spell,
)
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.topics import LaneLedger, LaneOwner, Retention

HOUR_S = 3600.0
FOR_EVER = Retention(age_s=-1, size=-1)


def gone(fates: list[Fate]) -> list[int]:
    return [fate.ledger.ledger_id for fate in fates if fate.goes]


def pin(number: int, *, partition: int = -1, lane: int = 0, holder: str = "group g") -> Pin:
    return Pin(partition=partition, lane=lane, number=number, holder=holder)


# --- limits -----------------------------------------------------------------------------


def test_ledgers_closed_longer_ago_than_the_age_go() -> None:
    """TD-07, PS-35: retention by time."""
    lane = holdings([row(0), row(1), row(2)])  # closed at 1 h, 2 h, 3 h
    retention = Retention(age_s=2 * HOUR_S)
    assert gone(plan_retention([lane], retention, now_ms=3 * HOUR_MS - 1)) == []
    assert gone(plan_retention([lane], retention, now_ms=3 * HOUR_MS)) == [100]
    assert gone(plan_retention([lane], retention, now_ms=9 * HOUR_MS)) == [100, 101, 102]


def test_the_oldest_go_until_the_partition_is_within_its_quota() -> None:
    """TD-07, PS-35: retention by size."""
    lane = holdings([row(n) for n in range(5)])  # 1000 bytes each
    for size, expected in [
        (5000, []),
        (4999, [100]),
        (2500, [100, 101, 102]),
        (0, [100, 101, 102, 103, 104]),
    ]:
        fates = plan_retention([lane], Retention(age_s=-1, size=size), now_ms=5 * HOUR_MS)
        assert gone(fates) == expected


def test_age_or_size_is_enough() -> None:
    """PS-35: time expired OR size over quota."""
    lane = holdings([row(0), row(1), row(2)])
    by_age = Retention(age_s=HOUR_S, size=10_000)
    by_size = Retention(age_s=100 * HOUR_S, size=1500)
    assert gone(plan_retention([lane], by_age, now_ms=2 * HOUR_MS)) == [100]
    assert gone(plan_retention([lane], by_size, now_ms=2 * HOUR_MS)) == [100, 101]


def test_without_limits_nothing_goes_ever() -> None:
    """PS-35: -1 is infinite."""
    (fate,) = plan_retention([holdings([row(0)])], FOR_EVER, now_ms=10**15)
    assert (fate.goes, fate.reason, fate.due_ms) == (False, "unlimited", None)


def test_limits_of_zero_let_everything_closed_go_at_once() -> None:
    lane = holdings([row(0), begun(1)])
    assert gone(plan_retention([lane], Retention(age_s=0), now_ms=HOUR_MS)) == [100]


def test_the_ledger_that_is_written_and_the_prepared_one_never_go() -> None:
    """PS-04, PS-35: the current ledger is never removed."""
    prepared = LaneLedger(ledger_id=102, state="prepared", created_ms=1)
    owner = LaneOwner(producer="till", host="h1")
    lane = holdings([row(0), begun(1), prepared], owner=owner)
    fates = plan_retention([lane], Retention(age_s=0, size=0), now_ms=10**15)
    assert [(fate.goes, fate.reason) for fate in fates] == [
        (True, "old"),
        (False, "open"),
        (False, "prepared"),
    ]
    assert "till on h1" in fates[1].why
    (alone,) = plan_retention([holdings([begun(0)])], FOR_EVER, now_ms=0)
    assert "nobody writes it" in alone.why


def test_the_scan_of_a_lane_ends_at_the_first_that_stays() -> None:
    """PS-35: a younger ledger before an older one, by a clock that was put back, keeps it."""
    lane = holdings([row(0), row(1, closed_ms=9 * HOUR_MS), row(2)])
    fates = plan_retention([lane], Retention(age_s=2 * HOUR_S), now_ms=10 * HOUR_MS)
    assert gone(fates) == [100]
    assert (fates[2].reason, fates[2].due_ms) == ("behind", 11 * HOUR_MS)
    assert "behind ledger 101" in fates[2].why


def test_lanes_share_the_quota_of_their_partition_and_the_first_closed_goes_first() -> None:
    a = holdings([row(0), row(2)], lane=0)
    b = holdings([row(1), row(3)], lane=1)
    other = holdings([row(0)], partition=0)
    fates = plan_retention([other, b, a], Retention(age_s=-1, size=1000), now_ms=9 * HOUR_MS)
    assert gone(fates) == [100, 102, 101]  # by lane; what is left is 103 of lane 1
    assert [(f.partition, f.lane, f.number) for f in fates] == [
        (-1, 0, 0),
        (-1, 0, 1),
        (-1, 1, 0),
        (-1, 1, 1),
        (0, 0, 0),
    ]


def test_a_kept_ledger_says_why_and_when_it_will_go() -> None:
    fates = plan_retention([holdings([row(0)])], Retention(age_s=7 * 24 * HOUR_S), now_ms=HOUR_MS)
    assert (fates[0].reason, fates[0].due_ms) == ("young", HOUR_MS + 7 * 24 * HOUR_MS)
    assert fates[0].why == "kept for 7 d after its close"
    (in_quota,) = plan_retention([holdings([row(0)])], Retention(age_s=-1, size=1000), now_ms=0)
    assert (in_quota.reason, in_quota.due_ms) == ("in quota", None)


# --- what holds back --------------------------------------------------------------------


def test_a_pin_keeps_its_ledger_and_all_after_it_whatever_the_limits() -> None:
    lane = holdings([row(n) for n in range(4)])
    retention = Retention(age_s=0, size=0)
    fates = plan_retention([lane], retention, now_ms=9 * HOUR_MS, pins=[pin(2)])
    assert gone(fates) == [100, 101]
    assert fates[2].why == "needed by group g"
    for other in (pin(2, lane=1), pin(2, partition=0)):
        assert len(gone(plan_retention([lane], retention, now_ms=9 * HOUR_MS, pins=[other]))) == 4


def test_a_pinned_lane_lets_the_others_of_its_partition_go() -> None:
    a, b = holdings([row(0), row(2)], lane=0), holdings([row(1), row(3)], lane=1)
    fates = plan_retention([a, b], Retention(size=0), now_ms=5 * HOUR_MS, pins=[pin(0)])
    assert gone(fates) == [101, 103]


def test_the_last_ledger_of_a_named_producer_stays_while_it_may_send_again() -> None:
    """PS-39: its sequence numbers are in there, and are forgotten after 360 min."""
    lane = holdings([row(0, named_ms=5), row(1, named_ms=HOUR_MS)])
    now_ms = HOUR_MS + round(RESEND_S * 1000)
    for plan_at, expected in [(now_ms - 1, [100]), (now_ms, [100, 101])]:
        assert gone(plan_retention([lane], Retention(age_s=0), now_ms=plan_at)) == expected
        everything = plan_purge([lane], PublishTime(plan_at), now_ms=plan_at)
        assert gone(everything) == expected
    going_on = holdings([row(0), row(1, named_ms=now_ms), begun(2)])
    assert gone(plan_retention([going_on], Retention(age_s=0), now_ms=now_ms)) == [100, 101]
    prepared = row(2, state="prepared", closed_ms=0)  # by a writer that was killed then
    left = holdings([row(0), row(1, named_ms=now_ms), prepared])
    assert gone(plan_retention([left], Retention(age_s=0), now_ms=now_ms)) == [100]


# --- purge ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (EventTime(999), []),
        (EventTime(1000), [100]),
        (EventTime(3000), [100, 101, 102]),
        (Timestamp(99), []),
        (Timestamp(100), [100]),
        (Timestamp(1 << 63), [100, 101, 102]),
        (PublishTime(HOUR_MS - 1), []),
        (PublishTime(HOUR_MS), [100]),
        (PublishTime(9 * HOUR_MS), [100, 101, 102]),
    ],
)
def test_a_purge_takes_what_is_wholly_before(before: Before, expected: list[int]) -> None:
    """TB-75, BK-22: truncation up to a time, by whole ledgers."""
    lane = holdings([row(0), row(1), row(2), begun(3)])
    assert gone(plan_purge([lane], before, now_ms=9 * HOUR_MS)) == expected


def test_a_purge_stops_at_a_ledger_of_which_nobody_can_say_how_old_it_is() -> None:
    nothing = {"first_event_time": None, "last_event_time": None, "last_timestamp": 0}
    lane = holdings([row(0), row(1, **nothing), row(2)])
    for before in (EventTime(10**9), Timestamp(10**9)):
        fates = plan_purge([lane], before, now_ms=0)
        assert gone(fates) == [100]
        assert [fate.reason for fate in fates[1:]] == ["after", "behind"]


def test_a_ledger_without_messages_is_before_everything() -> None:
    empty = row(0, messages=0, size=0, first_event_time=None, last_event_time=None)
    assert gone(plan_purge([holdings([empty, row(1)])], EventTime(0), now_ms=0)) == [100]


def test_pins_win_over_a_purge() -> None:
    lane = holdings([row(0), row(1)])
    fates = plan_purge([lane], PublishTime(9 * HOUR_MS), now_ms=0, pins=[pin(1, holder="a cut")])
    assert gone(fates) == [100]
    assert fates[1].why == "needed by a cut"


# --- any lanes --------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn) -> list[LaneHoldings]:
    lanes = []
    for lane in range(draw(st.integers(1, 3))):
        ages = draw(st.lists(st.integers(0, 20), max_size=5))
        rows = [
            row(n, closed_ms=at * HOUR_MS, size=draw(st.integers(0, 3)) * 500)
            for n, at in enumerate(ages)
        ]
        lanes.append(holdings([*rows, begun(len(rows))], lane=lane))
    return lanes


@given(partitions(), st.integers(-1, 20), st.integers(-1, 8), st.lists(st.integers(0, 5)))
def test_what_is_left_has_no_hole_no_excess_and_every_pin(
    lanes: list[LaneHoldings], age: int, size: int, numbers: list[int]
) -> None:
    retention = Retention(
        age_s=age * HOUR_S if age >= 0 else -1, size=size * 500 if size >= 0 else -1
    )
    pins = [pin(number, lane=lane % 3) for lane, number in enumerate(numbers)]
    shuffled = random.Random(1).sample(lanes, len(lanes))
    fates = plan_retention(shuffled, retention, now_ms=20 * HOUR_MS, pins=pins)
    assert len(fates) == sum(len(lane.ledgers) for lane in lanes)
    for lane in lanes:
        mine = [fate for fate in fates if fate.lane == lane.lane]
        assert [fate.number for fate in mine] == list(range(len(mine)))
        left = [fate.goes for fate in mine].index(False)
        assert not any(fate.goes for fate in mine[left:])
        assert mine[-1].reason in {"open", "pinned"}
        assert all(
            not fate.goes
            for fate in mine
            for p in pins
            if p.lane == fate.lane and fate.number >= p.number
        )
        if not pins and retention.age_s >= 0:
            first = mine[left]
            closed_ms = first.ledger.closed_ms or first.ledger.created_ms
            assert first.reason == "open" or 20 * HOUR_MS - closed_ms < age * HOUR_MS
    if not pins and retention.size >= 0:
        kept = [fate for fate in fates if not fate.goes and fate.ledger.state == "closed"]
        assert sum(fate.ledger.size for fate in kept) <= retention.size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (90, "90 s"), (60, "1 min"), (7200, "2 h"), (604800, "7 d"), (0.5, "0.5 s")],
)
def test_lengths_of_time_read_as_people_write_them(seconds: float, text: str) -> None:
    assert spell(seconds) == text
