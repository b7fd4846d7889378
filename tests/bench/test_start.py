"""How long a bookie takes to serve: empty, and with a journal to replay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ledger_client
from ledger_client.commands.bench import usage
from ledger_client.commands.sandbox import Sandbox, open_sandbox

# Nothing is flushed, so that all of the journal has to be replayed.
SETTINGS = ["memtable_size=1GiB", "checkpoint_interval_s=3600"]
PAYLOADS = [bytes(1000)] * 1000
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
async def test_replaying_a_journal_takes_about_as_long_as_reading_it(tmp_path: Path) -> None:
    async with (
        open_sandbox(1, parent=tmp_path, settings=SETTINGS) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
    ):
        empty_s = await timed_restart(sandbox)
        async with client.create_ledger(1, 1, 1) as ledger:
            for _ in range(500):
                await ledger.append_many(PAYLOADS)
        reading_s = time_to_read(sandbox.folder)
        replay_s = await timed_restart(sandbox) - empty_s
        async with client.open_ledger(ledger.id) as reader:
            assert reader.last_confirmed == 500 * len(PAYLOADS) - 1
    # The rest is for other processes of the machine, which share two cores with it.
    assert replay_s < 2 * reading_s + 1.0
