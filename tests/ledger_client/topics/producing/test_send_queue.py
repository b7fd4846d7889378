"""Sends that come from other threads, each with a time limit or without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, producing
from trio.testing import MockClock

from ledger_client.errors import NotSent
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.send_queue import QueuedSend, SendQueue

COUNT = 30


class Sends:
    """Sends through a queue, and what became of each.

    Attributes:
        ids: by value, of what is kept.
        failures: by value, of what is not.
    """

    def __init__(self, queue: SendQueue) -> None:
        self._queue = queue
        self.ids: dict[bytes, MessageId] = {}
        self.failures: dict[bytes, BaseException] = {}

    def send(
        self, value: bytes, *, sequence: int | None = None, timeout_s: float | None = None
    ) -> QueuedSend:
        settle = partial(self._settle, value)
        sent = QueuedSend(value, {"sequence": sequence}, settle, timeout_s)
        self._queue.put(sent)
        return sent

    def _settle(
        self, value: bytes, message_id: MessageId | None, failure: BaseException | None
    ) -> None:
        assert value not in self.ids.keys() | self.failures.keys(), "settled twice"
        if message_id is not None:
            self.ids[value] = message_id
        if failure is not None:
            self.failures[value] = failure


@asynccontextmanager
async def sending(lanes: FakeLanes, **options: object) -> AsyncIterator[tuple[Sends, Producer]]:
    async with producing(lanes, None, **options) as producer, trio.open_nursery() as nursery:
        token = trio.lowlevel.current_trio_token()
        yield Sends(SendQueue(producer, token.run_sync_soon, nursery)), producer
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("timed", [1, 2], ids=["all limited", "every second limited"])
async def test_messages_are_accepted_in_the_order_of_the_calls(
    autojump_clock: MockClock, timed: int
) -> None:
    """A number that comes behind a higher one would pass for a duplicate, and not be kept."""
    lanes = FakeLanes()
    values = [b"%d" % number for number in range(COUNT)]
    async with sending(lanes, producer_name="p") as (sends, _):
        for number, value in enumerate(values):
            sends.send(value, sequence=number, timeout_s=60 if number % timed == 0 else None)
    assert lanes.values() == values
    assert sends.ids == {each.value: each.id for each in lanes.messages()}


@pytest.mark.parametrize("limits", [(None, None, None), (60, 60, 60), (None, 60, None)])
@pytest.mark.parametrize("numbered", [False, True])
async def test_messages_that_wait_for_room_keep_the_order_of_the_calls(
    autojump_clock: MockClock, numbered: bool, limits: Sequence[float | None]
) -> None:
    """The first one does not fit, and the others would."""
    for order in range(12):
        trio._core._run._r.seed(order)
        lanes = FakeLanes()
        values = [b"a" * 400, b"b", b"c"]
        name = "p" if numbered else ""
        async with sending(lanes, producer_name=name, buffer_bytes=500) as (sends, producer):
            lanes.shut()
            producer.send_nowait(b"x" * 300)
            for number, (value, limit) in enumerate(zip(values, limits, strict=True), 1):
                sends.send(value, sequence=number if numbered else None, timeout_s=limit)
            await trio.testing.wait_all_tasks_blocked()
            lanes.gate.set()
        assert lanes.values()[1:] == values
        assert sends.ids.keys() == set(values)


async def test_a_send_that_is_cancelled_before_its_task_runs_is_not_sent(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with sending(lanes, buffer_bytes=100) as (sends, producer):
        lanes.shut()
        producer.send_nowait(b"x" * 80)
        gone = sends.send(b"y" * 80)
        trio.lowlevel.current_trio_token().run_sync_soon(gone.cancel)
        sends.send(b"z" * 80)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sends.failures[b"y" * 80], InterruptedError)
        lanes.gate.set()
    assert lanes.values() == [b"x" * 80, b"z" * 80]


async def test_a_message_is_taken_back_when_its_time_is_over(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with sending(lanes, linger_ms=1000) as (sends, producer):
        sends.send(b"a")
        sends.send(b"late", timeout_s=0.5)
        sends.send(b"b", timeout_s=60)
    assert lanes.values() == [b"a", b"b"]
    assert isinstance(sends.failures[b"late"], NotSent)
    assert sends.ids == {b"a": MessageId(99, 0, -1, 0), b"b": MessageId(99, 0, -1, 1)}
    assert producer._room.used == 0


async def test_the_time_for_room_counts(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with sending(lanes, buffer_bytes=100) as (sends, _):
        lanes.shut()
        first, late = b"x" * 80, b"y" * 80
        sends.send(first)
        sends.send(late, timeout_s=0.5)
        await trio.sleep(1)
        lanes.gate.set()
    assert lanes.values() == [first]
    assert isinstance(sends.failures[late], NotSent)


async def test_a_wrong_time_limit_sends_nothing(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with sending(lanes) as (sends, _):
        sends.send(b"x", timeout_s=-1)
    assert lanes.values() == []
    assert isinstance(sends.failures[b"x"], ValueError)


async def test_a_send_that_is_cancelled_ends_and_may_be_kept(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with sending(lanes, linger_ms=1000) as (sends, _):
        sent = sends.send(b"x", timeout_s=60)
        await trio.testing.wait_all_tasks_blocked()
        sent.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sends.failures[b"x"], InterruptedError)
    assert lanes.values() == [b"x"]
