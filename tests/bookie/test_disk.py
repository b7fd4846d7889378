from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import trio
import trio.testing
from rig import MIB, needs_no_default_thread, settings

from bookie.disk import DiskGuard, Level, Usage

GIB = 1 << 30


@dataclasses.dataclass
class FakeUsage:
    total: int
    free: int


class FakeEngine:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.read_only: tuple[bool, bool] | None = None

    def set_read_only(self, read_only: bool, priority_allowed: bool) -> None:
        self.read_only = (read_only, priority_allowed)


class Disk:
    """A disk of 100 GiB; the guard looks at both folders on it."""

    def __init__(self, folder: Path, **changed: object) -> None:
        self.free = 100 * GIB
        self.journal_free = 100 * GIB
        self.engine = FakeEngine()
        ratios = {"disk_full_ratio": 0.95, "disk_warn_ratio": 0.9, "disk_reserve": GIB}
        self.config = settings(folder, **(ratios | changed))
        self.guard = DiskGuard(self.engine, self.config, measure=self._measure)  # type: ignore[arg-type]  # a fake

    def _measure(self, path: Path) -> Usage:
        journal = path == Path(self.config.journal_folder)
        return FakeUsage(100 * GIB, self.journal_free if journal else self.free)

    async def look(self, free: int) -> Level:
        self.free = free
        await self.guard.check()
        return self.guard.level


async def test_the_levels_follow_the_ratios(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert await disk.look(11 * GIB) is Level.OK
    assert await disk.look(10 * GIB) is Level.WARN
    assert await disk.look(5 * GIB + 1) is Level.WARN
    assert await disk.look(5 * GIB) is Level.FULL


async def test_a_full_disk_refuses_adds_and_takes_those_of_a_recovery(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    await disk.look(50 * GIB)
    assert disk.engine.read_only == (False, True)
    await disk.look(4 * GIB)
    assert disk.engine.read_only == (True, True)
    await disk.look(GIB)
    assert disk.engine.read_only == (True, False)


async def test_the_bookie_is_writable_again_by_itself(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert await disk.look(GIB) is Level.FULL
    assert await disk.look(20 * GIB) is Level.OK
    assert disk.engine.read_only == (False, True)


async def test_a_disk_with_room_in_percent_but_not_for_two_halves_is_full(tmp_path: Path) -> None:
    disk = Disk(tmp_path, disk_full_ratio=1.0, disk_warn_ratio=1.0, disk_reserve=100 * MIB)
    assert await disk.look(124 * MIB) is Level.OK
    assert await disk.look(124 * MIB - 1) is Level.FULL


async def test_the_worse_of_both_disks_counts(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.journal_free = 2 * GIB
    assert await disk.look(90 * GIB) is Level.FULL
    assert disk.guard.free == 2 * GIB


async def test_a_change_rings_the_bell_and_a_repetition_does_not(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    await disk.look(GIB)
    await disk.guard.changed.wait()
    await disk.look(GIB)
    await disk.look(10 * GIB)
    await disk.guard.changed.wait()
    with trio.move_on_after(0.01) as quiet:
        await disk.guard.changed.wait()
    assert quiet.cancelled_caught


async def test_a_flush_makes_the_guard_look_before_its_time(tmp_path: Path) -> None:
    disk = Disk(tmp_path, disk_check_s=1000.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.guard.run)
        disk.free = GIB
        disk.guard.look_now.set()
        with trio.fail_after(30):
            await disk.guard.changed.wait()
        assert disk.guard.is_read_only
        nursery.cancel_scope.cancel()


async def test_a_disk_that_is_gone_ends_the_guard(tmp_path: Path) -> None:
    config = settings(tmp_path / "nowhere")
    guard = DiskGuard(FakeEngine(), config)  # type: ignore[arg-type]  # a fake
    with pytest.raises(FileNotFoundError):
        await guard.run()


async def test_the_guard_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """Names that nobody resolves hold the others, and a disk that fills up was not noticed."""
    disk = Disk(tmp_path)
    disk.free = GIB
    assert await needs_no_default_thread(disk.guard.check)
    assert disk.guard.level is Level.FULL
