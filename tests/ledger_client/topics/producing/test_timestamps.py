"""Messages of a topic with timesync get timestamps of the oracle, in the order of their lane."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import msgspec
import pytest
import trio
from fake_lane import Counted, FakeLanes, make_record, producing
from partition_model import Once
from trio.testing import MockClock

from ledger_client.errors import MetadataUnavailable, SendUnknown
from ledger_client.topics.producing.partition_machine import PartitionMachine, Rules
from metadata.time.timestamps import TimestampRange
from native.batch import Compression, decode, read_header

TIMED = make_record(timesync=True)


def stamps(lanes: FakeLanes, partition: int = -1) -> list[int]:
    """Return the timestamps of a partition's messages, in its order."""
    found: list[int] = []
    for batch in lanes.kept[partition]:
        columns = decode(batch.payload).columns
        assert columns.timestamps is not None
        assert read_header(batch.payload).last_timestamp == batch.last_timestamp
        found += columns.timestamps.tolist()
    return found


class Oracle(Counted):
    """Answers after a while, or fails."""

    def __init__(self, delay_s: float = 0.01) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.failure: Exception | None = None
        self.under_way = 0

    async def allocate(self, count: int = 1) -> TimestampRange:
        self.under_way += 1
        assert self.under_way == 1, "one question at a time"
        found = await super().allocate(count)
        await trio.sleep(self.delay_s)
        self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        return found


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
async def test_messages_get_timestamps_in_the_order_of_the_lane(
    compression: Compression, autojump_clock: MockClock
) -> None:
    """MV-13, MV-15: before it is sent; those of a producer rise in a lane."""
    oracle = Oracle()
    lanes = FakeLanes(oracle=oracle)
    async with producing(lanes, TIMED, batch_messages=3, compression=compression) as producer:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(producer.send, b"%d" % number)
        await producer.send_many([b"x" * 100] * 50)
        tickets = [producer.send_nowait(b"y") for _ in range(10)]
        await producer.flush()
        assert all(ticket.done for ticket in tickets)
    assert lanes.values() == [*lanes.values()[:20], *[b"x" * 100] * 50, *[b"y"] * 10]
    found = stamps(lanes)
    assert len(found) == 80
    assert all(a < b for a, b in pairwise(found))


async def test_a_message_that_is_no_batch_has_a_timestamp(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, TIMED, batching=False) as producer:
        await producer.send(b"a")
        await producer.send(b"b")
    assert stamps(lanes) == [1, 2]


async def test_batches_that_wait_are_asked_for_together(autojump_clock: MockClock) -> None:
    oracle = Oracle(delay_s=1)
    lanes = FakeLanes(oracle=oracle)
    async with (
        producing(lanes, TIMED, batch_messages=1) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(b"0")
        for number in range(1, 100):
            await trio.sleep(0.02)
            nursery.start_soon(producer.send, b"%d" % number)
    assert len(oracle.asked) <= 4
    assert sum(oracle.asked) == 100


async def test_a_message_alone_waits_for_its_timestamp_and_no_linger(
    autojump_clock: MockClock,
) -> None:
    oracle = Oracle(delay_s=0.1)
    lanes = FakeLanes(oracle=oracle, delay_s=0.5)
    async with producing(lanes, TIMED) as producer:
        await producer.send(b"opens the lane")
        for _ in range(3):
            began = trio.current_time()
            await producer.send(b"x")
            assert trio.current_time() - began == pytest.approx(0.6)
    assert lanes.sizes() == [1, 1, 1, 1]


async def test_messages_that_gather_go_when_nothing_is_under_way_any_more(
    autojump_clock: MockClock,
) -> None:
    oracle = Oracle(delay_s=0.0001)
    lanes = FakeLanes(oracle=oracle, delay_s=0.0005)
    async with producing(lanes, TIMED) as producer:
        await producer.send(b"opens the lane")
        began = trio.current_time()
        first = producer.send_nowait(b"a")
        await trio.sleep(0.0003)
        second = producer.send_nowait(b"b")
        await first.message_id()
        await second.message_id()
        assert trio.current_time() - began == pytest.approx(0.0012)


async def test_topics_without_timesync_ask_for_none(autojump_clock: MockClock) -> None:
    oracle = Oracle()
    lanes = FakeLanes(oracle=oracle)
    async with producing(lanes, None) as producer:
        await producer.send(b"a")
        await producer.send_many([b"b"])
    assert oracle.asked == []
    assert [batch.last_timestamp for batch in lanes.kept[-1]] == [0, 0]


async def test_a_lane_that_asks_for_timestamps_reports_all_below_what_its_client_has(
    autojump_clock: MockClock,
) -> None:
    """Those of other lanes count, so one that is seldom written does not hold ticks back."""
    oracle = Oracle()
    lanes = FakeLanes(oracle=oracle)
    record = msgspec.structs.replace(TIMED, partitions=2)
    async with producing(lanes, record, batch_messages=1) as producer:
        for partition in (0, 1, 1, 1):
            await producer.send(b"x", partition=partition)
        oracle.delay_s = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(producer.send, b"y", partition=0))
            await trio.sleep(0.5)
            report = producer._writers[0].report(100)
            assert report is not None
            assert report.timestamp == 4
            idle = producer._writers[1].report(100)
            assert idle is not None
            assert idle.timestamp == 100
    assert stamps(lanes, 0) == [1, 5]


