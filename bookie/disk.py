"""The disk guard: a bookie turns read-only before its disk is full, and back by itself.

A write that fails for want of space would end the bookie like any other failed write,
since the journal may then hold half a group. So the guard acts while there is still room
for everything that is under way: both halves of the memtable, and the reserve.

    used >= disk_warn_ratio                          no major compaction
    used >= disk_full_ratio, or                      read-only: no adds, no compaction;
    free < disk_reserve + 2 x memtable_size          reads and fences go on
    and free > disk_reserve                          ... and so do adds of a recovery

Both folders are looked at every disk_check_s, and after each flush, so that no more than
a memtable goes to the disk between two looks, however fast it is. The worse folder counts.
"""

from __future__ import annotations

import enum
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import trio

from bookie.bell import Bell
from bookie.config import BookieConfig
from native.engine import Engine

_log = logging.getLogger(__name__)


class Level(enum.IntEnum):
    """How full the disk is."""

    OK = 0
    WARN = 1
    FULL = 2


class Usage(Protocol):
    """Sizes of a file system in bytes, as shutil.disk_usage gives them."""

    @property
    def total(self) -> int:
        """All of it."""

    @property
    def free(self) -> int:
        """What this process may still write."""


class _Look(NamedTuple):
    level: Level
    free: int
    capacity: int


class DiskGuard:
    """Watches the disks of both folders.

    Attributes:
        level: how full the fuller disk was at the last look.
        free: bytes free on the disk that has fewer.
        capacity: bytes of the ledger folder's disk.
        changed: rings when the registration should say something else.
        look_now: to be rung when much was written.
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
        self._refused = False
        self._stalled = False
        self._has_reserve = True
        self._told = False
        self.level = Level.OK
        self.free = 0
        self.capacity = 0
        self.changed = Bell()
        self.look_now = Bell()

    @property
    def is_read_only(self) -> bool:
        """Whether ordinary adds are refused."""
        return self._refused or self._stalled or self.level is Level.FULL

    async def refuse_adds(self, refused: bool) -> None:
        """Be read-only whatever the disk says, or no longer."""
        self._refused = refused
        await self.check()

    def refuse_stalled(self, stalled: bool) -> None:
        """Refuse all adds because the disk hangs, or take them again; asks the disk nothing."""
        if stalled != self._stalled:
            self._stalled = stalled
            self._apply()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Look now, then every disk_check_s and whenever look_now rings.

        Raises:
            OSError: a folder cannot be looked at; its disk is gone.
        """
        await self.check()
        task_status.started()
        while True:
            with trio.move_on_after(self._config.disk_check_s):
                await self.look_now.heard()
            await self.check()

    async def check(self) -> None:
        """Look at the disks once and act on it."""
        look = await trio.to_thread.run_sync(self._look)
        before, self.level = self.level, look.level
        self.free, self.capacity = look.free, look.capacity
        self._has_reserve = look.free > self._config.disk_reserve
        if look.level is not before:
            _log.warning("disk %s, %d bytes free", look.level.name.lower(), look.free)
        self._apply()

    def _apply(self) -> None:
        self._engine.set_read_only(
            read_only=self.is_read_only,
            priority_allowed=self._has_reserve and not self._stalled,
        )
        if self._told != self.is_read_only:
            self._told = self.is_read_only
            self.changed.ring()

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
