"""Many calls to the metadata store at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger_client.wire.inflight import Turns, limited
from metadata.errors import MetadataUnavailable

TIMEOUT_S = 10.0


async def test_a_turn_may_come_after_the_timeout_while_others_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, under_way, done = Turns(2, TIMEOUT_S), 0, list[int]()

    async def call(number: int) -> None:
        nonlocal under_way
        async with turns.take("c"):
            under_way += 1
            assert under_way <= 2
            await trio.sleep(TIMEOUT_S * 0.9)
            turns.note_answer()
            under_way -= 1
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(done) == list(range(20))
    assert {*done[:2]} == {0, 1}
    assert {*done[-2:]} == {18, 19}


async def test_without_answers_those_who_wait_are_refused_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(2, TIMEOUT_S)
    refused: list[float] = []

    async def call() -> None:
        try:
            async with turns.take("c"):
                await trio.sleep(100 * TIMEOUT_S)
        except MetadataUnavailable as error:
            assert "no answer in 10 s" in error.message
            refused.append(trio.current_time())

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(call)
        await trio.sleep(3)
        turns.note_answer()
    assert refused == [started + 3 + TIMEOUT_S] * 3


async def test_a_cancelled_call_passes_its_turn_on(autojump_clock: trio.testing.MockClock) -> None:
    turns = Turns(1, TIMEOUT_S)

    async def cancelled(after_s: float) -> None:
        with trio.move_on_after(after_s):
            async with turns.take("c"):
                await trio.sleep_forever()

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for after_s in (1, 1, 2, 0.5, 3):
                nursery.start_soon(cancelled, after_s)
        with trio.fail_after(1):
            async with turns.take("c"):
                pass


async def test_the_wait_for_a_turn_does_not_count_against_a_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(1, TIMEOUT_S)
    done: list[int] = []

    async def call(number: int) -> None:
        with limited(TIMEOUT_S):
            async with turns.take("c"):
                await trio.sleep(TIMEOUT_S * 0.9)
                turns.note_answer()
            done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, number)
    assert len(done) == 5


async def test_a_limit_holds_again_once_the_turn_has_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = Turns(1, TIMEOUT_S)

    async def before() -> None:
        async with turns.take("c"):
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(before)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.TooSlowError), limited(3.0):
            await trio.sleep(1)
            async with turns.take("c"):
                begun = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(begun + 2)
