"""``bookie run`` and ``bookie standalone`` as processes that end with the test."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
from daemon_server import BOOKIE, can_fork, daemon_server
from never_twice import check_end

DEADLINE_S = 120.0  # generous: other tests run beside, and only a failure waits so long
POLL_S = 0.02
T = TypeVar("T")


class Daemon:
    """One such process. *words* follow ``python -m bookie``, or another *program* of Python's."""

    def __init__(
        self,
        *words: str | Path | int,
        log: Path,
        program: Sequence[str] = BOOKIE,
        shell: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        forks: bool = False,
    ) -> None:
        """Start it.

        Args:
            words: of its command line.
            log: the file that its standard error is appended to.
            program: what Python runs.
            shell: runs before, in the same process: "ulimit -n 512".
            environment: its variables; by default ours.
            prefix: words that start a command, in the same process: hosts.Host.prefix.
            forks: let the server of daemons fork it, if it can: it need not import anything.
        """
        self._log = log
        if forks and not shell and not prefix and can_fork(program, environment):
            with log.open("ab") as errors:
                self.process: subprocess.Popen[bytes] = daemon_server().start(
                    program, [*map(str, words)], stderr=errors, environment=environment
                )
            return
        command = [sys.executable, *program, *map(str, words)]
        if shell:
            command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
        command = [*prefix, *command]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Raises NeverTwice: it had crashed, or a sanitizer spoke."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        code = self.process.poll()
        if code is None:
            self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(DEADLINE_S)
        check_end(code, self.log if self._log.exists() else "")

    def line(self) -> str:
        """The next line that it prints; "" once it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def ready(self, kind: type[T]) -> T:
        """The JSON that it prints once it serves."""
        line = self.line()
        assert line, self.log
        return msgspec.json.decode(line, type=kind)

    @property
    def log(self) -> str:
        """Everything that it logged so far."""
        return self._log.read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def wait_for_log(self, words: str, count: int = 1) -> None:
        """Return once it has logged *words* so often."""
        deadline = time.monotonic() + DEADLINE_S
        while self.log.count(words) < count:
            assert time.monotonic() < deadline, self.log
            time.sleep(POLL_S)


def wait_until_gone(process_ids: list[int]) -> None:
    """Return once none of these processes is there, zombies aside."""
    deadline = time.monotonic() + DEADLINE_S
    while any(is_running(process_id) for process_id in process_ids):
        assert time.monotonic() < deadline, process_ids
        time.sleep(POLL_S)


def is_running(process_id: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# Below the ports that the system gives to connections, and those that a cluster of
# ``bookie standalone`` chooses by itself.
_PORTS = range(10_000, 16_384)
_PORTS_OF_A_PROCESS = 200


class _Ports:
    """Ports that this process alone may use, among all processes that run tests.

    They are its own for as long as it holds a name, which the system takes back when the
    process ends. None is given again soon, so each stays free while who uses it is down.
    """

    def __init__(self) -> None:
        for first in range(_PORTS.start, _PORTS.stop - _PORTS_OF_A_PROCESS, _PORTS_OF_A_PROCESS):
            self._holder = socket.socket(socket.AF_UNIX)
            try:
                self._holder.bind(f"\0tests of quire, ports from {first}")
            except OSError:
                self._holder.close()
            else:
                self._all = range(first, first + _PORTS_OF_A_PROCESS)
                self._next = first
                return
        raise AssertionError("too many processes that run tests")

    def take(self, count: int) -> int:
        if self._next + count > self._all.stop:
            self._next = self._all.start
        self._next += count
        return self._next - count


_ports = cache(_Ports)


def free_ports(count: int) -> int:
    """The first of *count* ports that are free, one after the other."""
    for _ in range(_PORTS_OF_A_PROCESS):
        first = _ports().take(count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
