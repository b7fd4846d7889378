"""Producers with a name: messages are numbered, and kept once however often they are sent."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, make_record, producing
from trio.testing import MockClock

from ledger_client.errors import (
    BadTopic,
    BufferFull,
    EventTimeBack,
    NotSent,
    SendUnknown,
    SequenceBack,
)
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.partition_machine import GAPS_MAX

NOWHERE = MessageId(-1, -1, -1, -1)


async def test_messages_are_numbered_from_zero_on(autojump_clock: MockClock) -> None:
    """PS-39: numbers are part of the batch, one for each message."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        tickets = [producer.send_nowait(b"%d" % number) for number in range(3)]
        await producer.send_many([b"3", b"4"])
        assert [ticket.sequence for ticket in tickets] == [0, 1, 2]
        assert await producer.last_sequence() == 4
    assert [message.sequence for message in lanes.messages()] == [0, 1, 2, 3, 4]
    assert {batch.producer for batch in lanes.kept[-1]} == {"loader"}


async def test_the_next_of_the_same_name_goes_on(autojump_clock: MockClock) -> None:
    """PS-39: across a crash and a take-over, from what the lane has."""
    lanes = FakeLanes()
    for _ in range(3):
        async with producing(lanes, producer_name="loader") as producer:
            await producer.send_many([b"a", b"b"])
    assert [message.sequence for message in lanes.messages()] == [0, 1, 2, 3, 4, 5]


async def test_a_number_that_was_accepted_is_acknowledged_and_not_kept_again(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        ids = [await producer.send(b"%d" % n, sequence=n) for n in (5, 6, 9)]
        assert [await producer.send(b"again", sequence=n) for n in (5, 6, 9)] == ids
        ticket = producer.send_nowait(b"again", sequence=9)
        assert (await ticket.message_id(), ticket.sequence) == (ids[2], 9)
    async with producing(lanes, producer_name="loader") as producer:
        assert await producer.send(b"again", sequence=9) == NOWHERE
        await producer.send(b"10")
    assert [(m.value, m.sequence) for m in lanes.messages()] == [
        (b"5", 5),
        (b"6", 6),
        (b"9", 9),
        (b"10", 10),
    ]


async def test_a_number_that_was_passed_over_is_refused(autojump_clock: MockClock) -> None:
    """Acknowledged as a duplicate, the message would be lost."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        for number in (5, 9):
            await producer.send(b"%d" % number, sequence=number)
        for late in (0, 4, 6, 8):
            with pytest.raises(
                SequenceBack, match=f"number {late} was passed over.* is 10"
            ) as back:
                await producer.send(b"late", sequence=late)
            assert (back.value.sequence, back.value.next_sequence) == (late, 10)
            with pytest.raises(SequenceBack):
                producer.send_nowait(b"late", sequence=late)
        with pytest.raises(SequenceBack, match="number 6 "):
            await producer.send_many([b"5", b"6", b"7"], sequence=5)
        await producer.send_many([b"9", b"10"], sequence=9)
        await producer.send_many([b"13", b"14"], sequence=13)
        with pytest.raises(SequenceBack, match=r"number 11 .* is 15"):
            await producer.send(b"late", sequence=11)
    assert [(m.value, m.sequence) for m in lanes.messages()] == [
        *((b"5", 5), (b"9", 9), (b"10", 10), (b"13", 13), (b"14", 14)),
    ]


async def test_numbers_below_those_that_were_passed_over_long_ago_are_refused(
    autojump_clock: MockClock,
) -> None:
    """Nobody knows any more which of them were kept."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", batch_messages=1) as producer:
        for number in range(0, 2 * GAPS_MAX + 6, 2):
            producer.send_nowait(b"kept", sequence=number)
        await producer.flush()
        for number in (1, 2, 3, 5):
            with pytest.raises(SequenceBack, match=f"number {number} "):
                await producer.send(b"late", sequence=number)
        assert await producer.send(b"kept", sequence=6) == NOWHERE
    assert {message.value for message in lanes.messages()} == {b"kept"}


