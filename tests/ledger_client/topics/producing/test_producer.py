"""Producing against lanes in memory: batches, order, bounds, and what fails."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from fake_lane import TOPIC, FakeLanes, producing
from trio.testing import MockClock

from ledger_client.errors import (
    BadTopic,
    BufferFull,
    NotEnoughBookies,
    PayloadTooLarge,
    ProducerClosed,
    ProducerFenced,
    SendUnknown,
)
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.producing.producer import Producer
from native.batch import read_header


def fenced() -> ProducerFenced:
    return ProducerFenced(TOPIC, partition=-1, lane=0)


# --- batches ------------------------------------------------------------------------


async def test_messages_of_a_millisecond_share_an_entry(autojump_clock: MockClock) -> None:
    """PS-08, PS-41: a batch ends 1 ms after its first message; its ids differ in the last part."""
    lanes = FakeLanes()
    ids: list[MessageId] = []
    async with producing(lanes) as producer, trio.open_nursery() as nursery:

        async def send(number: int) -> None:
            ids.append(await producer.send(b"%d" % number))

        for number in range(10):
            nursery.start_soon(send, number)
    assert lanes.sizes() == [10]
    assert sorted(ids) == [MessageId(99, 0, -1, place) for place in range(10)]


async def test_a_message_alone_waits_for_the_linger_and_no_longer(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes(delay_s=0.5)
    async with producing(lanes, linger_ms=20) as producer:
        await producer.send(b"opens the lane")
        began = trio.current_time()
        await producer.send(b"x")
        assert trio.current_time() - began == pytest.approx(0.52)


@pytest.mark.parametrize("is_named", [False, True], ids=["nameless", "named"])
async def test_a_message_alone_waits_for_no_linger_unless_asked_to(
    autojump_clock: MockClock, is_named: bool
) -> None:
    lanes = FakeLanes(delay_s=0.5)
    async with producing(lanes, producer_name="p" * is_named) as producer:
        await producer.send(b"opens the lane")
        for number in range(3):
            began = trio.current_time()
            await producer.send(b"%d" % number)
            assert trio.current_time() - began == 0.5
    assert lanes.sizes() == [1, 1, 1, 1]


async def test_messages_gather_while_one_is_under_way(autojump_clock: MockClock) -> None:
    """They go when its acknowledgement comes, or after the linger if that is sooner."""
    for delay_s, took_s in ((0.0006, 0.0012), (0.5, 0.501)):
        lanes = FakeLanes(delay_s=delay_s)
        async with producing(lanes) as producer:
            await producer.send(b"opens the lane")
            began = trio.current_time()
            tickets = []
            for number in range(6):
                tickets.append(producer.send_nowait(b"%d" % number))
                await trio.sleep(0.00009)
            for ticket in tickets:
                await ticket.message_id()
            assert trio.current_time() - began == pytest.approx(took_s, rel=1e-3)
        assert lanes.sizes() == [1, 1, 5]


async def test_without_linger_a_batch_is_what_one_turn_of_the_scheduler_brings(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes(delay_s=0)
    async with producing(lanes, linger_ms=0) as producer:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(producer.send, b"%d" % number)
        assert trio.current_time() == began
    assert lanes.sizes() == [10]


async def test_a_batch_ends_at_its_number_of_messages(autojump_clock: MockClock) -> None:
    """PS-41: 1000 messages by default."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        for number in range(2500):
            producer.send_nowait(b"%d" % number)
    assert lanes.sizes() == [1000, 1000, 500]
    assert lanes.values() == [b"%d" % number for number in range(2500)]


