"""A send with a time limit: it says for certain that a message went nowhere, or that it may."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, make_record, producing
from trio.testing import MockClock

from ledger_client.errors import NotSent, OutcomeUnknown, SendUnknown
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.partition_machine import APPENDS_MAX
from ledger_client.topics.producing.producer import Producer

IDS = [MessageId(99, 0, -1, place) for place in range(3)]


async def lose_lane(lanes: FakeLanes, producer: Producer) -> None:
    lanes.fail_next()
    with pytest.raises(SendUnknown):
        await producer.send(b"lost")


async def test_a_message_that_waits_for_its_lane_is_not_sent_later(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await lose_lane(lanes, producer)
        lanes.delay_s = 100.0
        began = trio.current_time()
        with pytest.raises(NotSent, match="not sent in 1 s: the lane is being opened") as late:
            await producer.send(b"late", timeout_s=1)
        assert trio.current_time() - began == pytest.approx(1)
        assert late.value.topic == producer.topic
        await producer.send(b"next", timeout_s=1000)
        assert producer._room.used == 0
    assert lanes.values() == [b"next"]


async def test_a_message_that_the_lane_has_may_be_kept(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.shut()
        with pytest.raises(SendUnknown, match="no acknowledgement in 1 s") as unknown:
            await producer.send(b"slow", timeout_s=1)
        assert isinstance(unknown.value, OutcomeUnknown)
        lanes.gate.set()
    assert lanes.values() == [b"slow"]


async def test_a_message_without_room_is_not_sent(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=100) as producer:
        lanes.shut()
        producer.send_nowait(b"x" * 80)
        with pytest.raises(NotSent, match="the buffer was full"):
            await producer.send(b"y" * 80, timeout_s=1)
        lanes.gate.set()
        await producer.send(b"z" * 80, timeout_s=1)
    assert lanes.values() == [b"x" * 80, b"z" * 80]


async def test_a_message_that_is_acknowledged_in_time_has_its_id(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"first")  # opens the lane
        lanes.delay_s = 0.5
        assert await producer.send(b"x", timeout_s=0.6) == MessageId(99, 1, -1, 0)


async def test_messages_around_one_that_is_taken_back_keep_their_ids(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    ids: dict[bytes, MessageId] = {}
    async with producing(lanes, linger_ms=1000) as producer, trio.open_nursery() as nursery:

        async def send(value: bytes) -> None:
            ids[value] = await producer.send(value)

        for value in (b"a", b"b"):
            nursery.start_soon(send, value)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotSent):
            await producer.send(b"late", timeout_s=0.5)
        nursery.start_soon(send, b"c")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotSent):
            await producer.send(b"late, too", timeout_s=0.1)
    assert lanes.values() == [b"a", b"b", b"c"]
    assert [ids[value] for value in (b"a", b"b", b"c")] == IDS
    assert producer._room.used == 0


async def test_a_number_that_was_taken_back_can_be_sent_again(autojump_clock: MockClock) -> None:
    """It must not pass for one that is kept already."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="p", linger_ms=1000) as producer:
        await producer.send(b"first", sequence=3)
        for number in (7, 5):  # none between 3 and the number counts as kept, either
            with pytest.raises(NotSent):
                await producer.send(b"late", sequence=number, timeout_s=0.5)
        assert await producer.last_sequence() == 3
        await producer.send(b"again", sequence=5)
    assert [(m.value, m.sequence) for m in lanes.messages()] == [(b"first", 3), (b"again", 5)]


async def test_numbers_that_were_taken_back_one_after_the_other_can_be_sent_again(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="p", linger_ms=1000) as producer:
        await producer.send(b"first", sequence=2)

        async def send_late(sequence: int, timeout_s: float) -> None:
            with pytest.raises(NotSent):
                await producer.send(b"late", sequence=sequence, timeout_s=timeout_s)

        async with trio.open_nursery() as nursery:
            for sequence, timeout_s in ((3, 0.5), (4, 0.4)):
                nursery.start_soon(send_late, sequence, timeout_s)
                await trio.testing.wait_all_tasks_blocked()
        assert await producer.last_sequence() == 2
        for sequence in (3, 4):
            assert (await producer.send(b"again", sequence=sequence)).ledger_id >= 0
    assert [m.sequence for m in lanes.messages()] == [2, 3, 4]


async def test_an_event_time_that_was_taken_back_does_not_bind_later_messages(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, make_record(order="event-time"), linger_ms=1000) as producer:
        await producer.send(b"first", event_time=10)
        with pytest.raises(NotSent):
            await producer.send(b"late", event_time=100, timeout_s=0.5)
        await producer.send(b"next", event_time=50)
    assert lanes.values() == [b"first", b"next"]


