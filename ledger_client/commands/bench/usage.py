"""CPU, memory, page cache and counters of the processes that a benchmark uses."""

from __future__ import annotations

import os
import re
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from ledger_client.commands.sandbox import Bookie, Sandbox
from ledger_client.errors import NotEnoughBookies
from ledger_client.ledgers.ledgers import Ledgers
from metadata.calls import FlushNow
from metadata.records import BookieRecord

FLUSH_TIMEOUT_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of these processes so far, in seconds, user and system."""
    ticks = 0
    for pid in pids:
        # The name may contain anything; it ends at the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def rss_max(pid: int) -> int:
    """Return the peak of a process's resident memory, in bytes."""
    return _status(pid, "VmHWM")


def rss(pid: int) -> int:
    """Return a process's resident memory, in bytes."""
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return int(found[1]) * 1024 if found else 0


async def make_cold(ledgers: Ledgers, sandbox: Sandbox) -> None:
    """Flush every bookie of *sandbox* and drop its files from the page cache."""
    for bookie in sandbox.bookies:
        await ledgers.call(bookie.bookie_id, FlushNow(), timeout_s=FLUSH_TIMEOUT_S)
    await trio.to_thread.run_sync(drop_page_cache, sandbox.folder)


def drop_page_cache(folder: Path) -> None:
    """Drop all files under *folder* from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


# --- A cluster that stays ---------------------------------------------------------------


def writable(bookies: Sequence[BookieRecord], needed: int | None) -> int:
    """Return how many of the bookies take writes.

    Raises:
        NotEnoughBookies: none does, or fewer than *needed*.
    """
    read_only = sum(each.read_only for each in bookies)
    count = sum(not (each.read_only or each.limbo or each.draining) for each in bookies)
    if count < (needed or 1):
        raise NotEnoughBookies(healthy=count, needed=needed or 1, read_only=read_only)
    return count


# --- Memory over time -------------------------------------------------------------------


LOOK_S = 0.05


class Residence:
    """Peaks of resident memory, sampled over time.

    Attributes:
        own: of the process.
        descendants: of the largest Python process below it. Others are ignored, since a child
            between fork and exec still shows its parent's memory.
    """

    def __init__(self, process_id: int) -> None:
        self.own = 0
        self.descendants = 0
        self._process_id = process_id

    @contextmanager
    def watched(self) -> Iterator[Residence]:
        """Sample until the end of the block."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watcher.start()
        try:
            yield self
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(LOOK_S):
            self.own = max(self.own, _resident(self._process_id))
            for process_id in _descendants(self._process_id):
                if _is_python(process_id):
                    self.descendants = max(self.descendants, _resident(process_id))


def _descendants(process_id: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{process_id}/task").iterdir())
    except OSError:
        return  # it has exited
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _is_python(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().startswith("python")
    except OSError:
        return False


def _resident(process_id: int) -> int:
    try:
        return rss(process_id)
    except OSError:
        return 0


# --- Counters of bookies ----------------------------------------------------------------


TIMEOUT_S = 10.0


async def counter_total(bookies: Sequence[Bookie], name: str) -> int:
    """Return the counter quire_bookie_<name>_total, added up over the bookies.

    Raises:
        OSError: a page cannot be fetched.
    """
    return sum([await trio.to_thread.run_sync(_scrape, bookie, name) for bookie in bookies])


def _scrape(bookie: Bookie, name: str) -> int:
    url = f"http://127.0.0.1:{bookie.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    found = re.search(rf"^quire_bookie_{name}_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0
