"""Processes of ``quire`` that begin where its imports have ended.

Most commands of a test take less time than importing them. A server imports them once and forks
for each: a process of its own, with its own streams, variables and exit code, which ends as any
program of Python ends.

    test ── words, variables, pipes ──► server ── fork ──► keeper ── fork ──► quire
      ◄───── process id, then exit code ───────────────────────┘ ◄── waits ─────┘

The server ends when the process that started it has ended.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import click
import msgspec

import ledger_client.__main__

PIPES = 4
"""Standard input, output and error of the command, and where its end is reported."""


class Command(msgspec.Struct):
    """What a process shall run."""

    words: list[str]
    environment: dict[str, str]
    folder: str


class CommandServer:
    """The way to a server of this process; any of its threads may use it."""

    def __init__(self) -> None:
        self._way, other = socket.socketpair()
        with other:
            fd = other.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL
            )
        atexit.register(self.close)

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``quire`` with these words to its end, or for *timeout_s* at most.

        Raises:
            subprocess.TimeoutExpired: it was killed.
        """
        command = Command([*words], dict(environment), str(Path.cwd()))
        source, feed = os.pipe()
        drains, sinks = zip(*(os.pipe() for _ in range(3)), strict=True)
        self._send(command, source, *sinks)
        with ThreadPoolExecutor(PIPES) as threads, os.fdopen(drains[2]) as ending:
            process_id = int(ending.readline())
            threads.submit(_write, feed, stdin)
            out, err = (threads.submit(_read, fd) for fd in drains[:2])
            code = threads.submit(ending.readline)
            try:
                return subprocess.CompletedProcess(
                    words, int(code.result(timeout_s)), out.result(), err.result()
                )
            except TimeoutError:
                os.kill(process_id, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout_s) from None

    def _send(self, command: Command, *pipes: int) -> None:
        content = os.memfd_create("command")
        try:
            os.write(content, msgspec.json.encode(command))
            os.lseek(content, 0, os.SEEK_SET)
            socket.send_fds(self._way, [b"x"], [content, *pipes])
        finally:
            for fd in (content, *pipes):
                os.close(fd)

    def close(self) -> None:
        """End the server; commands that run go on."""
        self._way.close()
        self._process.wait()


@cache
def command_server() -> CommandServer:
    """Return the server of this process, which starts at the first call."""
    return CommandServer()


def _write(fd: int, content: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(fd, "wb") as pipe:
        pipe.write(content)


def _read(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as pipe:
        return pipe.read()


# --- The server ------------------------------------------------------------------------------


def serve(way: socket.socket) -> Command:
    """Fork for each command; return, in the process that shall run it, the command."""
    while True:
        word, fds, *_ = socket.recv_fds(way, 1, 1 + PIPES, socket.MSG_CMSG_CLOEXEC)
        if not word:
            _reap()
            sys.exit()
        if os.fork() == 0:
            way.close()
            with os.fdopen(fds[0], "rb") as content:
                command = msgspec.json.decode(content.read(), type=Command)
            _keep(fds[1:])
            return command
        for fd in fds:
            os.close(fd)
        _reap()


def _reap() -> None:
    """Let keepers go that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(fds: list[int]) -> None:
    """Return in a process that has these streams; another one waits for it and reports its end."""
    process_id = os.fork()
    if process_id == 0:
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
    for fd in fds[:3]:
        os.close(fd)
    if process_id == 0:
        os.close(fds[3])
        return
    os.write(fds[3], b"%d\n" % process_id)
    _, status = os.waitpid(process_id, 0)
    os.write(fds[3], b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def load(command: click.Command | None) -> None:
    """Import all that the command, or a command of the group, needs."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            load(command.get_command(context, name))


def main() -> None:
    """Import all commands, serve, and become each command that comes."""
    load(ledger_client.__main__.quire)
    gc.freeze()
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.folder)
    sys.argv = [ledger_client.__main__.__file__, *command.words]
    ledger_client.__main__.main()


if __name__ == "__main__":
    main()
