"""Processes that end with all that they started: at a deadline, or when the search ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HUNG = 124
"""The exit code of a process that met its deadline, as timeout(1) has it."""
_RUN = "QUIRE_SEARCH_RUN"
_GONE_S_MAX = 30.0
"""One that hangs in the kernel is not waited for any longer."""


class Stopped(Exception):
    """The search is over: nothing more is started, and what ran was killed."""


class Ended(NamedTuple):
    """How a process ended: its exit code, or HUNG, and all that it printed."""

    code: int
    said: str


class Processes:
    """Runs processes, from any thread, until it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # stop() may come in between, from a handler of a signal
        self._under_way: set[str] = set()
        self._is_stopped = False

    def run(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        seconds: float,
        environment: Mapping[str, str] = os.environ,
    ) -> Ended:
        """Run *command* to its end, for *seconds* at most.

        Everything that it started is gone afterwards, whatever session it is in.

        Raises:
            Stopped: before or meanwhile.
        """
        run = uuid.uuid4().hex
        process = self._start(command, folder, {**environment, _RUN: run}, run)
        try:
            said, _ = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            _kill_all_of(run)
            said, _ = process.communicate()
            code = HUNG
        finally:
            process.kill()
            _kill_all_of(run)
            process.wait()
            with self._lock:
                self._under_way.discard(run)
        if self._is_stopped:
            raise Stopped
        return Ended(code, said)

    def _start(
        self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], run: str
    ) -> subprocess.Popen[str]:
        with self._lock:  # or it would begin behind the back of stop()
            if self._is_stopped:
                raise Stopped
            self._under_way.add(run)
            return subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the search, which kills all of them
            )

    def stop(self) -> None:
        """Kill all that runs, and start nothing more."""
        with self._lock:
            self._is_stopped = True
            for run in self._under_way:
                _kill_all_of(run)


def _kill_all_of(run: str) -> None:
    """End every process whose environment says that it belongs to *run*, and wait for that.

    A signal takes time, and one that was just being started is only seen by the next look.
    """
    end = time.monotonic() + _GONE_S_MAX
    while _signal_all_of(run) and time.monotonic() < end:
        time.sleep(0.01)


def _signal_all_of(run: str) -> int:
    """Send SIGKILL to every process of *run* that is not dead yet; return how many there were."""
    word, found = f"{_RUN}={run}".encode(), 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        # Gone meanwhile, or another user's.
        with contextlib.suppress(OSError):
            if word in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found
