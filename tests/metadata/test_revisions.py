from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.errors import MetadataUnavailable
from metadata.revisions import INTERVAL_S, ChangePoll
from metadata.store import Changes

FOREVER_S = 1e6


class Source:
    """A store with one key for each revision. It counts what is asked."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.looks = 0
        self.reads = 0
        self.broken = False

    @property
    def revision(self) -> int:
        return len(self.keys)

    def change(self, *keys: str) -> int:
        self.keys += keys
        return self.revision

    async def newest(self) -> int:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        if self.broken:
            raise MetadataUnavailable("broken")
        return self.revision

    async def read(self, since: int) -> Changes:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        return Changes(self.revision, self.keys[since:])


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def poll(source: Source) -> ChangePoll:
    return ChangePoll(source.newest, source.read)


async def test_however_many_wait_the_source_is_asked_once_an_interval(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(poll.wait, "a" if number else "a/b", 0, FOREVER_S)
        await trio.sleep(INTERVAL_S * 4.5)
        assert (source.looks, source.reads) == (4, 0)
        source.change("a/b")
    assert (source.looks, source.reads) == (5, 1)


async def test_a_change_is_read_once_and_wakes_those_whom_it_concerns(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    woken: list[str] = []

    async def wait(prefix: str) -> None:
        assert await poll.wait(prefix, 0, FOREVER_S) is None
        woken.append(prefix)

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(wait, f"w/{number:03}/")
        await trio.testing.wait_all_tasks_blocked()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for _ in range(10):
            poll.advance(source.change("elsewhere"))
            await trio.sleep(INTERVAL_S)
        assert woken == []
        assert source.reads == 10
        assert steps.count < 10 * 10  # 300 tasks that wake would make 3000
        poll.advance(source.change("w/007/x", "w/123/y"))
        await trio.sleep(2 * INTERVAL_S)
        trio.lowlevel.remove_instrument(steps)
        assert sorted(woken) == ["w/007/", "w/123/"]
        assert source.reads == 11
        nursery.cancel_scope.cancel()


class Steps(trio.abc.Instrument):
    """Counts how often tasks run."""

    count = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_wait_that_ends_for_nothing_learns_how_far_there_was_nothing(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    """So a wait for something rare does not fall behind the store's log."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll.wait, "other/", 0, 100.0)
        for _ in range(50):
            source.change("elsewhere")
            poll.advance(source.change("here"))
        assert await poll.wait("w/", source.revision, 1.0) == source.revision
        source.change("elsewhere", "elsewhere")
        assert await poll.wait("w/", source.revision - 2, 1.0) == source.revision
        nursery.cancel_scope.cancel()


async def test_a_change_between_the_callers_read_and_its_wait_is_not_missed(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll.wait, "other/", 0, 100.0)
        await trio.testing.wait_all_tasks_blocked()
        poll.advance(source.change("w/1"))
        await trio.sleep(2 * INTERVAL_S)  # it was passed on to the one that waited
        assert await poll.wait("w/", 0, 10.0) is None
        nursery.cancel_scope.cancel()
    before = source.revision
    poll.advance(source.change("w/2"))
    with trio.fail_after(1):
        assert await poll.wait("w/", before, 10.0) is None


async def test_a_store_that_was_set_back_wakes_all_and_is_not_read_on_and_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reads = 0

    async def newest() -> int:
        return 7

    async def read(since: int) -> Changes:
        nonlocal reads
        reads += 1
        assert reads < 10
        await trio.lowlevel.checkpoint()
        return Changes(3, [], everything=since > 3)

    poll = ChangePoll(newest, read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll.wait, "a", 5, FOREVER_S)
        nursery.start_soon(poll.wait, "b", 5, FOREVER_S)


async def test_nobody_reads_when_nobody_waits(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(10)
    assert (source.looks, source.reads) == (0, 0)


async def test_when_the_task_that_looks_is_cancelled_another_takes_over(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            for seconds in (0.12, 0.33, 0.51):
                nursery.start_soon(poll.wait, "a", 0, seconds)
            await trio.sleep(0.6)
            source.change("a")
            assert await poll.wait("a", 0, FOREVER_S) is None


async def test_a_change_is_passed_on_though_the_task_that_was_to_read_it_is_cancelled(
    source: Source, autojump_clock: trio.testing.MockClock
) -> None:
    """The leader rests for long, so that nobody but those who wait can read."""
    poll = ChangePoll(source.newest, source.read, trio.sleep_forever)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll.wait, "leader", 0, FOREVER_S)
        await trio.testing.wait_all_tasks_blocked()
        scopes = [trio.CancelScope() for _ in range(3)]
        woken: list[int] = []

        async def wait(number: int) -> None:
            with scopes[number]:
                await poll.wait("a", 0, FOREVER_S)
                woken.append(number)

        for number in range(3):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        poll.advance(source.change("a"))
        scopes[2].cancel()  # the last to come was called
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [0, 1]
        nursery.cancel_scope.cancel()


async def test_a_change_of_this_process_wakes_at_once(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    woken: list[float] = []

    async def wait() -> None:
        await poll.wait("a", 0, FOREVER_S)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        for _ in range(3):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        poll.advance(0)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        poll.advance(source.change("a"))
    assert woken[0] == started
    assert woken[-1] <= started + INTERVAL_S


async def test_each_waiting_task_learns_of_a_failure(
    source: Source, poll: ChangePoll, autojump_clock: trio.testing.MockClock
) -> None:
    source.broken = True
    failed = 0

    async def wait() -> None:
        nonlocal failed
        with pytest.raises(MetadataUnavailable):
            await poll.wait("a", 0, FOREVER_S)
        failed += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
    assert failed == 3


async def test_one_task_pauses_at_a_time_though_this_process_makes_changes(
    source: Source, autojump_clock: trio.testing.MockClock
) -> None:
    """A pause may wait for a file that only one task can wait for."""
    pausing = 0

    async def pause() -> None:
        nonlocal pausing
        pausing += 1
        assert pausing == 1
        await trio.sleep(INTERVAL_S)
        pausing -= 1

    poll = ChangePoll(source.newest, source.read, pause)
    async with trio.open_nursery() as nursery:
        for revision in range(1, 6):
            nursery.start_soon(poll.wait, "a", revision - 1, FOREVER_S)
            await trio.sleep(INTERVAL_S / 10)
            nursery.start_soon(poll.wait, "a", revision, FOREVER_S)
            poll.advance(source.change("a"))
        source.change("a")
