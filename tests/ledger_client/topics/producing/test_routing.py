"""Which partition a message goes to, and whose lanes are taken when."""

from __future__ import annotations

import pytest
import trio
from fake_lane import FakeLanes, make_record, producing
from trio.testing import MockClock

from ledger_client.errors import BadTopic, NotEnoughBookies, ProducerBusy
from native.route import murmur3

FOUR = make_record(partitions=4)


async def test_a_key_decides_the_partition_the_same_in_every_producer(
    autojump_clock: MockClock,
) -> None:
    """MV-12: by the hash of the key alone."""
    lanes = FakeLanes()
    keys = [b"key %d" % number for number in range(100)]
    for _ in range(2):
        async with producing(lanes, FOUR) as producer:
            for key in keys:
                producer.send_nowait(key, key=key)
            await producer.send_many(keys, keys=keys)
    for index in range(4):
        own = [key for key in keys if (murmur3(key) & 0x7FFFFFFF) % 4 == index]
        assert lanes.values(index) == own * 4


async def test_without_a_key_partitions_take_turns_by_batch(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, FOUR, batch_messages=10) as producer:
        for _ in range(120):
            producer.send_nowait(b"x")
        await producer.flush()
    assert [lanes.sizes(index) for index in range(4)] == [[10] * 3] * 4


async def test_keys_may_be_left_aside(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, FOUR, router="round-robin", batch_messages=10) as producer:
        for _ in range(40):
            producer.send_nowait(b"x", key=b"k")
        await producer.flush()
        await producer.send_many([b"x"] * 40, keys=[b"k"] * 40)
    assert [lanes.sizes(index) for index in range(4)] == [[10] * 2] * 4


async def test_a_message_may_name_its_partition(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, FOUR) as producer:
        for number in range(8):
            await producer.send(b"%d" % number, key=b"k", partition=number % 4)
    assert [lanes.values(index) for index in range(4)] == [
        [b"0", b"4"],
        [b"1", b"5"],
        [b"2", b"6"],
        [b"3", b"7"],
    ]


async def test_a_producer_may_write_one_partition_alone(autojump_clock: MockClock) -> None:
    """TB-36: loaders write partitions of their own; a reader may take any of them."""
    lanes = FakeLanes()
    async with producing(lanes, FOUR, partition=2, access="exclusive") as producer:
        assert (await producer.send(b"x", key=b"k")).partition == 2
        with pytest.raises(BadTopic, match="has no partition 1"):
            await producer.send(b"x", partition=1)
    assert lanes.opened == [(2, None)]


async def test_shared_lanes_are_taken_when_they_are_needed(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, FOUR) as producer:
        assert lanes.opened == []
        await producer.send(b"x", partition=1)
        await producer.send(b"x", partition=1)
    assert lanes.opened == [(1, None)]


@pytest.mark.parametrize(
    "options", [{"access": "exclusive"}, {"access": "take-over"}, {"producer_name": "n"}]
)
async def test_other_lanes_are_taken_before_the_block_begins(
    autojump_clock: MockClock, options: dict[str, object]
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, FOUR, **options):
        assert lanes.opened[0] == (0, None)  # who has this one gets the others
        assert sorted(lanes.opened) == [(index, None) for index in range(4)]
    assert lanes.left == 4


async def test_a_topic_in_order_of_time_is_taken_for_oneself(autojump_clock: MockClock) -> None:
    """TB-02: one writer a partition."""
    lanes = FakeLanes()
    lanes.refusal = ProducerBusy("shop/orders", partition=0, lane=0, owner="somebody")
    with pytest.raises(ProducerBusy):
        async with producing(lanes, make_record(partitions=3, order="event-time")):
            pass
    assert lanes.opened == [(0, None)]


async def test_many_lanes_are_taken_a_few_at_a_time(autojump_clock: MockClock) -> None:
    lanes = FakeLanes(delay_s=1)
    began = trio.current_time()
    async with producing(lanes, make_record(partitions=33), access="exclusive"):
        assert trio.current_time() - began == 3  # one, then 16 at a time
    assert lanes.left == 33


async def test_a_lane_that_cannot_be_taken_ends_the_block_and_leaves_the_others(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()

    async def refuse_soon() -> None:
        await trio.sleep(0.0015)
        lanes.refusal = NotEnoughBookies(healthy=0, needed=1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse_soon)
        with pytest.raises(NotEnoughBookies):
            async with producing(lanes, FOUR, access="exclusive"):
                pass
    assert lanes.left == 1
