"""Recovery among real processes: a writer that is killed, and bookies that start again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
import v2
from never_twice import never_twice
from sandboxes import open_sandbox

import ledger_client
from ledger_client.commands.sandbox import Sandbox
from ledger_client.errors import OutcomeUnknown, WriterFailed
from metadata.address import parse_address
from metadata.records import LedgerState
from native.frame import Code

SETTINGS = ["memtable_size=10MiB", "journal_size_max=16MiB"]
WRITER = """
import sys, trio, ledger_client

async def main():
    async with ledger_client.connect(sys.argv[1]) as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            print(ledger.id, flush=True)
            async with trio.open_nursery() as nursery:
                for first in range(0, 100_000, 100):
                    nursery.start_soon(append, ledger, first)
                    await trio.sleep(0.001)

async def append(ledger, first):
    ids = await ledger.append_many([b"%d" % n for n in range(first, first + 100)])
    print(ids[0], ids[-1], first, flush=True)

trio.run(main)
"""


async def write_and_be_killed(sandbox: Sandbox, after: int) -> tuple[int, dict[int, bytes]]:
    """Let a process write until so many of its calls returned, and kill it.

    Return the ledger, and what was acknowledged.
    """
    command = [sys.executable, "-c", WRITER, sandbox.cluster]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = b""
    with trio.fail_after(30):
        while told.count(b"\n") <= after:
            told += await process.stdout.receive_some()
        process.kill()
        while data := await process.stdout.receive_some():
            told += data
        await process.wait()
    await process.stdout.aclose()
    first_line, *lines = told[: told.rindex(b"\n")].split(b"\n")
    acknowledged: dict[int, bytes] = {}
    for line in lines:
        first, last, number = map(int, line.split())
        acknowledged |= {first + i: b"%d" % (number + i) for i in range(last - first + 1)}
    return int(first_line), acknowledged


@pytest.mark.real_processes
async def test_what_a_killed_writer_was_told_is_in_its_ledger(tmp_path: Path) -> None:
    """BK-08: SIGKILL in the middle of many appends, one bookie gone as well."""
    async with open_sandbox(4, parent=tmp_path, settings=SETTINGS) as sandbox:
        ledger_id, acknowledged = await write_and_be_killed(sandbox, after=30)
        async with ledger_client.connect(sandbox.cluster) as client:
            ensemble = (await client.ledgers.info(ledger_id)).bookies[-1][1]
            sandbox.kill(next(b for b in sandbox.bookies if b.bookie_id == ensemble[0]))
            with never_twice():
                async with client.ledgers.open(ledger_id) as reader:
                    kept = [entry.payload for entry in await reader.read(0, reader.last_confirmed)]
                assert (await client.ledgers.info(ledger_id)).state is LedgerState.CLOSED
                assert len(kept) > max(acknowledged)
                assert {entry_id: kept[entry_id] for entry_id in acknowledged} == acknowledged
                assert len(set(kept)) == len(kept)


@pytest.mark.real_processes
async def test_a_fence_outlives_the_bookies_that_were_told_of_it(tmp_path: Path) -> None:
    """BK-07: after SIGKILL and a new start, no bookie takes an entry of the old writer."""
    async with open_sandbox(3, parent=tmp_path, settings=SETTINGS) as sandbox:
        url = f"sqlite://{sandbox.folder}/metadata.db"
        async with ledger_client.connect(url) as ours, ledger_client.connect(url) as theirs:
            with pytest.raises(WriterFailed):
                async with ours.ledgers.create(3, 3, 2) as ledger:
                    await ledger.append_many([b"one", b"two"])
                    assert (await theirs.ledgers.recover(ledger.id)).last_entry == 1
                    await sandbox.kill_all()
                    await sandbox.start()
                    with pytest.raises((OutcomeUnknown, WriterFailed)):
                        await ledger.append(b"three")
                    await ledger.append(b"four")
            with never_twice():
                for bookie in sandbox.bookies:
                    assert await code_of_add(bookie.address, ledger.id) == Code.FENCED
                async with theirs.ledgers.open(ledger.id) as reader:
                    assert [entry.payload async for entry in reader.follow(0)] == [b"one", b"two"]


async def code_of_add(host_and_port: str, ledger_id: int) -> int:
    """Send entry 2 as the old writer would, and return the code of the answer."""
    address = parse_address(host_and_port)
    with trio.fail_after(10):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(v2.add(ledger_id, 2))
            answer = b""
            while len(answer) < 28:
                answer += await stream.receive_some()
    return v2.parse(answer).code
