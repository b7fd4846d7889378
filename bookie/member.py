"""One bookie of a standalone cluster, over all its processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio


class Running(msgspec.Struct, frozen=True):
    """One bookie that serves, as its ready line describes it."""

    bookie_id: str
    address: str
    process_id: int
    metrics_port: int
    folder: str


class Member:
    """Starts ``python -m bookie run``, and reads its output.

    Args:
        bookie_id: its name.
        folder: its data folder.
        options: further arguments for the command line.
        log: called with each line of its log.

    Attributes:
        last_words: the last line that it logged.
        running: its last ready line; None before the first.
    """

    def __init__(
        self, bookie_id: str, folder: Path, options: Sequence[str], log: Callable[[str], None]
    ) -> None:
        self.bookie_id = bookie_id
        self.last_words = ""
        self.running: Running | None = None
        self._folder = folder
        self._log = log
        self._process: trio.Process | None = None
        # -P: the installed package, even if the current folder holds quire's sources.
        self._command = [sys.executable, "-P", "-m", "bookie", "run"]
        self._command += ["--stop-with-parent", "--json"]
        self._command += ["--bookie-id", bookie_id, "--data", str(folder), *options]

    async def run(self, stopping: trio.Event, ready: Callable[[], None]) -> str:
        """Run one process to its end; *ready* is called once it serves.

        Returns:
            A description of its end.
        """
        process = await trio.lowlevel.open_process(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        if stopping.is_set():  # requested while the process was being created
            process.terminate()
        async with process.stdin, process.stdout, process.stderr, trio.open_nursery() as nursery:
            nursery.start_soon(self._forward_log, process.stderr)
            await self._await_ready(process.stdout, process.pid, ready)
            await process.wait()
        self._process = None
        return how_it_ended(process.returncode)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            self._process.send_signal(number)

    async def _await_ready(
        self, stream: trio.abc.ReceiveStream, process_id: int, ready: Callable[[], None]
    ) -> None:
        text = b""
        while not text.endswith(b"\n"):
            data = await stream.receive_some()
            if not data:
                return
            text += data
        ready_line = msgspec.json.decode(text, type=dict[str, str | int])
        self.running = Running(
            bookie_id=self.bookie_id,
            address=str(ready_line["address"]),
            process_id=process_id,
            metrics_port=int(ready_line["metrics_port"]),
            folder=str(self._folder),
        )
        ready()

    async def _forward_log(self, stream: trio.abc.ReceiveStream) -> None:
        rest = b""
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._say(line.decode(errors="replace"))
        if rest:
            self._say(rest.decode(errors="replace"))

    def _say(self, line: str) -> None:
        self.last_words = line.removeprefix("bookie: ")
        self._log(f"{self.bookie_id} | {line}")


def how_it_ended(code: int | None) -> str:
    """Describe an exit code of a process."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
