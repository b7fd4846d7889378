"""``quire scrub``, against real bookies of which one has a damaged file."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from peer import Peer
from processes import last_word, quire
from sandboxes import open_sandbox

import ledger_client
from ledger_client.commands.sandbox import Sandbox
from ledger_client.commands.scrub import ScrubRequest, ScrubResult, _scrub
from metadata.calls import FlushNow, JournalState

COUNT = 120
SETTINGS = ("autorecovery=false",)


def payloads(number: int) -> list[bytes]:
    return [b"payload %d of ledger %d " % (entry, number) * 40 for entry in range(COUNT)]


async def fill(url: str) -> list[int]:
    """Two ledgers with two copies each, and a topic; return the ledgers."""
    async with ledger_client.connect(url) as client:
        ids = []
        for number in range(2):
            async with client.ledgers.create(2, 2, 2) as ledger:
                await ledger.append_many(payloads(number))
            ids.append(ledger.id)
        await client.topics.create("t/a", replication=2)
        async with client.producer("t/a") as producer:
            await producer.send_many(payloads(2))
    return ids


def damage_entry(folder: Path, payload: bytes) -> None:
    """Flip a bit of the payload in the bookie's entry log."""
    (log,) = [path for path in folder.rglob("*.log") if payload in path.read_bytes()]
    data = bytearray(log.read_bytes())
    data[data.index(payload) + 1] ^= 4
    log.write_bytes(data)


async def scrub(sandbox: Sandbox, *words: str) -> subprocess.CompletedProcess[bytes]:
    run = partial(quire, "scrub", *words, environment={"QUIRE_CLUSTER": sandbox.cluster})
    return await trio.to_thread.run_sync(run)


async def scrub_by_spark(sandbox: Sandbox) -> ScrubResult:
    """Do what the command does, in this process and its session of Spark."""
    words = {"topics": (), "ledgers": (), "repair": False, "as_json": True}
    wanted = {"cluster": sandbox.cluster, "master": "local[2]", "no_spark": False, **words}
    return await _scrub(msgspec.convert(wanted, ScrubRequest))


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.xdist_group("spark")
async def test_a_damaged_copy_is_found_by_ledger_and_mended(
    tmp_path: Path, own_spark: None
) -> None:
    """Spark finds the same."""
    async with open_sandbox(2, parent=tmp_path, settings=SETTINGS) as sandbox:
        damaged, whole = await fill(sandbox.cluster)
        done = await scrub(sandbox, "--no-spark")
        assert done.returncode == 0, done.stderr
        assert b"every copy is whole" in done.stdout
        for bookie in sandbox.bookies:
            async with Peer.open(bookie.address) as peer:
                await peer.call(FlushNow(), JournalState)
        victim = sandbox.bookies[1]
        command = sandbox.kill(victim)
        damage_entry(sandbox.folder / victim.bookie_id, payloads(0)[60])
        victim = await sandbox.restart(victim, command)

        done = await scrub(sandbox, "--no-spark", "--json")
        assert done.returncode == 1
        assert last_word(done.stderr).startswith("quire: not every copy is whole: ledger ")
        found = json.loads(done.stdout)
        assert found["whole"] is False
        (ledger,) = found["found"]["faulty"]
        assert (ledger["ledger_id"], ledger["faulty"]) == (damaged, [victim.bookie_id])
        assert ledger["damaged"] >= 1
        assert (found["found"]["ledgers"], ledger["lost"]) == (4, 0)  # the topic, and __events
        assert msgspec.to_builtins(await scrub_by_spark(sandbox)) == found

        assert (await scrub(sandbox, "--no-spark", "--ledger", str(whole))).returncode == 0
        assert (await scrub(sandbox, "--no-spark", "--topic", "t/a")).returncode == 0
        done = await scrub(sandbox, "--no-spark", "--ledgers", str(damaged), "--repair")
        assert done.returncode == 0, done.stderr
        assert b"repaired 1 ledger" in done.stdout
        assert (await scrub(sandbox, "--no-spark")).returncode == 0


async def test_what_cannot_be_scrubbed_is_one_line(tmp_path: Path) -> None:
    async with open_sandbox(1, parent=tmp_path) as sandbox:
        for words in (("--ledger", "999"), ("--topic", "t/none")):
            done = await scrub(sandbox, "--no-spark", *words)
            assert (done.returncode, words[1] in last_word(done.stderr)) == (1, True), done.stderr
