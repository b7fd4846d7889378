"""How long a bookie takes to serve: empty, and with a journal to replay.

The times are printed and not asserted (`pytest -m slow -s tests/bench`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from never_twice import never_twice
from sandboxes import open_sandbox

import ledger_client
from ledger_client.commands.bench import usage
from ledger_client.commands.sandbox import Sandbox

# Nothing is flushed, so that all of the journal has to be replayed.
SETTINGS = ["memtable_size=1GiB", "checkpoint_interval_s=3600"]
PAYLOADS = [bytes(1000)] * 1000
BATCHES = 100
MIB = 1 << 20


async def timed_restart(sandbox: Sandbox) -> float:
    """Kill the one bookie, drop the page cache, and start it again; return the seconds."""
    (bookie,) = sandbox.bookies
    command = sandbox.kill(bookie)
    usage.drop_page_cache(sandbox.folder)
    started = time.perf_counter()
    await sandbox.restart(bookie, command)
    return time.perf_counter() - started


def time_to_read(folder: Path) -> float:
    """Return the seconds that reading the journals takes, from the disk."""
    usage.drop_page_cache(folder)
    started = time.perf_counter()
    for path in folder.rglob("*.journal"):
        with path.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass
    return time.perf_counter() - started


@pytest.mark.slow
@pytest.mark.real_processes
async def test_a_bookie_serves_all_of_a_journal_that_it_replayed(tmp_path: Path) -> None:
    async with (
        open_sandbox(1, parent=tmp_path, settings=SETTINGS) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
    ):
        empty_s = await timed_restart(sandbox)
        async with client.ledgers.create(1, 1, 1) as ledger:
            for _ in range(BATCHES):
                await ledger.append_many(PAYLOADS)
        reading_s = time_to_read(sandbox.folder)
        replay_s = await timed_restart(sandbox) - empty_s
        with never_twice():
            async with client.ledgers.open(ledger.id) as reader:
                assert reader.last_confirmed == BATCHES * len(PAYLOADS) - 1
    sys.stdout.write(
        f"\nan empty bookie serves after {empty_s:.2f} s; replaying a journal takes "
        f"{replay_s / reading_s:.2f} x the time of reading it\n"
    )