async def test_a_batch_ends_at_its_number_of_bytes(autojump_clock: MockClock) -> None:
    """PS-41: 128 KiB by default."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        for _ in range(200):
            producer.send_nowait(bytes(1000))
    assert lanes.sizes() == [129, 71]
    assert all(batch.size <= 128 * 1024 for batch in lanes.kept[-1])


async def test_a_message_larger_than_a_batch_goes_alone(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        tickets = [producer.send_nowait(value) for value in (b"a", bytes(300_000), b"b")]
        assert [await ticket.message_id() for ticket in tickets] == [
            MessageId(99, entry_id, -1, 0) for entry_id in range(3)
        ]
    assert lanes.values() == [b"a", bytes(300_000), b"b"]


async def test_without_batching_each_message_is_an_entry(autojump_clock: MockClock) -> None:
    """PS-03, PS-09: batching is the default, and a producer can do without; batch index -1."""
    lanes = FakeLanes()
    async with producing(lanes, batching=False) as producer:
        first = await producer.send(b"a")
        second = await producer.send_nowait(b"b").message_id()
        more = await producer.send_many([b"c", b"d"])
    assert [first, second, *more] == [MessageId(99, entry_id, -1, -1) for entry_id in range(4)]
    assert str(first) == "99:0:-1"
    assert lanes.values() == [b"a", b"b", b"c", b"d"]
    assert not read_header(lanes.kept[-1][0].payload).batched


async def test_everything_of_a_message_arrives(autojump_clock: MockClock) -> None:
    """TD-10: values, keys, event times and headers, in any combination."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        producer.send_nowait(b"value", key=b"k", event_time=-5, headers={"h": b"v", "é": b""})
        producer.send_nowait(None, key=b"deleted")
        producer.send_nowait(bytearray(b"copied"))
        producer.send_nowait(memoryview(b"viewed"), key=bytearray(b"k2"))
        producer.send_nowait(b"")
    assert [message[1:5] for message in lanes.messages()] == [
        (b"value", b"k", -5, {"h": b"v", "é": b""}),
        (None, b"deleted", None, {}),
        (b"copied", None, None, {}),
        (b"viewed", b"k2", None, {}),
        (b"", None, None, {}),
    ]


async def test_a_lane_gets_of_a_batch_what_its_payload_says(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="loader") as producer:
        for times in ([None, None], [7, None, -3], [5]):
            for time in times:
                producer.send_nowait(b"x", event_time=time)
            await producer.flush()
    assert lanes.kept[-1] == [SealedBatch.of(batch.payload) for batch in lanes.kept[-1]]
    assert [batch.first_event_time for batch in lanes.kept[-1]] == [None, -3, 5]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
async def test_a_producer_may_compress(autojump_clock: MockClock, compression: str) -> None:
    lanes = FakeLanes()
    async with producing(lanes, compression=compression) as producer:
        await producer.send_many([b"again and again"] * 1000)
        await producer.send(b"again and again" * 100)
    headers = [read_header(batch.payload) for batch in lanes.kept[-1]]
    assert {header.compression for header in headers} == {compression}
    assert lanes.kept[-1][0].size < headers[0].body_size / 4
    assert lanes.values()[:2] == [b"again and again"] * 2


async def test_while_an_append_is_under_way_the_next_batches_gather(
    autojump_clock: MockClock,
) -> None:
    """PS-29: what is sent meanwhile is queued, and goes out together and in order."""
    lanes = FakeLanes()
    async with producing(lanes, batch_messages=1) as producer:
        await producer.send(b"first")
        lanes.shut()
        tickets = []
        for number in range(20):
            tickets.append(producer.send_nowait(b"%d" % number))
            await trio.testing.wait_all_tasks_blocked()
        lanes.gate.set()
        for ticket in tickets:
            await ticket.message_id()
    assert lanes.calls == [1, 1, 1, 1, 1, 16]
    assert lanes.values() == [b"first", *(b"%d" % number for number in range(20))]


