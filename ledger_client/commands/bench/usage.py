"""What processes cost, as the kernel counts it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that the processes used so far, user and system."""
    ticks = 0
    for pid in pids:
        # The name, which may hold anything, ends with the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def rss_max(pid: int) -> int:
    """Return the most bytes of memory that the process ever had resident."""
    return _status(pid, "VmHWM")


def rss(pid: int) -> int:
    """Return the bytes of memory that the process has resident now."""
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return int(found[1]) * 1024 if found else 0


def drop_page_cache(folder: Path) -> None:
    """Make the next read of every file under *folder* come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