async def test_a_lane_that_is_opened_anew_gets_later_timestamps_alone(
    autojump_clock: MockClock,
) -> None:
    oracle = Oracle()
    lanes = FakeLanes(delay_s=0.5, oracle=oracle)
    opened_at: list[int] = []
    async with producing(lanes, TIMED, batch_messages=1) as producer:
        await producer.send(b"0")
        lanes.fail_next()
        async with trio.open_nursery() as nursery:
            outcomes: list[bool] = []

            async def send(number: int) -> None:
                try:
                    await producer.send(b"%d" % number)
                except SendUnknown:
                    outcomes.append(False)
                else:
                    outcomes.append(True)

            for number in range(1, 30):
                nursery.start_soon(send, number)
                await trio.sleep(0.05)
                if len(lanes.opened) == 2 and not opened_at:
                    opened_at.append(sum(oracle.asked))
    assert False in outcomes
    assert True in outcomes
    found = stamps(lanes)
    assert all(a < b for a, b in pairwise(found))
    assert opened_at
    assert all(stamp == 1 or stamp > opened_at[0] for stamp in found)


@pytest.mark.parametrize("name", ["", "me"])
async def test_without_an_oracle_nothing_is_sent_and_all_that_waits_fails(
    name: str, autojump_clock: MockClock
) -> None:
    oracle = Oracle(delay_s=10)
    lanes = FakeLanes(oracle=oracle)
    async with producing(lanes, TIMED, producer_name=name) as producer:
        oracle.failure = MetadataUnavailable("no bookie leads")
        begun = trio.current_time()
        with pytest.raises(MetadataUnavailable, match="no bookie leads"):
            await producer.send(b"a")
        with pytest.raises(MetadataUnavailable):
            await producer.send_many([b"b", b"c"])
        assert trio.current_time() - begun < 25
        assert lanes.kept[-1] == []
        oracle.failure = None
        await producer.send(b"a", sequence=0 if name else None)
        await producer.send(b"b", sequence=1 if name else None)
    assert lanes.values() == [b"a", b"b"]
    assert [message.sequence for message in lanes.messages()] == ([0, 1] if name else [-1, -1])
    assert all(a < b for a, b in pairwise(stamps(lanes)))


# --- the machine ------------------------------------------------------------------------


def opened_with(messages: int) -> PartitionMachine:
    """Return a partition whose lane is open, and that asked for so many timestamps."""
    rules = Rules("a/b", False, False, True, True, False, 1000, 1, Once)
    machine = PartitionMachine(0, rules)
    machine.want_lane()
    machine.lane_opened(0, None, -1)
    for _ in range(messages):
        machine.admit(b"x", None, None, None, None, 1)
    assert machine.ask() == messages
    return machine


def reopen(machine: PartitionMachine) -> None:
    machine.lane_lost(SendUnknown("a/b", partition=0, lane=0, count=1, reason="away"), 1)
    machine.lane_left()
    machine.lane_opened(0, None, -1)


def test_a_batch_is_not_taken_before_it_has_its_timestamps() -> None:
    machine = opened_with(2)
    machine.admit(b"y", None, None, None, None, 1)
    assert machine.take() == []
    machine.stamped(10)
    assert [batch.first_timestamp for batch in machine.take()] == [10, 11]
    assert machine.take() == []
    assert machine.ask() == 1


def test_timestamps_go_when_the_lane_is_lost() -> None:
    machine = opened_with(2)
    machine.stamped(10)
    reopen(machine)
    assert machine.take() == []
    assert machine.ask() == 2


def test_an_answer_that_was_asked_for_before_the_lane_was_lost_is_not_used() -> None:
    machine = opened_with(2)
    reopen(machine)
    machine.stamped(10)
    assert machine.take() == []
    assert machine.ask() == 2


async def test_what_fails_during_a_flush_that_does_not_wait_for_it_is_told_all_the_same(
    autojump_clock: MockClock,
) -> None:
    """It waits for a slow lane, and what was accepted later never gets there."""
    oracle = Oracle()
    lanes = FakeLanes(oracle=oracle)
    async with producing(lanes, TIMED) as producer:
        await producer.send(b"opens")
        lanes.shut()
        producer.send_nowait(b"slow")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:

            async def flush() -> None:
                with pytest.raises(MetadataUnavailable):
                    await producer.flush()

            nursery.start_soon(flush)
            await trio.sleep(0.1)
            oracle.failure = MetadataUnavailable("the leader gave no answer")
            ticket = producer.send_nowait(b"refused")
            await trio.sleep(60)
            assert ticket.done
            lanes.gate.set()
        oracle.failure = None
        await producer.flush()  # told once
    assert lanes.values() == [b"opens", b"slow"]
