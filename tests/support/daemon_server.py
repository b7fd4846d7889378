"""Processes of ``bookie``, and of workers of tests, that begin where their imports have ended.

A bookie imports for longer than it takes to start, and tests start and kill hundreds. A server
imports once and forks for each. What it forks is a child of the test all the same, with streams,
a session and an exit code of its own; it is killed, paused and waited for like any other.

    test ── words, variables, pipes ──► server ── fork ──► keeper ── fork ──► bookie
      ◄── process id ── the keeper ends, and the bookie is a child of the test ──┘

The server ends when the process that started it has ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import msgspec
import trio

import bookie.__main__
import bookie.command_line
import ledger_client.blocking

PR_SET_CHILD_SUBREAPER = 36
STREAMS = 3
BOOKIE = ("-m", "bookie")
ENVIRONMENT = dict(os.environ)
"""Before any test changed it; the server has it, whenever it is started."""


class Start(msgspec.Struct):
    """What a process shall run: the module bookie, or a file. *folder* is where."""

    program: list[str]
    words: list[str]
    environment: dict[str, str]
    folder: str
    leads_session: bool


class Forked(subprocess.Popen[bytes]):
    """A child of this process that the server forked."""

    def __init__(
        self,
        process_id: int,
        args: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
    ) -> None:
        self.args = args
        self.pid = process_id
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = None
        self.returncode = None
        self.text_mode = self.encoding = self.errors = None
        self._child_created = True
        self._communication_started = False
        self._input = None
        self._sigint_wait_secs = 0.25
        self._waitpid_lock = threading.Lock()


def can_fork(program: Sequence[str], environment: Mapping[str, str] | None) -> bool:
    """Whether the server may fork *program*: a bookie or a file, in a Python like the server's."""
    is_known = tuple(program) == BOOKIE or program[0].endswith(".py")
    wanted = os.environ if environment is None else environment
    words = {*ENVIRONMENT, *wanted}
    decided = [word for word in words if word.startswith(("LD_", "PYTHON", "ASAN", "UBSAN"))]
    return is_known and all(wanted.get(word) == ENVIRONMENT.get(word) for word in decided)


class DaemonServer:
    """The way to a server of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._way, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(
        self,
        program: Sequence[str],
        words: Sequence[str],
        *,
        stderr: IO[bytes],
        has_stdout: bool = True,
        environment: Mapping[str, str] | None = None,
        leads_session: bool = True,
    ) -> Forked:
        """Start a process with pipes as standard input and, if asked, output.

        Raises:
            OSError: the server is gone.
        """
        source, feed = os.pipe()
        drain, sink = os.pipe() if has_stdout else (-1, os.dup(1))
        report, told = os.pipe()
        start = Start(
            [*program],
            [*words],
            dict(os.environ if environment is None else environment),
            str(Path.cwd()),
            leads_session,
        )
        with self._lock:
            _adopt(True)
            try:
                self._send(start, source, sink, os.dup(stderr.fileno()), told)
                with os.fdopen(report) as said:
                    process_id = int(said.readline() or 0)
            finally:
                _adopt(False)
        if not process_id:
            raise OSError("the server of daemons is gone")
        stdout = os.fdopen(drain, "rb") if has_stdout else None
        args = [sys.executable, *program, *words]
        return Forked(process_id, args, os.fdopen(feed, "wb", buffering=0), stdout)

    def _send(self, start: Start, *fds: int) -> None:
        content = os.memfd_create("start")
        try:
            os.write(content, msgspec.json.encode(start))
            os.lseek(content, 0, os.SEEK_SET)
            socket.send_fds(self._way, [b"x"], [content, *fds])
        finally:
            for fd in (content, *fds):
                os.close(fd)

    def close(self) -> None:
        """End the server; what it started goes on."""
        self._way.close()
        self._process.wait()


def _adopt(is_on: bool) -> None:
    """Let children whose parents end below this process become its own."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0) == 0


@cache
def daemon_server() -> DaemonServer:
    """Return the server of this process, which starts at the first call."""
    return DaemonServer()


def start_worker(
    program: str, words: Sequence[str], log: IO[bytes], *, prefix: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a file of Python's that logs to *log* and ends with its standard input.

    *prefix*: words that start a command, in the same process; then nothing is forked.
    """
    if not prefix:
        return daemon_server().start(
            [program], words, stderr=log, has_stdout=False, leads_session=False
        )
    command = [*prefix, sys.executable, program, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)


# --- The server ------------------------------------------------------------------------------


def serve(way: socket.socket) -> Start:
    """Fork for each start; return, in the process that shall run it, what it is."""
    while True:
        word, fds, *_ = socket.recv_fds(way, 1, STREAMS + 2, socket.MSG_CMSG_CLOEXEC)
        if not word:
            sys.exit()
        keeper = os.fork()
        if keeper == 0:
            way.close()
            return _become_child(fds)
        for fd in fds:
            os.close(fd)
        os.waitpid(keeper, 0)


def _become_child(fds: list[int]) -> Start:
    """Return in a child of the process that asked."""
    keeper = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == keeper:
        time.sleep(0.0005)
    with os.fdopen(fds[0], "rb") as content:
        start = msgspec.json.decode(content.read(), type=Start)
    if start.leads_session:
        os.setsid()
    for number, fd in enumerate(fds[1 : 1 + STREAMS]):
        os.dup2(fd, number)
        os.close(fd)
    with os.fdopen(fds[-1], "w") as told:
        told.write(f"{os.getpid()}\n")
    return start


def become(start: Start) -> None:
    """Run the program, as Python would that had just begun."""
    trio._core._run._r.seed()  # as a new process has it; random does so by itself
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    if tuple(start.program) == BOOKIE:
        sys.argv = [bookie.__main__.__file__, *start.words]
        bookie.command_line.main()
        return
    (path,) = start.program
    sys.argv = [path, *start.words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def main() -> None:
    """Import what bookies and clients need, serve, and become each program that comes."""
    assert ledger_client.blocking.__name__ in sys.modules
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
