"""One warm message enters few files: a stranger can follow it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent / "support/path_of_one_message.py"
FILES_MAX = {
    # A few more than docs/design.md says: on a slow or busy host a look for progress, for what is
    # new in the metadata, or an announcement of what is confirmed falls into every try.
    "producer.send": 24,
    "ledger.append": 10,
    "ledger.read": 16,
    "a topic's three messages, opening included": 55,
}


@pytest.mark.facts  # it starts a bookie; but each new file changes the number, and it is quick
def test_one_message_enters_few_files() -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(TOOL)], capture_output=True, text=True, timeout=120, check=True
    )
    heads = [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]
    files = {name: int(rest.split()[0]) for name, rest in (head.split(": ") for head in heads)}
    assert files.keys() == FILES_MAX.keys()
    assert {name: count for name, count in files.items() if count > FILES_MAX[name]} == {}
