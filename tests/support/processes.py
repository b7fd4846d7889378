"""The two commands as processes, for tests that want the real thing.

``cluster`` runs a standalone cluster for a whole module of tests; a test that
kills bookies has one of its own (ledger_client.commands.sandbox).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from command_server import command_server
from never_twice import check_end

DEADLINE_S = 240  # generous: other tests run beside, and only a failure waits so long


@contextmanager
def cluster(folder: Path, count: int) -> Iterator[str]:
    """Run *count* bookies in *folder*; yield the URL of the cluster."""
    command = [sys.executable, "-P", "-m", "bookie", "standalone", "--json", "--port", "0"]
    command += ["--data", str(folder), "--bookies", str(count)]
    with (folder / "standalone.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    with process.stdout:
        try:
            line = process.stdout.readline()
            assert line, (folder / "standalone.log").read_text()
            yield json.loads(line)["ready"]
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(DEADLINE_S)
            check_end(code, (folder / "standalone.log").read_text(errors="replace"))


WAITS = ("waiting for the cluster", "quire: still ", "quire: waiting for ")


def last_word(stderr: bytes) -> str:
    """Return the only line of a command's stderr, apart from those that explain a long wait."""
    *waits, line = stderr.splitlines(keepends=True)
    assert is_silent(b"".join(waits)), stderr
    return line.decode().rstrip("\n")


def is_silent(stderr: bytes) -> bool:
    """Return True if a command's stderr has nothing but lines that explain a long wait."""
    return all(line.startswith(WAITS) for line in stderr.decode().splitlines())


def quire(
    *words: str | float | Path,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``quire`` with these words to its end, in a process of its own.

    Raises:
        NeverTwice: it crashed.
    """
    done = command_server().run(
        [*map(str, words)],
        stdin=stdin,
        environment={**os.environ, **(environment or {})},
        timeout_s=DEADLINE_S,
    )
    check_end(done.returncode, done.stderr.decode(errors="replace"))
    return done
