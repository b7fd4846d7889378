"""Announcements of changes, between the processes that share a SQLite file.

    process A: change ──► COMMIT ──► announce(): sets the times of the file's -shm
                                         │ the kernel
    process B: wait() ◄── inotify ◄──────┘

An announcement is a hint. A process killed after its COMMIT makes none, and neither does another
program that writes the file, so wait() returns now and then without one. SQLite itself never
touches the times of -shm, and never syncs it. Where inotify is missing, does not report (some
file systems of containers), or has no instance left for this user, wait() only sleeps.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import weakref
from contextlib import suppress
from pathlib import Path

import trio

PAUSE_S = 0.1
"""Time between two returns of wait(), at least. Without inotify, it is that long."""
_IN_ATTRIB = 0x4
_IN_IGNORED = 0x8000
_EVENTS_SIZE = 4096


class Announcements:
    """Announces changes of the SQLite file *path*, and waits for those of all processes.

    Without a path nothing is announced, and wait() only sleeps.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else Path(f"{path}-shm")
        self._events: _Events | None = None
        self._is_missing = path is None
        self._returned_at = -math.inf

    def announce(self) -> None:
        """Wake the processes that wait, this one too. Blocks for microseconds."""
        if self._path is not None:
            with suppress(OSError):  # it is a hint
                os.utime(self._path)

    async def wait(self, limit_s: float) -> None:
        """Wait for an announcement that came after the last return, up to *limit_s*.

        The first call returns after PAUSE_S. One task at a time may wait.
        """
        try:
            events = self._events
            if events is None:
                self._events = None if self._is_missing else self._open()
                await trio.sleep(PAUSE_S)
                return
            with trio.move_on_after(limit_s):
                await events.wait()
            await trio.sleep_until(self._returned_at + PAUSE_S)
            if not events.take():
                self._leave()
        finally:
            self._returned_at = trio.current_time()

    def close(self) -> None:
        """Wait for announcements no more; a task that waits goes on."""
        self._is_missing = True
        self._leave()

    def _open(self) -> _Events | None:
        """Return the events of announcements, or None if they cannot be had."""
        events = None if self._path is None else _Events.open(self._path)
        self.announce()
        if events is not None and events.is_ready and events.take():
            return events
        self._is_missing = True
        if events is not None:
            events.close()
        return None

    def _leave(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


class _Events:
    """An inotify instance for the times of one file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)

    @classmethod
    def open(cls, path: Path) -> _Events | None:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "inotify_init1"):
            return None
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if fd < 0:
            return None
        events = cls(fd)
        if libc.inotify_add_watch(fd, os.fsencode(path), _IN_ATTRIB) < 0:
            events.close()
            return None
        return events

    @property
    def is_ready(self) -> bool:
        return bool(select.select([self._fd], [], [], 0)[0])

    async def wait(self) -> None:
        with suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(self._fd)

    def take(self) -> bool:
        """Forget the events so far; return False if the file is gone and there will be none."""
        with suppress(BlockingIOError):
            while self._close.alive:
                found = os.read(self._fd, _EVENTS_SIZE)
                masks = memoryview(found).cast("I")[1::4]
                if any(mask & _IN_IGNORED for mask in masks):
                    return False
        return self._close.alive

    def close(self) -> None:
        if self._close.alive:
            with suppress(RuntimeError):  # outside of trio, nobody waits
                trio.lowlevel.notify_closing(self._fd)
            self._close()