async def test_numbers_that_failed_may_be_sent_again(autojump_clock: MockClock) -> None:
    """Once the lane's last number is known anew, nothing above it was passed over."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        await producer.send(b"5", sequence=5)
        lanes.fail_next()
        with pytest.raises(SendUnknown):
            await producer.send(b"9", sequence=9)
        await producer.send(b"7", sequence=7)
        await producer.send(b"9", sequence=9)
        with pytest.raises(SequenceBack):
            await producer.send(b"8", sequence=8)
    assert [(m.value, m.sequence) for m in lanes.messages()] == [(b"5", 5), (b"7", 7), (b"9", 9)]


async def test_a_number_that_was_kept_in_the_end_is_a_duplicate(autojump_clock: MockClock) -> None:
    """It was passed over at first, and what came behind it failed."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        lanes.fail_next()
        with pytest.raises(SendUnknown):
            await producer.send(b"9", sequence=9)
        for number in range(100):
            await producer.send(b"x", sequence=number)
        assert await producer.send(b"x", sequence=7) == NOWHERE


async def test_a_message_that_was_not_sent_is_not_taken_for_a_duplicate(
    autojump_clock: MockClock,
) -> None:
    """Another one came before it was sent again."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", buffer_bytes=60) as producer:
        lanes.shut()
        producer.send_nowait(b"x" * 40, sequence=0)
        with pytest.raises(NotSent):
            await producer.send(b"y" * 40, sequence=1, timeout_s=1)
        lanes.gate.set()
        await producer.send(b"z", sequence=2)
        with pytest.raises(SequenceBack):
            await producer.send(b"y" * 40, sequence=1)
    assert [m.sequence for m in lanes.messages()] == [0, 2]


async def test_a_number_that_was_taken_back_is_passed_over_no_more(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", linger_ms=10_000) as producer:
        await producer.send(b"0")
        with pytest.raises(NotSent):
            await producer.send(b"8", sequence=8, timeout_s=1)
        await producer.send(b"4", sequence=4)
        with pytest.raises(SequenceBack, match="number 3 "):
            await producer.send(b"3", sequence=3)
        await producer.send(b"8", sequence=8)
    assert [m.sequence for m in lanes.messages()] == [0, 4, 8]


async def test_the_last_number_is_told_once_it_is_kept(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        await producer.send(b"0")
        lanes.shut()
        with pytest.raises(SendUnknown):
            await producer.send(b"1", timeout_s=1)
        lasts: list[int] = []

        async def ask() -> None:
            lasts.append(await producer.last_sequence())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(10)
            assert lasts == []
            lanes.gate.set()
        assert lasts == [1]
        lanes.shut()
        with pytest.raises(SendUnknown):
            await producer.send(b"2", timeout_s=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(10)
            lanes.fail_next()
            lanes.gate.set()
        assert lasts[1:] == [lanes.messages()[-1].sequence]
        with suppress(SendUnknown):
            await producer.flush()


async def test_a_duplicate_of_what_is_under_way_waits_for_it(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        lanes.shut()
        first = producer.send_nowait(b"x", sequence=3)
        again = producer.send_nowait(b"x", sequence=3)
        many: list[object] = []

        async def send_many() -> None:
            many.append(await producer.send_many([b"x", b"y"], sequence=3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_many)
            await trio.sleep(1)
            assert not first.done
            assert not again.done
            assert not many
            lanes.gate.set()
        assert await first.message_id() == await again.message_id() == MessageId(99, 0, -1, 0)
    assert many == [[NOWHERE, MessageId(99, 1, -1, 0)]]
    assert lanes.values() == [b"x", b"y"]


async def test_without_batching_duplicates_get_their_ids_too(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", batching=False) as producer:
        ids = list(await producer.send_many([b"a", b"b"]))
        assert [await producer.send(b"again", sequence=n) for n in (0, 1)] == ids
    assert lanes.values() == [b"a", b"b"]


async def test_a_call_that_is_sent_again_is_kept_once(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    values = [b"%d" % number for number in range(2500)]
    async with producing(lanes, producer_name="loader") as producer:
        await producer.send_many(values[:1500], sequence=0)
        ids = await producer.send_many(values, sequence=0)
        assert list(ids)[:1500] == [NOWHERE] * 1500
        assert ids[1500] == lanes.messages()[1500].id
        await producer.send_many(values[:10], sequence=0)
        await producer.send_many([b"with a gap"], sequence=9000)
        assert await producer.last_sequence() == 9000
    assert lanes.values() == [*values, b"with a gap"]


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
async def test_after_an_unknown_outcome_sending_again_keeps_everything_once(
    autojump_clock: MockClock, kept: int
) -> None:
    """PS-39: whatever was kept of the failed batches, the lane says so when it is opened anew."""
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", batch_messages=2) as producer:
        await producer.send(b"opens")
        lanes.shut()
        for number in range(1, 7):
            producer.send_nowait(b"%d" % number)
        lanes.fail_next(kept=kept)
        lanes.gate.set()
        with pytest.raises(SendUnknown):
            await producer.flush()
        with pytest.raises(BufferFull):
            producer.send_nowait(b"before the lane is open again")
        for number in range(1, 7):
            await producer.send(b"%d" % number, sequence=number)
    assert lanes.values() == [b"opens", *(b"%d" % number for number in range(1, 7))]
    assert [message.sequence for message in lanes.messages()] == list(range(7))


async def test_nothing_overtakes_a_batch_whose_outcome_is_unknown(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader", batch_messages=1) as producer:
        await producer.send(b"0")
        lanes.shut()
        lanes.fail_next()
        tickets = []
        for number in range(1, 9):
            tickets.append(producer.send_nowait(b"%d" % number))
            await trio.testing.wait_all_tasks_blocked()
        lanes.gate.set()
        for ticket in tickets:
            with pytest.raises(SendUnknown):
                await ticket.message_id()
        assert await producer.last_sequence() == 0
        assert lanes.values() == [b"0"]


async def test_numbers_count_in_each_partition(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    topic = make_record(partitions=3)
    async with producing(lanes, topic, producer_name="loader") as producer:
        await producer.send_many([b"x"] * 3000, keys=[b"%d" % n for n in range(3000)])
        for index in range(3):
            numbers = [message.sequence for message in lanes.messages(index)]
            assert numbers == list(range(len(numbers)))
            assert await producer.last_sequence(index) == numbers[-1]
        with pytest.raises(BadTopic, match="name one"):
            await producer.last_sequence()
        with pytest.raises(BadTopic, match="name one"):
            await producer.send_many([b"x"], sequence=5)
        await producer.send_many([b"x"], sequence=5000, partition=1)
        assert await producer.last_sequence(1) == 5000


async def test_a_call_that_is_refused_takes_no_numbers(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    topic = make_record(order="event-time")
    async with producing(lanes, topic, producer_name="loader") as producer:
        await producer.send(b"a", event_time=5)
        with pytest.raises(EventTimeBack):
            await producer.send_many([b"b", b"c"], event_times=[6, 4], sequence=7)
        with pytest.raises(EventTimeBack):
            await producer.send(b"d", event_time=4, sequence=9)
        assert await producer.last_sequence() == 0
        await producer.send_many([b"e", b"f"], event_times=[6, 7], sequence=3)
    assert [message.sequence for message in lanes.messages()] == [0, 3, 4]


async def test_a_producer_without_a_name_does_not_count(autojump_clock: MockClock) -> None:
    """PS-39: off by default."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        ticket = producer.send_nowait(b"x")
        await ticket.message_id()
        assert ticket.sequence == -1
        with pytest.raises(BadTopic, match="without a name"):
            await producer.last_sequence()
    assert lanes.messages()[0].sequence == -1


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_fails_a_producer_that_sends_again_keeps_all_once_and_in_order(
    autojump_clock: MockClock, seed: int
) -> None:
    chance = random.Random(seed)
    lanes = FakeLanes()
    values = [b"%d" % number for number in range(400)]
    sent = 0
    while sent < len(values):
        async with producing(lanes, producer_name="loader", batch_messages=7) as producer:
            while sent < len(values):
                count = chance.randrange(1, 60)
                if chance.random() < 0.4:
                    lanes.fail_next(kept=chance.randrange(4))
                try:
                    if chance.random() < 0.5:
                        await producer.send_many(values[sent : sent + count], sequence=sent)
                    else:
                        for number in range(sent, min(sent + count, len(values))):
                            await producer.send(values[number], sequence=number)
                except SendUnknown:
                    continue  # with the same numbers
                sent += count
                if chance.random() < 0.1:
                    break
        lanes.failing.clear()
    assert lanes.values() == values
    assert [message.sequence for message in lanes.messages()] == list(range(400))
