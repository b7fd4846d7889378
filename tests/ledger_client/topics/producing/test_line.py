"""Messages that wait for room or for their lane are accepted in the order of their sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial

import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, make_record, producing
from trio.testing import MockClock

from ledger_client.errors import (
    BufferFull,
    LedgerError,
    NotSent,
    ProducerClosed,
    SendUnknown,
)
from ledger_client.topics.producing.line import Line
from ledger_client.topics.producing.producer import Producer

ORDERS = 12
"""Orders in which trio may run tasks."""
SIZE = 84
"""Of a message that takes 100 bytes of room."""


class Sends:
    """Sends that begin one after the other, and what became of each.

    Attributes:
        done: values that were acknowledged.
        failed: why others were not.
    """

    def __init__(self, producer: Producer, nursery: trio.Nursery) -> None:
        self._producer = producer
        self._nursery = nursery
        self.done: list[bytes] = []
        self.failed: dict[bytes, LedgerError] = {}

    async def begin(
        self, *values: bytes, timeout_s: float | None = None, partition: int | None = None
    ) -> list[trio.CancelScope]:
        """Begin to send; return what cancels each."""
        scopes = [trio.CancelScope() for _ in values]
        for value, scope in zip(values, scopes, strict=True):
            self._nursery.start_soon(self._send, value, scope, timeout_s, partition)
            await trio.testing.wait_all_tasks_blocked()
        return scopes

    async def _send(
        self, value: bytes, scope: trio.CancelScope, timeout_s: float | None, partition: int | None
    ) -> None:
        with scope:
            try:
                await self._producer.send(value, timeout_s=timeout_s, partition=partition)
            except LedgerError as failure:
                self.failed[value] = failure
            else:
                self.done.append(value)


@asynccontextmanager
async def sends_to(producer: Producer) -> AsyncIterator[Sends]:
    async with trio.open_nursery() as nursery:
        yield Sends(producer, nursery)


@contextmanager
def full(lanes: FakeLanes, producer: Producer) -> Iterator[None]:
    """Take all room within the block."""
    lanes.shut()
    while True:
        try:
            producer.send_nowait(b"x" * SIZE)
        except BufferFull:
            break
    yield
    lanes.gate.set()


async def lose_lane(lanes: FakeLanes, producer: Producer, *, opens_in_s: float) -> None:
    lanes.fail_next()
    with pytest.raises(SendUnknown):
        await producer.send(b"lost")
    lanes.delay_s = opens_in_s


def sent(lanes: FakeLanes, partition: int = -1) -> list[bytes | None]:
    return [each.value for each in lanes.messages(partition) if each.value != b"x" * SIZE]


@pytest.mark.parametrize("timeout_s", [None, 60.0])
@pytest.mark.parametrize("numbered", [False, True])
async def test_who_waits_for_room_keeps_its_place(
    autojump_clock: MockClock, numbered: bool, timeout_s: float | None
) -> None:
    values = [b"%d" % number for number in range(8)]
    for order in range(ORDERS):
        trio._core._run._r.seed(order)
        lanes = FakeLanes()
        name = "p" if numbered else ""
        async with (
            producing(lanes, producer_name=name, buffer_bytes=100) as producer,
            sends_to(producer) as sends,
        ):
            with full(lanes, producer):
                await sends.begin(*values, timeout_s=timeout_s)
        assert sent(lanes) == values
        assert not sends.failed
        assert producer._room.used == 0


@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_who_waits_for_the_lane_keeps_its_place(
    autojump_clock: MockClock, timeout_s: float | None
) -> None:
    values = [b"%d" % number for number in range(8)]
    for order in range(ORDERS):
        trio._core._run._r.seed(order)
        lanes = FakeLanes()
        async with producing(lanes, producer_name="p") as producer, sends_to(producer) as sends:
            await lose_lane(lanes, producer, opens_in_s=5.0)
            await sends.begin(*values, timeout_s=timeout_s)
        assert sent(lanes) == values
        assert not sends.failed


async def test_nobody_overtakes_those_who_wait(autojump_clock: MockClock) -> None:
    """Even if it would fit, and the first in line does not."""
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=250) as producer, sends_to(producer) as sends:
        with full(lanes, producer):
            large = b"l" * 200
            await sends.begin(large)
            with pytest.raises(BufferFull):
                producer.send_nowait(b"s")
            await sends.begin(b"s")
    assert sent(lanes) == [large, b"s"]


async def test_nobody_overtakes_the_first_one_before_its_task_runs(
    autojump_clock: MockClock,
) -> None:
    for order in range(ORDERS):
        trio._core._run._r.seed(order)
        lanes = FakeLanes()
        async with producing(lanes, producer_name="p") as producer, sends_to(producer) as sends:
            await lose_lane(lanes, producer, opens_in_s=5.0)
            await sends.begin(b"a")
            await trio.sleep(5.0)  # as long as the lane takes
            for _ in range(100):
                if producer._writers[0].machine.is_ready:
                    break
                await trio.lowlevel.checkpoint()
            else:
                pytest.fail("the lane is not open")
            await sends.begin(b"b")
        assert sent(lanes) == [b"a", b"b"]


@pytest.mark.parametrize("named", [False, True])
async def test_many_messages_of_one_call_wait_behind_those_who_wait(
    autojump_clock: MockClock, named: bool
) -> None:
    """For room, or for the lane; and those who come later wait behind them."""
    for order in range(ORDERS):
        trio._core._run._r.seed(order)
        lanes = FakeLanes()
        async with (
            producing(lanes, producer_name="p" if named else "", buffer_bytes=250) as producer,
            sends_to(producer) as sends,
            trio.open_nursery() as nursery,
        ):
            if named:
                await lose_lane(lanes, producer, opens_in_s=5.0)
            with nullcontext() if named else full(lanes, producer):
                await sends.begin(b"a" * SIZE)  # there is no room for it
                nursery.start_soon(producer.send_many, [b"b", b"c"])
                await trio.testing.wait_all_tasks_blocked()
                await sends.begin(b"d")
        assert sent(lanes) == [b"a" * SIZE, b"b", b"c", b"d"]
        assert not sends.failed
        assert producer._room.used == 0


async def test_partitions_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    topic = make_record(partitions=2)
    async with (
        producing(lanes, topic, producer_name="p") as producer,
        sends_to(producer) as sends,
    ):
        await producer.send(b"first", partition=1)
        lanes.fail_next()
        with pytest.raises(SendUnknown):
            await producer.send(b"lost", partition=0)
        lanes.delay_s = 10.0
        await sends.begin(b"a", b"b", partition=0)
        lanes.delay_s = 0.001
        await sends.begin(b"c", partition=1)
        await trio.sleep(1)
        assert sends.done == [b"c"]
    assert (sent(lanes, 0), sent(lanes, 1)) == ([b"a", b"b"], [b"first", b"c"])


async def test_a_message_without_a_key_keeps_the_partition_it_was_given(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    topic = make_record(partitions=2)
    async with (
        producing(lanes, topic, producer_name="p") as producer,
        sends_to(producer) as sends,
    ):
        for partition in (0, 1):
            lanes.fail_next()
            with pytest.raises(SendUnknown):
                await producer.send(b"lost", partition=partition)
        lanes.delay_s = 5.0
        await sends.begin(*(b"%d" % number for number in range(6)))
    halves = [sent(lanes, 0), sent(lanes, 1)]
    assert sorted(halves) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


async def test_a_time_limit_holds_in_line(autojump_clock: MockClock) -> None:
    """Whoever is before it may wait for ever."""
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=100) as producer, sends_to(producer) as sends:
        with full(lanes, producer):
            await sends.begin(b"a")
            await sends.begin(b"late", timeout_s=1.0)
            await sends.begin(b"b")
            await trio.sleep(2)
            assert isinstance(sends.failed[b"late"], NotSent)
            assert "the buffer was full" in str(sends.failed[b"late"])
    assert sent(lanes) == [b"a", b"b"]
    assert producer._room.used == 0


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_who_is_cancelled_leaves_the_line_to_the_others(
    autojump_clock: MockClock, gone: int
) -> None:
    lanes = FakeLanes()
    values = [b"a", b"b", b"c"]
    async with producing(lanes, buffer_bytes=100) as producer, sends_to(producer) as sends:
        with full(lanes, producer):
            scopes = await sends.begin(*values)
            scopes[gone].cancel()
            await trio.testing.wait_all_tasks_blocked()
    assert sent(lanes) == values[:gone] + values[gone + 1 :]
    assert producer._room.used == 0


async def test_a_lane_that_cannot_be_opened_fails_all_who_wait_for_it_at_once(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, producer_name="p") as producer, sends_to(producer) as sends:
        await lose_lane(lanes, producer, opens_in_s=5.0)
        lanes.refusal = LedgerError("no bookie is left")
        await sends.begin(b"a", b"b", b"c")
        await trio.sleep(6)
        assert sends.failed.keys() == {b"a", b"b", b"c"}
        assert set(map(type, sends.failed.values())) == {LedgerError}
        assert len(lanes.opened) == 2
        lanes.refusal = None
        await sends.begin(b"d")
    assert sent(lanes) == [b"d"]
    assert producer._room.used == 0


async def test_a_producer_that_is_closed_lets_nobody_wait(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, buffer_bytes=100) as producer, sends_to(producer) as sends:
        lanes.shut()
        producer.send_nowait(b"x" * SIZE)
        await sends.begin(b"a", b"b", b"c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.close)
            await trio.testing.wait_all_tasks_blocked()
            assert set(map(type, sends.failed.values())) == {ProducerClosed}
            assert sends.failed.keys() == {b"a", b"b", b"c"}
            lanes.gate.set()
    assert sent(lanes) == []
    assert producer._room.used == 0


async def test_a_message_is_accepted_or_not_sent_when_both_happen_at_once(
    autojump_clock: MockClock,
) -> None:
    """Its time is over at the moment at which there is room."""
    for order in range(ORDERS):
        trio._core._run._r.seed(order)
        lanes = FakeLanes(delay_s=1.0)
        async with producing(lanes, buffer_bytes=100) as producer, sends_to(producer) as sends:
            producer.send_nowait(b"x" * SIZE)
            await sends.begin(b"a", timeout_s=1.0)
            await sends.begin(b"b", timeout_s=1.0)
            await sends.begin(b"c", timeout_s=60.0)
        assert b"c" in sends.done
        for value in (b"a", b"b"):
            failure = sends.failed.get(value)
            assert value in sends.done or isinstance(failure, NotSent | SendUnknown)
            assert value not in sent(lanes) or not isinstance(failure, NotSent)
        assert producer._room.used == 0


def test_a_turn_is_left_once() -> None:
    line = Line[int]()
    turns = [line.join(partial(int, 1)) for _ in range(3)]
    line.leave(turns[0])
    assert [turn.accepted for turn in turns] == [None, 1, 1]
    for turn in turns:
        line.leave(turn)
    assert not line.turns
