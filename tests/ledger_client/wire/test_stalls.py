"""The time for which the event loop stood still hardly counts against those that were asked."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from ledger_client.wire import inflight

LIMIT_S = 0.5
STOOD_S = 1.0


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "STALL_S", 0.05)


async def ask(late_s: float) -> bytes:
    """Ask another thread, and wait for the answer for LIMIT_S."""
    here, there = socket.socketpair()

    def reply() -> None:
        with there, suppress(BrokenPipeError):  # nobody waits any more
            time.sleep(late_s)
            there.send(b"answer")

    thread = threading.Thread(target=reply)
    thread.start()
    try:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(here)) as stream:
            answer, arrived = b"", trio.Event()

            async def read() -> None:
                nonlocal answer
                answer = await stream.receive_some()
                arrived.set()

            with inflight.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    await arrived.wait()
            return answer
    finally:
        thread.join()


def compute(seconds: float = STOOD_S) -> None:
    time.sleep(seconds)


async def stand_still() -> None:
    await trio.sleep(0.05)
    compute()


async def test_an_answer_that_came_while_the_loop_stood_still_is_in_time() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand_still)
        assert await ask(0.2) == b"answer"


async def test_what_nobody_could_send_meanwhile_gets_time_to_be_answered() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand_still)
        assert await ask(STOOD_S + 0.2) == b"answer"


async def test_a_wait_that_begins_anew_after_the_loop_stood_still_has_what_was_left() -> None:
    since = trio.current_time()
    with inflight.move_on_after(LIMIT_S) as scope:
        await stand_still()
        await trio.sleep(0.05)
        until = inflight.ends_at(since, LIMIT_S)
        assert until == pytest.approx(scope.deadline)
        assert until > trio.current_time() > since + LIMIT_S
        assert inflight.ends_at(trio.current_time(), LIMIT_S) < trio.current_time() + LIMIT_S + 0.01
    assert not scope.cancelled_caught


async def test_what_does_not_come_is_given_up_with_stalls_and_without() -> None:
    with pytest.raises(trio.TooSlowError):
        await ask(LIMIT_S + 0.5)
    passes = 0
    with inflight.move_on_after(LIMIT_S) as scope:
        while passes < 40:
            passes += 1
            compute(0.1)
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert 4 <= passes <= LIMIT_S / inflight.STALL_S + 2


async def test_nothing_measures_the_loop_while_nothing_is_asked() -> None:
    with inflight.move_on_after(LIMIT_S):
        assert inflight._patience()._measures
        await trio.sleep(0.01)
    for _ in range(2 * inflight.IDLE_PASSES_MAX):
        await trio.lowlevel.checkpoint()
    assert not inflight._patience()._measures


async def test_on_a_virtual_clock_nothing_is_extended(autojump_clock: MockClock) -> None:
    with inflight.move_on_after(1000) as scope:
        await trio.sleep(500)
        compute()
        await trio.sleep(499)
        await trio.sleep(2)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(scope.deadline)
