"""Bookies of one cluster as processes, to be killed, paused and started again.

Each has a name, a port and folders of its own for ever; their metadata is one SQLite
file, unless another store is named, which no kill of theirs takes away.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

from daemons import DEADLINE_S, Daemon, free_ports

from bookie.commands.run import BookieStarted

# Small halves and files, so that kills fall into flushes, rolls and checkpoints too; a
# lost bookie is noticed, and repair begins, within seconds.
SETTINGS = (
    "memtable_size=10MiB",
    "journal_size_max=16MiB",
    "checkpoint_interval_s=1",
    "disk_reserve=0",
    "lease_ttl_s=2",
    "lost_after_s=2",
    "open_grace_s=4",
)

STOPPED = os.WSTOPPED | os.WEXITED | os.WNOWAIT
LOCKED_S = 2.0
"""No change takes so long, unless a process is stopped inside it."""


class Fleet:
    """*count* bookies in *folder*: bookie-0, bookie-1 and so on. Numbers name them here.

    Attributes:
        metadata: the URL of the metadata itself.
        cluster: the URL that names all bookies.
        environment: the variables of bookies that are started from now on; None: ours.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        settings: Sequence[str] = SETTINGS,
        environment: Mapping[str, str] | None = None,
        *,
        metadata: str = "",
    ) -> None:
        self.environment = environment
        self._folder = folder
        self._first_port = free_ports(count)
        self._settings = settings
        self._daemons: dict[int, Daemon] = {}
        self._announced: set[int] = set()
        self.numbers = range(count)
        self.metadata = metadata or f"sqlite://{folder}/metadata.db"
        self.cluster = "bookie://" + ",".join(map(self.address, self.numbers))

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        with ExitStack() as each:
            for daemon in self._daemons.values():
                each.push(daemon)

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.port(number)}"

    def port(self, number: int) -> int:
        return self._first_port + number

    def name(self, number: int) -> str:
        return f"bookie-{number}"

    def number(self, name: str) -> int:
        return int(name.removeprefix("bookie-"))

    def log(self, number: int) -> str:
        """Everything that the bookie ever logged."""
        return (self._folder / f"{self.name(number)}.log").read_text(errors="replace")

    def start(self, number: int) -> None:
        """Start a bookie that does not run, without waiting until it serves."""
        words = ["run", "--json", "--port", str(self.port(number)), *self.identity(number)]
        words += [f"--set={setting}" for setting in self._settings]
        log = self._folder / f"{self.name(number)}.log"
        self._daemons[number] = Daemon(*words, log=log, environment=self.environment, forks=True)
        self._announced.discard(number)

    def empty(self, number: int) -> None:
        """Take the folders of a killed bookie away, and give it empty ones.

        It is registered for as long as its lease lasts, and cannot be replaced before.
        """
        shutil.rmtree(self._folder / self.name(number))
        command = [sys.executable, "-m", "bookie", "replace", *self.identity(number)]
        deadline = time.monotonic() + DEADLINE_S
        while (told := subprocess.run(command, capture_output=True, check=False)).returncode:
            assert time.monotonic() < deadline, told.stderr

    def identity(self, number: int) -> list[str]:
        """The bookie's name, folder and metadata, as options."""
        name = self.name(number)
        where = ["--data", str(self._folder / name), "--metadata", self.metadata]
        return ["--bookie-id", name, *where]

    def wait_until_served(self, number: int) -> None:
        """Return once the bookie, which was started, serves."""
        if number not in self._announced:
            self._daemons[number].ready(BookieStarted)
            self._announced.add(number)

    def start_all(self) -> None:
        """Start every bookie that does not run, and return once all serve."""
        for number in self.numbers:
            if not self.runs(number):
                self.start(number)
        for number in self.numbers:
            self.wait_until_served(number)

    def runs(self, number: int) -> bool:
        """True if the process exists, paused or not."""
        daemon = self._daemons.get(number)
        return daemon is not None and daemon.process.poll() is None

    def kill(self, number: int) -> None:
        """End the bookie with SIGKILL."""
        self._daemons[number].__exit__()

    def pause(self, number: int) -> None:
        """Stop the bookie as a whole, with SIGSTOP, but not inside a change of SQLite.

        There it would hold the file's lock, and nobody could change anything. What has come up
        meanwhile it does change by change, so each attempt gives it twice as long.
        """
        process = self._daemons[number].process
        process.send_signal(signal.SIGSTOP)
        run_s = 0.01
        while True:
            if os.waitid(os.P_PID, process.pid, STOPPED) and not self._is_locked():
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(run_s)
            process.send_signal(signal.SIGSTOP)
            run_s = min(2 * run_s, 1.0)

    def _is_locked(self) -> bool:
        """True if no process can change the metadata."""
        if not self.metadata.startswith("sqlite://"):
            return False
        path = self.metadata.removeprefix("sqlite://")
        with closing(sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def resume(self, number: int) -> None:
        """Resume a paused bookie; harmless if it runs."""
        self._daemons[number].process.send_signal(signal.SIGCONT)
