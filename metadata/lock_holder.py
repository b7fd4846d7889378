"""Finds the process that holds SQLite's write lock, so that an error can name it.

SQLite locks byte 120 of the file ``-shm`` to write in WAL mode (wal.c, WAL_WRITE_LOCK), and
the bytes from 0x40000000 on of the database itself to switch to that mode (os.h,
PENDING_BYTE). Linux lists such locks in /proc/locks. A process that is paused in the middle
of a change keeps its lock, and no other process can take it away. A blocked process can only
name the one that blocks it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_WRITE_LOCK = 120
_PENDING_BYTE = 0x4000_0000
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk"}


def describe_holder(store: Path, *, locks: Path = Path("/proc/locks")) -> str:
    """Return advice about the other process that holds the write lock of *store*.

    The text is empty if there is none: it has released the lock by now, or is not visible from
    here (another container).
    """
    with suppress(OSError, ValueError):
        places = {
            _inode(store.with_name(f"{store.name}-shm")): _WRITE_LOCK,
            _inode(store): _PENDING_BYTE,
        }
        for line in locks.read_text().splitlines():
            process_id = _writer(line.split(), places)
            if process_id is not None and process_id not in (0, os.getpid()):
                return _describe(process_id)
    return ""


def _inode(path: Path) -> str:
    found = path.stat()
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _writer(words: list[str], places: dict[str, int]) -> int | None:
    """Return the process id in a line like "1: POSIX ADVISORY WRITE 99 fe:01:12 120 120"."""
    if len(words) != 8 or words[1] != "POSIX" or words[3] != "WRITE" or words[5] not in places:
        return None
    first, last = int(words[6]), -1 if words[7] == "EOF" else int(words[7])
    place = places[words[5]]
    is_inside = first <= place and (last < 0 or place <= last)
    return int(words[4]) if is_inside else None


def _describe(process_id: int) -> str:
    name, state = _name_and_state(process_id)
    seen = f"process {process_id} ({', '.join(filter(None, (name, state)))})"
    if state == _STATES["T"]:
        return f"{seen} holds the lock; let it go on (kill -CONT {process_id}) or end it"
    return f"{seen} holds the lock"


def _name_and_state(process_id: int) -> tuple[str, str]:
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return "", ""
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, _STATES.get(rest.strip()[:1], "")
