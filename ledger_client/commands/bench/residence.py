"""The memory that a process and those it started have, looked at now and then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger_client.commands.bench import usage

LOOK_S = 0.05


class Residence:
    """The most bytes that were resident, of one process by itself.

    Attributes:
        own: of the process.
        descendants: of any one Python that it started, or that those started. (Between fork
            and exec a child is its parent's image: so others do not count.)
    """

    def __init__(self, process_id: int) -> None:
        self.own = 0
        self.descendants = 0
        self._process_id = process_id

    @contextmanager
    def watched(self) -> Iterator[Residence]:
        """Look, until the end of the block."""
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
        return  # it ended
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
        return usage.rss(process_id)
    except OSError:
        return 0
