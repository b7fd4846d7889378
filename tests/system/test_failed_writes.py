"""A write or sync that fails ends the bookie; what it had acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import ledger_client
from ledger_client import Options
from ledger_client.errors import LedgerError

RUN = "import sys; from bookie.command_line import main; sys.exit(main())"
FAIL = "from native.faults import plan_fault; plan_fault({site!r}, {nth}); "
PAYLOADS = [bytes([number]) * 20_000 for number in range(50)]
WRITES = 40  # three turns of the memtable below
IMPATIENT = Options(replace_timeout_s=0.5)  # there is one bookie: nobody will take over


class Daemon:
    """One ``bookie run`` process, in which a call of the core may be made to fail."""

    def __init__(self, folder: Path) -> None:
        self._words = ["run", "--data", str(folder), "--port", "0", "--json"]
        self._words += ["--set=memtable_size=10MiB", "--set=journal_size_max=10MiB"]

    async def start(self, plan: str = "") -> trio.Process:
        self.process = await trio.lowlevel.open_process(
            [sys.executable, "-c", plan + RUN, *self._words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.receive_some()
        self.url = json.loads(line)["ready"]
        return self.process

    async def end(self) -> tuple[int, list[str]]:
        """Wait for the process to end by itself; return its exit code and last words."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with trio.fail_after(20):
            words = b"".join([data async for data in self.process.stderr])
            code = await self.process.wait()
        await self.process.stdout.aclose()
        await self.process.stderr.aclose()
        return code, words.decode().splitlines()


@pytest.mark.parametrize(
    ("site", "nth"),
    [
        ("journal_sync", 3),
        pytest.param("journal_write", 4, marks=pytest.mark.slow),
        ("log_write", 1),
        pytest.param("log_sync", 1, marks=pytest.mark.slow),
        ("index_sync", 1),
        pytest.param("table_sync", 1, marks=pytest.mark.slow),
    ],
)
async def test_a_failed_write_ends_the_bookie_without_a_false_word(
    tmp_path: Path, site: str, nth: int
) -> None:
    daemon = Daemon(tmp_path / "bookie")
    await daemon.start(FAIL.format(site=site, nth=nth))
    ledger_id, acknowledged = await append_until_the_end(tmp_path, daemon)
    code, words = await daemon.end()
    assert code == 1
    assert "Input/output error" in words[-1]
    process = await daemon.start()
    async with (
        ledger_client.connect(daemon.url) as client,
        client.ledgers.open(ledger_id) as reader,
    ):
        entries = await reader.read(0, reader.last_confirmed)
        assert len(entries) >= acknowledged
        assert [e.payload for e in entries] == (PAYLOADS * WRITES)[: len(entries)]
    process.terminate()
    assert (await daemon.end())[0] == 0


async def append_until_the_end(folder: Path, daemon: Daemon) -> tuple[int, int]:
    """Append until the bookie is gone; return the ledger and what was acknowledged."""
    acknowledged = 0
    # By way of the metadata itself, so that the ledger can be closed without the bookie.
    url = f"sqlite://{folder}/bookie/metadata.db"
    async with (
        ledger_client.connect(url, options=IMPATIENT) as client,
        client.ledgers.create(1, 1, 1) as ledger,
    ):
        with contextlib.suppress(LedgerError):
            for _ in range(WRITES):
                await ledger.append_many(PAYLOADS)
                acknowledged += len(PAYLOADS)
    return ledger.id, acknowledged