async def test_each_task_finds_its_messages_in_the_order_it_sent_them(
    autojump_clock: MockClock,
) -> None:
    """TD-08: the order of arrival is kept in each partition."""
    lanes = FakeLanes()
    sent: dict[MessageId, bytes] = {}
    async with producing(lanes, batch_messages=7) as producer, trio.open_nursery() as nursery:

        async def send(task: int) -> None:
            for number in range(30):
                value = b"%d %d" % (task, number)
                sent[await producer.send(value)] = value

        for task in range(20):
            nursery.start_soon(send, task)
    kept = lanes.messages()
    assert {message.id: message.value for message in kept} == sent
    for task in range(20):
        own = [m.value for m in kept if m.value and m.value.startswith(b"%d " % task)]
        assert own == [b"%d %d" % (task, number) for number in range(30)]


# --- bounds -------------------------------------------------------------------------


async def test_send_waits_for_room_and_send_nowait_does_not(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=3000) as producer:
        await producer.send(b"opens the lane")
        lanes.shut()
        for _ in range(2):
            producer.send_nowait(bytes(1000))
        with pytest.raises(BufferFull, match="3000 bytes") as full:
            producer.send_nowait(bytes(1000))
        assert full.value.size_max == 3000
        with trio.move_on_after(1) as patience:
            await producer.send(bytes(1000))
        assert patience.cancelled_caught
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(producer.send, bytes(1000))
            await trio.testing.wait_all_tasks_blocked()
            lanes.gate.set()
        assert len(lanes.values()) == 8  # the one that was given up is not there
        await producer.flush()
        producer.send_nowait(bytes(1000))


async def test_a_message_larger_than_the_buffer_gets_through_alone(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=100) as producer, trio.open_nursery() as nursery:
        for size in (50, 5000, 50, 5000):
            nursery.start_soon(producer.send, bytes(size))
    assert sorted(len(value or b"") for value in lanes.values()) == [50, 50, 5000, 5000]


async def test_a_message_that_fits_no_frame_is_refused_and_the_limit_named(
    autojump_clock: MockClock,
) -> None:
    """PS-41: at most 5 MB, less what a frame needs."""
    lanes = FakeLanes()
    size_max = PAYLOAD_SIZE_MAX - 256
    async with producing(lanes) as producer:
        with pytest.raises(PayloadTooLarge, match=f"at most {size_max} bytes") as large:
            await producer.send(bytes(size_max + 1))
        assert (large.value.size, large.value.size_max) == (size_max + 1, size_max)
        with pytest.raises(PayloadTooLarge):
            producer.send_nowait(bytes(size_max - 1), key=b"kk")
        with pytest.raises(PayloadTooLarge):
            await producer.send(bytes(size_max - 5), headers={"name": b"v"})
        with pytest.raises(PayloadTooLarge):
            await producer.send_many([b"small", bytes(size_max + 1), b"small"])
        assert lanes.values() == []
        largest = {"key": b"k" * 1000, "headers": {"h": b"v" * 1000}, "event_time": 1}
        await producer.send(bytes(size_max - 2013), **largest)  # type: ignore[arg-type]
        await producer.send_many([bytes(size_max)])
    assert all(batch.size <= PAYLOAD_SIZE_MAX for batch in lanes.kept[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"access": "mine"}, "none of exclusive, take-over, wait, shared"),
        ({"router": "random"}, "none of key, round-robin"),
        ({"compression": "gzip"}, "none of none, zstd, lz4"),
        ({"batch_bytes": 0}, "batch_bytes 0"),
        ({"batch_bytes": 5 << 20}, "between 1 and 4194304"),
        ({"batch_messages": 0}, "batch_messages 0"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"producer_name": "x" * 256}, "255 bytes"),
        ({"partition": 0}, "no partition 0"),
    ],
)
async def test_options_that_cannot_be_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadTopic, match=message):
        async with producing(FakeLanes(), None, **options):
            pass


