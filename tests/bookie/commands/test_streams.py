"""Commands whose output was closed by whoever started them, or goes to a full disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from metadata.outcome import Exit
from metadata.store import Put
from metadata.urls import open_store


def run(words: Sequence[str], streams: str, tmp_path: Path) -> tuple[int, list[str]]:
    """Run Python with its streams as a shell makes them; return exit code and errors."""
    errors = tmp_path / "errors"
    script = f'errors="$1"; shift; exec "$0" "$@" {streams} 2>"$errors"'
    command = ["sh", "-c", script, sys.executable, str(errors), *words]
    return subprocess.run(command, check=False).returncode, errors.read_text().splitlines()


CLOSED = "standard output is closed"
STREAMS = [(">&-", CLOSED), ("<&- >&-", CLOSED), (">/dev/full", "No space left on device")]


@pytest.mark.parametrize("words", ["bookie config", "bookie --help", "ledger_client --version"])
@pytest.mark.parametrize(("streams", "reason"), STREAMS)
def test_a_command_that_cannot_print_fails_in_one_line(
    words: str, streams: str, reason: str, tmp_path: Path
) -> None:
    name = "bookie" if words.startswith("bookie") else "quire"
    ended = run(["-m", *words.split()], streams, tmp_path)
    assert ended == (Exit.FAILED, [f"{name}: {reason}"])


READ = """
import sys, click, trio
from ledger_client.commands.outcome import conclude, finish
from ledger_client.commands.streams import put
from ledger_client.commands.tables import Output

async def read():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, b"message\\n")

@click.group()
def quire(): pass
quire.command("read")(lambda: trio.run(finish, read))
quire.command("list")(lambda: Output().print("table"))
quire.command("compact")(lambda: None)
sys.exit(conclude(quire, sys.argv[1:]))
"""


@pytest.mark.parametrize(("streams", "reason"), STREAMS)
def test_messages_and_tables_that_cannot_be_written_fail_the_command(
    streams: str, reason: str, tmp_path: Path
) -> None:
    """As `quire read` writes messages: past Python's buffers, from a nursery."""
    for name in ("read", "list"):
        assert run(["-c", READ, name], streams, tmp_path) == (Exit.FAILED, [f"quire: {reason}"])
    assert run(["-c", READ, "compact"], streams, tmp_path) == (Exit.DONE, [])


DAEMON = """
import sys, click
from bookie.commands.output import announce
from bookie.commands.outcome import conclude

@click.command()
def serve():
    announce("ready")
    announce("x" * 100_000)

sys.exit(conclude(serve, []))
"""


@pytest.mark.parametrize("streams", [">&-", "<&- >&-", ">/dev/full"])
def test_a_daemon_that_cannot_announce_itself_goes_on(streams: str, tmp_path: Path) -> None:
    assert run(["-c", DAEMON], streams, tmp_path) == (Exit.DONE, [])


def test_an_export_that_cannot_be_written_is_not_reported_as_done(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        async with open_store(url, create=True) as store:
            await store.transact([Put("a", b"b")])

    trio.run(fill)
    words = ["-m", "bookie", "metadata", "export", "--metadata", url, "-"]
    ended = run(words, ">/dev/full", tmp_path)
    assert ended == (Exit.FAILED, ["bookie: No space left on device"])
