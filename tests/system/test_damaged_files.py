"""Journals cut short and entry logs damaged, under bookies that are started over them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from never_twice import never_twice
from own_copy import ReplicaDamaged, copy_at
from peer import Peer
from sandboxes import open_sandbox

import ledger_client
from ledger_client import Client
from ledger_client.commands.sandbox import Bookie, Sandbox
from metadata.calls import FlushNow, JournalMark, JournalState

SETTINGS = ["memtable_size=10MiB", "journal_size_max=1MiB", "journal_spares=0"]
GROUPS = 8
HEADER_SIZE = 4096  # of a journal file
PAYLOADS = [b"%d:" % number * (number % 97 + 1) for number in range(120)]


async def copy_of(bookie: Bookie, ledger_id: int) -> list[bytes]:
    """All that the bookie itself holds of the ledger."""
    return [p async for payloads in copy_at(bookie.address, ledger_id) for p in payloads]


async def write_groups(client: Client, ensemble: int) -> int:
    """Write PAYLOADS in several journal groups; return the ledger's id."""
    async with client.ledgers.create(ensemble, ensemble, ensemble) as ledger:
        step = len(PAYLOADS) // GROUPS
        for start in range(0, len(PAYLOADS), step):
            await ledger.append_many(PAYLOADS[start : start + step])
    return ledger.id


async def check_cuts(folder: Path, count: int) -> None:
    """Cut the newest journal at *count* offsets; each time every record before is served."""
    async with open_sandbox(1, parent=folder, settings=SETTINGS) as sandbox:
        async with ledger_client.connect(sandbox.cluster) as client:
            ledger_id = await write_groups(client, 1)
        end = await journal_end(sandbox)
        await sandbox.kill_all()
        saved = folder / "saved"
        shutil.copytree(sandbox.folder, saved)
        held_before = 0
        chance = random.Random(count)
        for cut in sorted([0, 1, end, *(chance.randrange(2, end) for _ in range(count))]):
            shutil.rmtree(sandbox.folder)
            shutil.copytree(saved, sandbox.folder)
            journal = max(sandbox.folder.glob("bookie-1/journal/*.journal"))
            with journal.open("r+b") as file:
                file.truncate(cut)
            await sandbox.start()
            if cut < HEADER_SIZE:
                # The file was in use and is not any more: what it held is not "absent".
                with pytest.raises(ReplicaDamaged, match="code 101"):
                    await copy_of(sandbox.bookies[0], ledger_id)
            else:
                held_before = await check_held(sandbox.bookies[0], ledger_id, held_before)
            await sandbox.kill_all()
        with never_twice():
            assert held_before == len(PAYLOADS)


async def check_held(bookie: Bookie, ledger_id: int, least: int) -> int:
    """Return how many entries it holds; a longer file never holds less."""
    with never_twice():
        held = await copy_of(bookie, ledger_id)
        assert held == PAYLOADS[: len(held)]
        assert len(held) >= least
    return len(held)


async def journal_end(sandbox: Sandbox) -> int:
    async with Peer.open(sandbox.bookies[0].address) as peer:
        return (await peer.call(JournalMark(), JournalState)).journal_offset


@pytest.mark.real_processes
async def test_a_journal_cut_anywhere_gives_every_record_before_the_cut(tmp_path: Path) -> None:
    await check_cuts(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.real_processes
async def test_a_journal_cut_at_many_places_gives_every_record_before(tmp_path: Path) -> None:
    await check_cuts(tmp_path, 6)


@pytest.mark.real_processes
async def test_a_damaged_entry_is_served_from_another_bookie(tmp_path: Path) -> None:
    async with (
        open_sandbox(3, parent=tmp_path, settings=SETTINGS) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
    ):
        ledger_id = await write_groups(client, 3)
        for bookie in sandbox.bookies:
            async with Peer.open(bookie.address) as peer:
                await peer.call(FlushNow(), JournalState)
        victim = sandbox.bookies[2]
        command = sandbox.kill(victim)
        damage_entry(sandbox.folder / victim.bookie_id, PAYLOADS[60])
        victim = await sandbox.restart(victim, command)
        with pytest.raises(ReplicaDamaged):
            await copy_of(victim, ledger_id)
        for _ in range(3):  # whichever replica is asked first
            with never_twice():
                async with client.ledgers.open(ledger_id) as reader:
                    entries = await reader.read(0, len(PAYLOADS) - 1)
                assert [entry.payload for entry in entries] == PAYLOADS


def damage_entry(folder: Path, payload: bytes) -> None:
    """Flip a bit of the payload in the bookie's entry log."""
    (log,) = [path for path in folder.rglob("*.log") if payload in path.read_bytes()]
    data = bytearray(log.read_bytes())
    data[data.index(payload) + 1] ^= 4
    log.write_bytes(data)