async def test_what_is_no_message_is_refused(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        with pytest.raises(TypeError, match="not str"):
            await producer.send("text")
        with pytest.raises(TypeError, match="not int"):
            producer.send_nowait(b"", key=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="header"):
            await producer.send(b"", headers={"name": "text"})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="64 bits"):
            await producer.send(b"", event_time=1 << 63)
        with pytest.raises(TypeError, match="float"):
            await producer.send(b"", event_time=1.5)  # type: ignore[arg-type]
        with pytest.raises(BadTopic, match="name"):
            await producer.send(b"", sequence=5)
        with pytest.raises(BadTopic, match="no partition 3"):
            await producer.send(b"", partition=3)
    async with producing(lanes, producer_name="p") as producer:
        with pytest.raises(TypeError, match="float"):
            await producer.send(b"", sequence=1.5)  # type: ignore[arg-type]
    assert lanes.values() == []


# --- what fails ---------------------------------------------------------------------


async def test_an_unknown_outcome_is_told_to_all_who_wait(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.fail_next("the bookies are away", kept=1)
        with pytest.RaisesGroup(*[SendUnknown] * 5):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(producer.send, b"%d" % number)
        assert await producer.send(b"after") == MessageId(99, 1, -1, 0)
    assert lanes.opened == [(-1, None), (-1, 0)]  # the same lane anew
    assert len(lanes.values()) == 6


async def test_what_waits_behind_a_failed_batch_goes_out_when_order_does_not_count(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, batch_messages=1) as producer:
        await producer.send(b"opens the lane")
        lanes.shut()
        lanes.fail_next()
        tickets = [producer.send_nowait(b"%d" % number) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        tickets += [producer.send_nowait(b"%d" % number) for number in range(3, 6)]
        lanes.gate.set()
        told = []
        for ticket in tickets:
            try:
                told.append((await ticket.message_id()).entry_id)
            except SendUnknown:
                told.append(-1)
    assert told[0] == -1
    assert [number for number in told if number >= 0] == list(range(1, len(lanes.values())))


async def test_a_fenced_producer_takes_nothing_any_more(autojump_clock: MockClock) -> None:
    """TB-02: after a take-over nothing of the old writer is acknowledged."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"mine")
        lanes.open_lanes[-1].fence(fenced())
        with pytest.raises(ProducerFenced):
            await producer.send(b"late")
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(ProducerFenced, match="was taken over"):
                await send(b"later")  # type: ignore[misc]
        with pytest.raises(ProducerFenced):
            await producer.send_many([b"latest"])
    assert lanes.values() == [b"mine"]
    assert lanes.opened == [(-1, None)]


async def test_an_unknown_outcome_because_of_a_take_over_is_final_too(
    autojump_clock: MockClock,
) -> None:
    """TB-02: opened anew, the lane would be taken away from its new writer."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.fail_next("taken over")
        lanes.failing[0].failure.__cause__ = fenced()
        with pytest.raises(SendUnknown):
            await producer.send(b"perhaps")
        with pytest.raises(ProducerFenced):
            await producer.send(b"late")
    assert lanes.opened == [(-1, None)]


async def test_a_fenced_producer_lets_nobody_wait(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    with pytest.RaisesGroup(*[ProducerFenced] * 20):
        async with producing(lanes, buffer_bytes=1000, batch_messages=1) as producer:
            await producer.send(b"mine")
            lanes.shut()
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(producer.send, bytes(200))
                await trio.testing.wait_all_tasks_blocked()
                lanes.open_lanes[-1].fence(fenced())
                lanes.gate.set()


async def test_a_lane_that_cannot_be_opened_fails_what_waits_for_it_and_is_tried_again(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.refusal = NotEnoughBookies(healthy=0, needed=2)
        with pytest.raises(NotEnoughBookies):
            await producer.send(b"early")
        with pytest.raises(NotEnoughBookies):
            await producer.send_many([b"early"])
        lanes.refusal = None
        await producer.send(b"now")
    assert lanes.values() == [b"now"]


async def test_what_fails_while_nobody_waits_is_told_by_flush(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        lanes.fail_next()
        ticket = producer.send_nowait(b"x")
        await trio.sleep(1)
        assert ticket.done
        producer.send_nowait(b"y")
        with pytest.raises(SendUnknown):
            await producer.flush()
        await producer.flush()  # told once
        with pytest.raises(SendUnknown):
            await ticket.message_id()
    assert lanes.values() == [b"y"]


async def test_headers_are_those_of_the_moment_of_the_call(autojump_clock: MockClock) -> None:
    """The caller may use the mapping again, also for what is no header."""
    lanes = FakeLanes()
    async with producing(lanes, linger_ms=50) as producer:
        headers: dict[str, Any] = {}
        for number in range(3):
            headers["n"] = b"%d" % number
            producer.send_nowait(b"x", headers=headers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(producer.send, b"y", headers=headers))
            await trio.sleep(0.01)
            headers["n"] = 5
    found = [each.headers for each in lanes.messages()]
    assert found == [{"n": b"0"}, {"n": b"1"}, {"n": b"2"}, {"n": b"2"}]


async def test_what_fails_while_nobody_waits_is_told_at_the_end(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    with pytest.raises(SendUnknown):
        async with producing(lanes) as producer:
            lanes.fail_next()
            producer.send_nowait(b"x")


async def test_a_cancelled_send_leaves_the_producer_usable(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"opens the lane")
        lanes.shut()
        with trio.move_on_after(1):
            await producer.send(b"perhaps")
        lanes.gate.set()
        await producer.send(b"surely")
    assert lanes.values() == [b"opens the lane", b"perhaps", b"surely"]


# --- the end ------------------------------------------------------------------------


async def test_the_end_of_the_block_flushes_and_leaves_the_lane(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, linger_ms=60_000) as producer:
        ticket = producer.send_nowait(b"x")
        began = trio.current_time()
    assert trio.current_time() - began < 1  # nobody waited for the linger
    assert (await ticket.message_id()).entry_id == 0
    assert (lanes.left, lanes.values()) == (1, [b"x"])
    with pytest.raises(ProducerClosed):
        await producer.send(b"late")
    with pytest.raises(ProducerClosed):
        producer.send_nowait(b"late")
    with pytest.raises(ProducerClosed):
        await producer.send_many([b"late"])
    await producer.flush()


async def test_closing_twice_does_nothing(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        producer.send_nowait(b"x")
        await producer.close()
        await producer.close()
        assert lanes.values() == [b"x"]


async def test_the_end_of_the_block_waits_for_a_close_that_another_task_began(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()

    async def go_on() -> None:
        await trio.sleep(5)
        lanes.gate.set()

    async with trio.open_nursery() as nursery:
        async with producing(lanes) as producer:
            await producer.send(b"opens the lane")
            lanes.shut()
            producer.send_nowait(b"under way")
            nursery.start_soon(producer.close)
            nursery.start_soon(go_on)
            await trio.sleep(1)
        assert lanes.values() == [b"opens the lane", b"under way"]


async def test_an_error_of_the_block_ends_it_at_once(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    with pytest.raises(ZeroDivisionError):
        async with producing(lanes) as producer:
            await producer.send(b"opens the lane")
            lanes.shut()
            under_way = producer.send_nowait(b"under way")
            await trio.sleep(1)
            gathered = producer.send_nowait(b"gathered")
            began = trio.current_time()
            raise ZeroDivisionError
    assert trio.current_time() == began
    assert lanes.left == 1
    with pytest.raises(SendUnknown, match="was left"):
        await under_way.message_id()
    with pytest.raises(ProducerClosed):
        await gathered.message_id()


async def test_a_cancelled_block_ends_at_once_and_wakes_who_waits(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    told: list[str] = []

    async def send(producer: Producer) -> None:
        try:
            await producer.send(b"x")
        except (SendUnknown, ProducerClosed) as failure:
            told.append(type(failure).__name__)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            async with producing(lanes, buffer_bytes=10, batch_messages=1) as producer:
                lanes.shut()
                for _ in range(3):
                    nursery.start_soon(send, producer)
                await trio.sleep_forever()
    assert sorted(told) == ["ProducerClosed", "ProducerClosed", "SendUnknown"]
    assert trio.current_time() < 2
