"""The disk guard: makes a bookie read-only before its disk is full, and writable again later.

A write that fails for lack of space would end the bookie like any other failed write, because the
journal may then hold half a group. So the guard acts while there is still room for everything
under way: both halves of the memtable, and the reserve.

    used >= disk_warn_ratio                          no major compaction
    used >= disk_full_ratio, or                      read-only: no adds, no compaction;
    free < disk_reserve + 2 x memtable_size          reads and fences continue
    and free > disk_reserve                          ... and so do adds of a recovery

Both folders are checked every disk_check_s, and after each flush, so that at most one memtable is
written between two checks. The fuller disk counts.
"""

from __future__ import annotations

import enum
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import trio

from bookie.config import BookieConfig
from bookie.events import Wakeup
from native.engine import Engine

_log = logging.getLogger(__name__)


class Level(enum.IntEnum):
    """Fill level of a disk; a higher level refuses more."""

    OK = 0
    WARN = 1
    FULL = 2


_MEANING = {
    Level.OK: "the disk has room again",
    Level.WARN: "the disk is nearly full (disk_warn_ratio)",
    Level.FULL: "the disk is full (disk_full_ratio, disk_reserve): read-only from now on",
}


class Usage(Protocol):
    """Sizes of a file system in bytes, as shutil.disk_usage gives them."""

    @property
    def total(self) -> int:
        """Size of the whole file system."""

    @property
    def free(self) -> int:
        """Bytes that this process may still write; root's reserve does not count."""


class _Look(NamedTuple):
    level: Level
    free: int
    capacity: int


class DiskGuard:
    """Watches the disks of both folders.

    Attributes:
        level: of the fuller disk at the last check.
        free: bytes free on the disk that has fewer.
        capacity: bytes of the ledger folder's disk.
        changed: set when the registration must be updated.
        look_now: set this after much was written.
    """

    def __init__(
        self,
        engine: Engine,
        config: BookieConfig,
        *,
        measure: Callable[[Path], Usage] = shutil.disk_usage,
    ) -> None:
        self._engine = engine
        self._config = config
        self._measure = measure
        self._thread = trio.CapacityLimiter(1)  # its own, as Storage has one
        self._refused = False
        self._stalled = False
        self._has_reserve = True
        self._reported = False
        self.level = Level.OK
        self.free = 0
        self.capacity = 0
        self.changed = Wakeup()
        self.look_now = Wakeup()

    @property
    def is_read_only(self) -> bool:
        """True while ordinary adds are refused."""
        return self._refused or self._stalled or self.level is Level.FULL

    async def refuse_adds(self, refused: bool) -> None:
        """Start or stop refusing adds, whatever the disk's level."""
        self._refused = refused
        await self.check()

    def refuse_stalled(self, stalled: bool) -> None:
        """Start or stop refusing all adds because the disk hangs; does not touch the disk."""
        if stalled != self._stalled:
            self._stalled = stalled
            self._apply()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Check now, then every disk_check_s and whenever look_now is set.

        Raises:
            OSError: a folder cannot be read; its disk is gone.
        """
        await self.check()
        task_status.started()
        while True:
            with trio.move_on_after(self._config.disk_check_s):
                await self.look_now.wait()
            await self.check()

    async def check(self) -> None:
        """Check the disks once and act on the result."""
        look = await trio.to_thread.run_sync(self._look, limiter=self._thread)
        before, self.level = self.level, look.level
        self.free, self.capacity = look.free, look.capacity
        self._has_reserve = look.free > self._config.disk_reserve
        if look.level is not before:
            _log.warning("%s; %d bytes are free", _MEANING[look.level], look.free)
        self._apply()

    def _apply(self) -> None:
        self._engine.set_read_only(
            read_only=self.is_read_only,
            priority_allowed=self._has_reserve and not self._stalled,
        )
        if self._reported != self.is_read_only:
            self._reported = self.is_read_only
            self.changed.set()

    def _look(self) -> _Look:
        ledgers = self._measure(Path(self._config.ledger_folder))
        journal = self._measure(Path(self._config.journal_folder))
        level = max(self._level_of(ledgers), self._level_of(journal))
        return _Look(level, min(ledgers.free, journal.free), ledgers.total)

    def _level_of(self, usage: Usage) -> Level:
        config = self._config
        used = 1 - usage.free / usage.total if usage.total else 1.0
        needed = config.disk_reserve + 2 * config.memtable_size
        if used >= config.disk_full_ratio or usage.free < needed:
            return Level.FULL
        return Level.WARN if used >= config.disk_warn_ratio else Level.OK
