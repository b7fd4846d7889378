"""Producing in order of event time: what goes back is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
import trio
from fake_lane import TOPIC, FakeLanes, make_record, producing
from hypothesis import given, strategies
from trio.testing import MockClock

from ledger_client.errors import BadTopic, EventTimeBack, SendUnknown

ORDERED = make_record(order="event-time")
NS = 1_700_000_000_123_456_789


async def test_an_event_time_that_goes_back_is_refused_with_all_that_matters(
    autojump_clock: MockClock,
) -> None:
    """TB-14, TB-49, TB-60: topic, partition, lane, the time and the last accepted one, in ns."""
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=2, order="event-time")) as producer:
        await producer.send(b"a", event_time=NS, partition=1)
        with pytest.raises(EventTimeBack) as back:
            await producer.send(b"b", event_time=NS - 1, partition=1)
        await producer.send(b"c", event_time=NS, partition=1)
        await producer.send(b"other partition", event_time=5, partition=0)
    assert (back.value.topic, back.value.partition, back.value.lane) == (TOPIC, 1, 0)
    assert (back.value.event_time, back.value.last_event_time) == (NS - 1, NS)
    assert str(back.value) == (
        f"topic {TOPIC}: lane 0 of partition 1: event time {NS - 1} ns is lower than "
        f"the last accepted, {NS} ns"
    )
    assert lanes.values(1) == [b"a", b"c"]


async def test_what_is_queued_counts_as_accepted(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, ORDERED) as producer:
        producer.send_nowait(b"a", event_time=9)
        with pytest.raises(EventTimeBack, match="last accepted, 9 ns"):
            producer.send_nowait(b"b", event_time=8)
    assert lanes.values() == [b"a"]


async def test_the_last_time_holds_for_the_next_producer(autojump_clock: MockClock) -> None:
    """TB-14: also across ledgers and after a take-over."""
    lanes = FakeLanes()
    async with producing(lanes, ORDERED) as producer:
        await producer.send_many([b"a", b"b"], event_times=[1, 7])
    async with producing(lanes, ORDERED) as producer:
        with pytest.raises(EventTimeBack, match="last accepted, 7 ns"):
            producer.send_nowait(b"c", event_time=6)
        with pytest.raises(EventTimeBack, match="last accepted, 7 ns"):
            await producer.send_many([b"c"], event_times=[6])
        await producer.send(b"d", event_time=7)
    assert lanes.values() == [b"a", b"b", b"d"]


async def test_every_message_needs_a_time(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, ORDERED) as producer:
        for refused in (
            producer.send(b"a"),
            producer.send_many([b"a"]),
            producer.send_many([b"a", b"b"], event_times=[1, None]),
            producer.send_many([b"a", b"b"], event_times=pa.array([1, None])),
        ):
            with pytest.raises(BadTopic, match="every message needs one"):
                await refused
    assert lanes.values() == []


@pytest.mark.parametrize("arrow", [False, True])
async def test_a_call_with_a_time_that_goes_back_sends_nothing(
    autojump_clock: MockClock, arrow: bool
) -> None:
    lanes = FakeLanes()
    times: Sequence[int] = [*range(100_000), 5, 100_001]
    values = [b"x"] * len(times)
    async with producing(lanes, ORDERED) as producer:
        with pytest.raises(EventTimeBack, match="time 5 ns is lower than the last accepted, 99999"):
            await producer.send_many(values, event_times=pa.array(times) if arrow else times)
        await producer.send(b"first", event_time=0)
    assert lanes.values() == [b"first"]


TIMES = strategies.lists(
    strategies.tuples(strategies.sampled_from([b"a", b"b", b"c", b"d"]), strategies.integers(0, 9)),
    max_size=12,
)


@given(before=TIMES, messages=TIMES)
def test_each_lane_has_an_order_of_its_own(
    before: list[tuple[bytes, int]], messages: list[tuple[bytes, int]]
) -> None:
    """A call is refused when, and only when, one of its messages would be refused alone."""

    async def outcome(many: bool) -> tuple[str, dict[int, list[bytes | None]]]:
        lanes = FakeLanes(delay_s=0)
        topic = make_record(partitions=3, order="event-time")
        async with producing(lanes, topic, linger_ms=0) as producer:
            for key, time in before:
                try:
                    await producer.send(b"%d" % time, key=key, event_time=time)
                except EventTimeBack:
                    continue
            kept = {index: lanes.values(index) for index in range(3)}
            try:
                if many:
                    keys, times = [key for key, _ in messages], [time for _, time in messages]
                    values = [b"%d" % time for time in times]
                    await producer.send_many(values, keys=keys, event_times=times)
                else:
                    for key, time in messages:
                        await producer.send(b"%d" % time, key=key, event_time=time)
            except EventTimeBack as back:
                return f"{back.partition} {back.event_time} {back.last_event_time}", kept
        return "kept", {index: lanes.values(index) for index in range(3)}

    assert trio.run(outcome, True) == trio.run(outcome, False)


@given(
    strategies.lists(strategies.sampled_from([None, b"a", b"b", b"c"]), max_size=40),
    strategies.integers(1, 5),
)
def test_messages_without_a_key_keep_the_order_of_time_beside_those_with_one(
    keys: list[bytes | None], batch_messages: int
) -> None:
    async def kept() -> list[list[int | None]]:
        lanes = FakeLanes(delay_s=0)
        topic = make_record(partitions=3, order="event-time")
        async with producing(lanes, topic, batch_messages=batch_messages) as producer:
            for first in (0, len(keys)):
                times = range(first, first + len(keys))
                await producer.send_many([b"x"] * len(keys), keys=keys, event_times=times)
        return [[message.event_time for message in lanes.messages(index)] for index in range(3)]

    found = trio.run(kept)
    assert all(times == sorted(times, key=lambda time: time or 0) for times in found)
    assert sum(map(len, found)) == 2 * len(keys)


async def test_others_wait_while_a_call_is_sent(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, ORDERED, batch_bytes=1 << 20) as producer:
        lanes.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: producer.send_many([bytes(1 << 19)] * 30, event_times=range(30))
            )
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: producer.send(b"between", event_time=29))
            nursery.start_soon(lambda: producer.send_many([b"behind"], event_times=[29]))
            await trio.testing.wait_all_tasks_blocked()
            lanes.gate.set()
    times = [message.event_time for message in lanes.messages()]
    assert times == [*range(30), 29, 29]


async def test_after_an_unknown_outcome_the_lane_says_what_its_last_time_is(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, ORDERED, batch_messages=1) as producer:
        await producer.send(b"a", event_time=1)
        lanes.fail_next(kept=0)
        with pytest.raises(SendUnknown):
            await producer.send(b"b", event_time=9)
        await producer.send(b"c", event_time=5)
        lanes.fail_next(kept=1)
        with pytest.raises(SendUnknown):
            await producer.send(b"d", event_time=9)
        with pytest.raises(EventTimeBack):
            await producer.send(b"e", event_time=8)
    assert lanes.values() == [b"a", b"c", b"d"]