async def test_a_numbered_message_below_the_last_stays(autojump_clock: MockClock) -> None:
    """It could not be sent again: its number would pass for one that is kept."""
    lanes = FakeLanes()
    async with (
        producing(lanes, producer_name="p", linger_ms=1000) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send_late() -> None:
            with pytest.raises(SendUnknown):
                await producer.send(b"one", sequence=1, timeout_s=0.5)

        nursery.start_soon(send_late)
        await trio.testing.wait_all_tasks_blocked()
        await producer.send(b"two", sequence=2)
    assert lanes.values() == [b"one", b"two"]


async def test_a_message_that_another_task_waits_for_stays(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    ids: list[MessageId] = []
    async with (
        producing(lanes, producer_name="p", linger_ms=1000) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send_again() -> None:
            ids.append(await producer.send(b"one", sequence=1))

        async def send_late() -> None:
            with pytest.raises(SendUnknown):
                await producer.send(b"one", sequence=1, timeout_s=0.5)

        nursery.start_soon(send_late)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(send_again)
    assert lanes.values() == [b"one"]
    assert ids == [IDS[0]]


@pytest.mark.parametrize("is_named", [False, True], ids=["nameless", "named"])
async def test_messages_with_timestamps_can_be_taken_back(
    autojump_clock: MockClock, is_named: bool
) -> None:
    lanes = FakeLanes()
    topic = make_record(timesync=True)
    name = "p" * is_named
    async with producing(lanes, topic, producer_name=name, linger_ms=1000) as producer:
        with pytest.raises(NotSent):
            await producer.send(b"late", timeout_s=0.5)
        await producer.send(b"next")
    assert lanes.values() == [b"next"]


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "5"])
async def test_a_time_limit_is_a_number_of_seconds(timeout_s: float) -> None:
    async with producing(FakeLanes()) as producer:
        with pytest.raises(ValueError, match=r"timeout_s takes seconds, 0 or more, not"):
            await producer.send(b"x", timeout_s=timeout_s)


async def test_messages_that_are_taken_back_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with producing(FakeLanes(), linger_ms=60_000) as producer:
        for _ in range(100):
            with pytest.raises((NotSent, SendUnknown)):
                await producer.send(b"x" * 100, timeout_s=0)
        assert len(producer._shared.linger._due) <= 2
        assert producer._room.used == 0


# --- what the error says -------------------------------------------------------------------


async def reason(producer: Producer, partition: int | None = None) -> str:
    with pytest.raises((NotSent, SendUnknown)) as late:
        await producer.send(b"x" * 20, timeout_s=0.5, partition=partition)
    return str(late.value)


async def test_without_a_lane_the_error_says_so_even_if_others_take_room(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    topic = make_record(partitions=2)
    async with producing(lanes, topic, producer_name="p") as producer:
        lanes.fail_next()
        with pytest.raises(SendUnknown):
            await producer.send(b"lost", partition=0)
        lanes.delay_s = 10.0
        producer.send_nowait(b"other", partition=1)
        assert "the lane is being opened" in await reason(producer, partition=0)


async def test_any_message_that_waits_for_a_lane_is_told_so(autojump_clock: MockClock) -> None:
    """Not what another partition waits for, whose turn it would be next."""
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=2), producer_name="p") as producer:
        await producer.send(b"x", partition=1)
        lanes.delay_s = 10.0
        for _ in range(8):
            try:
                await producer.send(b"x", timeout_s=0.5)
            except NotSent as late:
                assert "the lane is being opened" in str(late)
            except SendUnknown:
                pass  # the one with a lane
        assert lanes.opened.count((0, None)) == 1


async def test_a_partition_that_send_many_has_is_named_in_the_error(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="p", batch_bytes=1 << 20) as producer:
        lanes.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_many, [bytes(1 << 20)] * 6)
            await trio.testing.wait_all_tasks_blocked()
            assert "taken by a call of send_many" in await reason(producer)
            lanes.gate.set()


async def test_a_message_whose_batch_only_gathers_is_not_behind_others(
    autojump_clock: MockClock,
) -> None:
    async with producing(FakeLanes(), linger_ms=1000) as producer:
        assert "its batch was to gather more messages" in await reason(producer)  # without a lane
        await producer.send(b"first")
        assert "its batch was to gather more messages" in await reason(producer)


async def test_a_message_behind_others_waits_for_them(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.shut()
        for _ in range(APPENDS_MAX):
            assert "its bookies have not acknowledged it" in await reason(producer)
        assert "earlier messages wait for their acknowledgement" in await reason(producer)
        lanes.gate.set()
