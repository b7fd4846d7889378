"""A disk that hangs, a disk that is slow, and a bookie that was itself stopped."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import v2
from rig import Rig, serving, settings, until
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.disk import DiskGuard
from bookie.stall import StallWatch
from native.frame import Code, Opcode, pulse
from native.progress import Progress

MIB = 1 << 20


class FakeStorage:
    """Storage whose disk moves when the test says so."""

    def __init__(self) -> None:
        self.seen = Progress(journal_work=False, journal_steps=0, flush_work=False, flush_steps=0)

    def set(self, **changed: int) -> None:
        fields = {name: getattr(self.seen, name) for name in Progress.__struct_fields__}
        self.seen = Progress(**(fields | changed))

    def progress(self) -> Progress:
        return self.seen


class FakeServer:
    """Counts the pulses."""

    def __init__(self) -> None:
        self.pulses: list[bool] = []

    def pulse(self, *, flushes: bool) -> None:
        self.pulses.append(flushes)


class FakeEngine:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.read_only = (False, True)

    def set_read_only(self, read_only: bool, priority_allowed: bool) -> None:
        self.read_only = (read_only, priority_allowed)


class Watched:
    """A watch over fakes."""

    def __init__(self, folder: Path) -> None:
        config = settings(folder)
        self.storage, self.server, self.engine = FakeStorage(), FakeServer(), FakeEngine()
        self.disk = DiskGuard(self.engine, config)  # type: ignore[arg-type]  # a fake
        self.ended: list[OSError] = []
        self.watch = StallWatch(
            self.storage,  # type: ignore[arg-type]  # a fake
            self.server,  # type: ignore[arg-type]  # a fake
            self.disk,
            config,
            give_up=self.ended.append,
        )

    def state(self) -> tuple[bool, bool]:
        """Whether it is not ready, and whether it is read-only."""
        return self.watch.is_stalled, self.disk.is_read_only


@pytest.mark.parametrize("part", ["journal", "flush"])
async def test_a_disk_that_hangs_makes_the_bookie_not_ready_then_read_only_then_ends_it(
    tmp_path: Path, part: str, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    watched.storage.set(**{f"{part}_work": True, f"{part}_steps": 9})
    ended = pytest.RaisesExc(OSError, match=f"the {part} .* made no progress for 60 s")
    with trio.fail_after(90), pytest.RaisesGroup(ended):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.watch.run)
            await trio.sleep(1.9)
            assert watched.state() == (False, False)
            await trio.sleep(0.4)
            assert watched.state() == (True, False)
            await watched.disk.changed.wait()  # the registration is to say so
            assert watched.engine.read_only == (False, True)
            await trio.sleep(8)
            assert watched.engine.read_only == (True, False)  # adds of a recovery hang as well
            assert watched.state() == (True, True)
            await watched.disk.changed.wait()
            await trio.sleep(49)
            assert watched.ended == []
            await trio.sleep(1.5)
    assert len(watched.ended) == 1


async def test_a_disk_that_moves_again_makes_the_bookie_ready_and_writable_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    watched.storage.set(journal_work=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(15)
        assert watched.state() == (True, True)
        watched.storage.set(journal_steps=1)
        await trio.sleep(0.3)
        assert watched.state() == (False, False)
        assert watched.engine.read_only == (False, True)
        nursery.cancel_scope.cancel()


async def test_a_slow_disk_with_a_long_queue_is_left_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """There is always work, and a sync takes more than a second."""
    watched = Watched(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        for step in range(120):
            watched.storage.set(journal_work=True, journal_steps=step)
            await trio.sleep(1.3)
            assert not watched.watch.is_stalled
        assert len(watched.server.pulses) >= 100
        nursery.cancel_scope.cancel()


async def test_an_idle_disk_does_not_stand_still(tmp_path: Path, autojump_clock: MockClock) -> None:
    watched = Watched(tmp_path)
    with trio.move_on_after(300):
        await watched.watch.run()
    assert watched.watch.lasted_s == 0 and watched.ended == []


async def test_a_bookie_that_was_stopped_for_minutes_does_not_blame_its_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    watched.storage.set(journal_work=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(1)
        autojump_clock.jump(300)
        await wait_all_tasks_blocked()
        assert not watched.watch.is_stalled
        nursery.cancel_scope.cancel()


async def test_peers_hear_no_pulse_of_a_journal_that_stands_still(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    watched.storage.set(journal_work=True, flush_work=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(1.1)
        watched.server.pulses.clear()
        for step in range(8):
            watched.storage.set(flush_steps=step)
            await trio.sleep(0.25)
        assert watched.server.pulses == []
        watched.storage.set(journal_steps=1)
        await trio.sleep(0.26)
        assert watched.server.pulses == [False]
        nursery.cancel_scope.cancel()


# --- what storage reports ------------------------------------------------------------------


async def test_entries_that_wait_for_their_sync_are_work_of_the_journal(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, checkpoint_interval_s=0), threaded=False) as rig:
        peer = rig.connect()
        idle = rig.storage.progress()
        assert not (idle.journal_work or idle.flush_work)
        await peer.stream.send_all(v2.ADD_HELLO)
        await wait_all_tasks_blocked()
        waiting = rig.storage.progress()
        assert waiting.journal_work and waiting.journal_steps == idle.journal_steps
        await rig.commit()
        done = rig.storage.progress()
        assert not done.journal_work and done.journal_steps > idle.journal_steps


async def test_a_large_group_takes_several_steps(tmp_path: Path) -> None:
    """So that a disk of a few megabytes a second is seen to move."""
    async with serving(settings(tmp_path, checkpoint_interval_s=0), threaded=False) as rig:
        before = rig.storage.progress().journal_steps
        peer = rig.connect()
        for entry_id in range(2):
            await peer.stream.send_all(v2.add(1, entry_id, bytes(4 * MIB)))
        await wait_all_tasks_blocked()
        await rig.commit()
        assert rig.storage.progress().journal_steps - before >= 4


async def test_a_mark_that_cannot_be_written_is_work_of_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = trio.Event(), threading.Event()

    def hang(*_: object) -> None:
        trio.from_thread.run_sync(reached.set)
        go_on.wait(60)

    async with serving(settings(tmp_path, checkpoint_interval_s=0)) as rig:
        peer = rig.connect()
        assert (await peer.ask(v2.ADD_HELLO)).code == 0
        with monkeypatch.context() as patched:
            patched.setattr("bookie.storage.write_mark", hang)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.storage.checkpoint)
                await reached.wait()
                hanging = rig.storage.progress()
                assert hanging.flush_work
                go_on.set()
        await until(lambda: not rig.storage.progress().flush_work)
        assert rig.storage.progress().flush_steps > hanging.flush_steps


# --- what peers hear -----------------------------------------------------------------------


async def heard_within(rig: Rig, peer_frame: object, seconds: float) -> bool:
    """Whether a frame comes, while the bookie says again and again that its disk moves."""
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:

            async def tick() -> None:
                while True:
                    rig.server.pulse(flushes=True)
                    await trio.sleep(0.25)

            nursery.start_soon(tick)
            await peer_frame()  # type: ignore[operator]
            nursery.cancel_scope.cancel()
            return True
    return False


async def test_a_peer_whose_adds_wait_is_sent_pulses_if_it_asked_for_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(settings(tmp_path, checkpoint_interval_s=0), threaded=False) as rig:
        ours, theirs = rig.connect(), rig.connect()
        await ours.stream.send_all(pulse() + v2.ADD_HELLO)
        await theirs.stream.send_all(v2.add(2, 0))
        await wait_all_tasks_blocked()
        assert await heard_within(rig, ours.frame, 1.0)
        assert not await heard_within(rig, theirs.frame, 5.0)
        await rig.commit()
        frames = [await ours.frame()]
        while frames[-1][5] == Opcode.PULSE:
            frames.append(await ours.frame())
        assert frames[-1][5] == Opcode.ADD
        assert (await theirs.response()).code == 0


async def test_a_peer_without_adds_under_way_is_sent_no_pulses(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(settings(tmp_path, checkpoint_interval_s=0), threaded=False) as rig:
        peer = rig.connect()
        await peer.stream.send_all(pulse())
        assert not await heard_within(rig, peer.frame, 5.0)


async def test_a_fence_that_the_journal_does_not_take_is_answered_in_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever recovers hears that this bookie cannot tell, and goes on with the others."""
    async with serving(settings(tmp_path, checkpoint_interval_s=0), threaded=False) as rig:
        peer = rig.connect()
        with trio.fail_after(9):
            answer = await peer.ask(v2.FENCE_HELLO)
        assert answer.code == Code.IO_ERROR
        assert (await peer.ask(v2.add(1, 0))).code == Code.FENCED  # it is fenced nevertheless
