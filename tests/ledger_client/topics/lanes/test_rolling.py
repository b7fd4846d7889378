"""When a ledger of a lane ends."""

from __future__ import annotations

import math

import msgspec
import pytest
from lane_rig import batch, make_topic, rows
from memory_cluster import memory_cluster
from trio import sleep
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.written_ledger import Rolling
from metadata.topics import RollPolicy


class Written(msgspec.Struct):
    batches: int = 1
    size: int = 10
    last_event_time: int | None = None


def rules(*, ordered: bool = False, **limits: float) -> Rolling:
    return Rolling(msgspec.convert({"age_s": 0, **limits}, RollPolicy), ordered=ordered)


@pytest.mark.parametrize(
    ("limits", "written", "age_s", "is_due"),
    [
        ({"size": 10}, Written(size=9), 0.0, False),
        ({"size": 10}, Written(size=10), 0.0, True),
        ({"entries": 3}, Written(batches=2), 0.0, False),
        ({"entries": 3}, Written(batches=3), 0.0, True),
        ({"entries": 0}, Written(batches=9), 0.0, False),
        ({"age_s": 5}, Written(), 4.9, False),
        ({"age_s": 5}, Written(), 5.0, True),
        ({"age_s": 5}, Written(batches=0, size=0), 9.0, False),
        ({"entries": 3, "age_min_s": 2}, Written(batches=9), 1.9, False),
        ({"entries": 3, "age_min_s": 2}, Written(batches=9), 2.0, True),
    ],
)
def test_a_ledger_is_full_by_size_count_or_age(
    limits: dict[str, float], written: Written, age_s: float, is_due: bool
) -> None:
    """PS-07, PS-27: whichever comes first; the minimum age suppresses; an empty one stays."""
    policy = msgspec.convert({"age_s": 0, **limits}, RollPolicy)
    found = Rolling(policy, ordered=False)
    assert found.is_due(written, age_s) == is_due
    assert found.is_due_before(written, age_s, None) == is_due


@pytest.mark.parametrize(
    ("size", "time_ns", "is_due"),
    [(10, 7, False), (10, 8, True), (19, 7, False), (20, 7, True), (9, 8, False)],
)
def test_a_ledger_ordered_by_event_time_ends_where_the_time_rises(
    size: int, time_ns: int, is_due: bool
) -> None:
    """TB-17, TB-19: or at twice the size, whatever the time."""
    written = Written(size=size, last_event_time=7)
    found = rules(ordered=True, size=10).is_due_before(written, 0.0, time_ns)
    assert found == is_due


def test_without_a_batch_only_age_ends_a_ledger_ordered_by_event_time() -> None:
    written = Written(size=15, last_event_time=7)
    assert not rules(ordered=True, size=10).is_due(written, 0.0)
    assert rules(ordered=True, size=10, age_s=5).is_due(written, 5.0)


def test_the_timer_is_set_for_what_comes_next() -> None:
    assert rules(age_s=5).due_in_s(Written(), 2.0) == 3.0
    assert rules(age_s=5, entries=1, age_min_s=3).due_in_s(Written(), 2.0) == 1.0
    assert rules(age_s=5).due_in_s(Written(batches=0), 2.0) == math.inf
    assert rules().due_in_s(Written(), 2.0) == math.inf


def test_who_waits_for_a_ledger_to_be_old_waits_longer_than_a_clock_can_round_off() -> None:
    almost = math.nextafter(5, 0)
    assert rules(age_s=5).due_in_s(Written(), almost) == 0.001


def test_the_next_ledger_is_made_ahead() -> None:
    assert not rules(size=100).wants_next(Written(size=49), 0.0)
    assert rules(size=100).wants_next(Written(size=50), 0.0)
    assert rules(entries=4).wants_next(Written(batches=2), 0.0)
    assert rules(age_s=10).wants_next(Written(), 9.0)
    assert not rules(age_s=10, entries=1).wants_next(Written(batches=0, size=0), 99.0)


async def test_a_ledger_with_messages_rolls_when_it_is_old(autojump_clock: MockClock) -> None:
    """PS-27: by a timer, and only one that is not empty."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, age_s=100.0)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await sleep(1000)
            assert len(rows(cluster)) == 1
            await lane.append([batch("a")])
            await wait_all_tasks_blocked()
            assert [row.state for row in rows(cluster)] == ["closed", "open"]
            await sleep(1000)
            assert len(rows(cluster)) == 2
            await lane.append([batch("b")])
        assert [row.messages for row in rows(cluster)] == [1, 1]


async def test_a_time_that_two_ledgers_share_is_marked(autojump_clock: MockClock) -> None:
    """TB-16, TB-19: at the hard limit, after an age, and after another writer."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, order="event-time", size=350, age_s=50.0)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            for _ in range(4):  # two fill a ledger, four do in any case
                await lane.append([batch("x" * 100, times=[5])])
            await lane.append([batch("x", times=[5])])
            assert [row.shares_first for row in rows(cluster)] == [False, True]
            await sleep(60)
            await lane.append([batch("y", times=[5])])
            assert [row.shares_first for row in rows(cluster)] == [False, True, True]
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("z", times=[5])])
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("z", times=[6])])
        found = rows(cluster)
        assert [row.shares_first for row in found] == [False, True, True, True, False]
        assert [row.first_event_time for row in found] == [5, 5, 5, 5, 6]
