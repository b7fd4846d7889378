from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.errors import MetadataUnavailable
from metadata.revisions import INTERVAL_S, RevisionPoll


class Source:
    def __init__(self) -> None:
        self.revision = 0
        self.reads = 0
        self.broken = False

    async def read(self) -> int:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        if self.broken:
            raise MetadataUnavailable("broken")
        return self.revision


async def test_however_many_wait_the_source_is_read_once_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source()
    pulse = RevisionPoll(source.read)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(pulse.wait_past, 0)
        await trio.sleep(INTERVAL_S * 4.5)
        assert source.reads == 4
        source.revision = 1
    assert source.reads == 5


async def test_nobody_reads_when_nobody_waits(autojump_clock: trio.testing.MockClock) -> None:
    source = Source()
    RevisionPoll(source.read)
    await trio.sleep(10)
    assert source.reads == 0


async def test_when_the_reading_task_is_cancelled_another_takes_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source()
    pulse = RevisionPoll(source.read)

    async def wait_for(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await pulse.wait_past(0)

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            for seconds in (0.12, 0.33, 0.51):
                nursery.start_soon(wait_for, seconds)
            await trio.sleep(0.6)
            source.revision = 1
            await pulse.wait_past(0)


async def test_a_change_of_this_process_wakes_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source()
    pulse = RevisionPoll(source.read)
    woken: list[float] = []

    async def wait() -> None:
        await pulse.wait_past(3)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        for _ in range(3):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pulse.advance(3)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        pulse.advance(4)
    assert woken[0] == started
    assert woken[-1] <= started + INTERVAL_S


async def test_each_waiting_task_learns_of_a_failure(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source()
    source.broken = True
    pulse = RevisionPoll(source.read)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            await pulse.wait_past(0)


async def test_one_task_pauses_at_a_time_though_this_process_makes_changes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A pause may wait for a file that only one task can wait for."""
    source = Source()
    pausing = 0

    async def pause() -> None:
        nonlocal pausing
        pausing += 1
        assert pausing == 1
        await trio.sleep(INTERVAL_S)
        pausing -= 1

    pulse = RevisionPoll(source.read, pause)
    async with trio.open_nursery() as nursery:
        for revision in range(1, 6):
            nursery.start_soon(pulse.wait_past, revision - 1)
            await trio.sleep(INTERVAL_S / 10)
            nursery.start_soon(pulse.wait_past, revision)
            pulse.advance(revision)
        source.revision = 6
