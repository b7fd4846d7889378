"""A temporary cluster for ``quire demo`` and ``quire bench``: bookies on this machine.

``python -m bookie standalone`` runs as a child in its own session, so that Ctrl-C in the
terminal reaches only this process. However the block ends, no process is left, and no
folder unless it is to be kept.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from metadata.outcome import CommandFailed

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class Bookie(msgspec.Struct, frozen=True):
    """One bookie process, as it announced itself once it was serving."""

    bookie_id: str
    address: str
    process_id: int
    metrics_port: int


class _Ready(msgspec.Struct, frozen=True):
    """The output of `bookie standalone --json` once all bookies are serving."""

    ready: str
    bookies: list[Bookie]


class Sandbox:
    """The bookies in *folder*. Use open_sandbox() to create one.

    Args:
        folder: holds the whole cluster.
        count: number of bookies.
        settings: settings for each bookie, in the form KEY=VALUE.

    Attributes:
        cluster: the URL for clients.
        bookies: the processes, including restarted ones.
    """

    def __init__(self, folder: Path, count: int, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.cluster = ""
        self.bookies: list[Bookie] = []
        # -P prefers the installed quire to sources in the current folder.
        self._command = [sys.executable, "-P", "-m", "bookie", "standalone"]
        self._command += ["--json", "--no-restart", "--data", str(folder), "--bookies", str(count)]
        self._command += ["--port", "0", "--metrics-port", "-1", "--stop-with-parent"]
        self._command += [f"--set={setting}" for setting in settings]
        self._log = folder / "standalone.log"
        self._standalone: trio.Process | None = None
        self._restarted: list[trio.Process] = []

    async def start(self) -> None:
        """Start all bookies on the folder's data, and wait until they serve.

        Raises:
            CommandFailed: they did not start.
        """
        self._standalone = await self._open(self._command)
        ready = msgspec.json.decode(await self._first_line(self._standalone), type=_Ready)
        self.cluster, self.bookies = ready.ready, ready.bookies

    def kill(self, bookie: Bookie) -> list[str]:
        """Send SIGKILL to a bookie, and return the command line that it was started with."""
        words = Path(f"/proc/{bookie.process_id}/cmdline").read_bytes().split(b"\0")[:-1]
        os.kill(bookie.process_id, signal.SIGKILL)
        return [os.fsdecode(word) for word in words]

    async def kill_all(self) -> None:
        """Send SIGKILL to every process, and wait until all have exited."""
        for bookie in self.bookies:
            _signal(bookie.process_id, signal.SIGKILL)
        await self._end(signal.SIGKILL)

    async def restart(self, bookie: Bookie, command: Sequence[str]) -> Bookie:
        """Start a bookie again with *command*, and wait until it serves.

        Raises:
            CommandFailed: it did not start.
        """
        process = await self._open(command)
        self._restarted.append(process)
        restarted = msgspec.json.decode(await self._first_line(process), type=Bookie)
        self.bookies = [restarted if old == bookie else old for old in self.bookies]
        return restarted

    async def ended(self) -> None:
        """Wait until all bookies have exited."""
        assert self._standalone is not None
        await self._standalone.wait()

    async def stop(self) -> None:
        """Stop all bookies gracefully; those that take too long are killed."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        processes = [*self._restarted, *([self._standalone] if self._standalone else [])]
        for process in processes:
            process.send_signal(number)
        with trio.move_on_after(STOP_TIMEOUT_S):
            for process in processes:
                await process.wait()
        for process in processes:
            process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
        self._standalone = None
        self._restarted.clear()

    async def _open(self, command: Sequence[str]) -> trio.Process:
        with self._log.open("ab") as log:
            return await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,  # its end of file stops a bookie, even if we are killed
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    async def _first_line(self, process: trio.Process) -> bytes:
        assert process.stdout is not None
        line = b""
        with trio.move_on_after(START_TIMEOUT_S):
            while not line.endswith(b"\n"):
                data = await process.stdout.receive_some()
                if not data:
                    raise CommandFailed(f"the bookies did not start: {self._last_words()}")
                line += data
            return line
        raise CommandFailed(f"the bookies did not start within {START_TIMEOUT_S:g} s")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "no reason was given")


@asynccontextmanager
async def open_sandbox(
    count: int,
    *,
    parent: Path | None = None,
    keep: bool = False,
    settings: Sequence[str] = (),
) -> AsyncGenerator[Sandbox]:
    """Start *count* bookies in a new folder below *parent*, by default the temporary folder.

    It is removed at the end, or with *keep* only if the bookies do not start.

    Raises:
        CommandFailed: they did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="quire-", dir=parent))
    sandbox = Sandbox(folder, count, settings)
    is_kept = False
    try:
        await sandbox.start()
        is_kept = keep
        yield sandbox
    finally:
        with trio.CancelScope(shield=True):
            await sandbox.stop()
            if not is_kept:
                await trio.to_thread.run_sync(shutil.rmtree, folder)


def _signal(process_id: int, number: signal.Signals) -> None:
    try:
        os.kill(process_id, number)
    except ProcessLookupError:
        return  # it has exited already
