"""A disk that fills up: a small file system in memory, which only root can mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from sandboxes import open_sandbox

import ledger_client
from ledger_client import Client, Options
from ledger_client.errors import LedgerError

SIZE_MIB = 128
SETTINGS = ["memtable_size=10MiB", "journal_size_max=10MiB", "journal_spares=0"]
ENTRIES = [bytes([number]) * 1000 for number in range(200)]
IMPATIENT = Options(replace_timeout_s=0.5)  # there is one bookie: nobody will take over


@pytest.fixture
def disk() -> Iterator[Path]:
    assert os.geteuid() == 0, "this test mounts a file system: run it as root"
    # Not where pytest tidies up: a run that is killed leaves a mount, which cannot be deleted.
    folder = Path(tempfile.mkdtemp(prefix="quire-disk-"))
    options = f"size={SIZE_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "quire-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def fill(disk: Path, *, leave_mib: int = 0) -> Path:
    """Fill it, to the last byte or but for so much, also while a bookie prepares its journal."""
    filler = disk / "filler"
    step = 1 << 20 if leave_mib else 4096
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while not leave_mib or free(disk) > leave_mib << 20:
            file.write(bytes(step))
    return filler


def free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


async def append_until_refused(client: Client) -> None:
    async with client.ledgers.create(1, 1, 1) as ledger:
        while True:
            await ledger.append_many(ENTRIES)


async def until_writable(client: Client) -> int:
    """Return the id of a ledger written once the bookie takes adds again."""
    with trio.fail_after(20):
        while True:
            try:
                async with client.ledgers.create(1, 1, 1) as ledger:
                    await ledger.append(b"there is room again")
            except LedgerError:
                await trio.sleep(0.1)
            else:
                return ledger.id


async def test_a_full_disk_stops_adds_and_not_reads_until_there_is_room(disk: Path) -> None:
    guard = ["disk_reserve=8MiB", "disk_check_s=0.05"]
    async with (
        open_sandbox(1, parent=disk, settings=SETTINGS + guard) as sandbox,
        ledger_client.connect(sandbox.cluster, options=IMPATIENT) as client,
    ):
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append_many(ENTRIES)
        filler = fill(disk, leave_mib=12)
        with pytest.raises(LedgerError), trio.fail_after(20):
            await append_until_refused(client)
        async with client.ledgers.open(ledger.id) as reader:
            assert [e.payload for e in await reader.read(0, len(ENTRIES) - 1)] == ENTRIES
        filler.unlink()
        async with client.ledgers.open(await until_writable(client)) as reader:
            assert (await reader.read(0, 0))[0].payload == b"there is room again"


async def test_bookies_stay_known_while_the_disk_of_the_metadata_is_full(disk: Path) -> None:
    guard = ["disk_reserve=8MiB", "disk_check_s=0.05", "lease_ttl_s=1"]
    async with open_sandbox(1, parent=disk, settings=SETTINGS + guard) as sandbox:
        async with (
            ledger_client.connect(sandbox.cluster) as client,
            client.ledgers.create(1, 1, 1) as ledger,
        ):
            await ledger.append_many(ENTRIES)
        filler = fill(disk)
        await trio.sleep(2.5)  # more than a lease lives without being renewed
        async with ledger_client.connect(sandbox.cluster) as client:
            async with client.ledgers.open(ledger.id) as reader:
                assert [e.payload for e in await reader.read(0, len(ENTRIES) - 1)] == ENTRIES
            filler.unlink()
            await until_writable(client)


async def test_a_journal_without_room_ends_the_bookie_without_a_false_word(
    disk: Path, tmp_path: Path
) -> None:
    # Nothing is flushed before the journal fails: the guard looks at the disk after each flush.
    guard = ["disk_reserve=0", "disk_full_ratio=1", "disk_check_s=3600", "memtable_size=40MiB"]
    settings = [*SETTINGS[1:], *guard, f"journal_folder={disk}/journal"]
    async with open_sandbox(1, parent=tmp_path, settings=settings) as sandbox:
        filler = fill(disk, leave_mib=2)
        url = f"sqlite://{sandbox.folder}/metadata.db"
        async with ledger_client.connect(url, options=IMPATIENT) as client:
            ledger_id, acknowledged = await append_until_the_end(client)
            with trio.fail_after(20):
                await sandbox.ended()
            assert "No space left on device" in (sandbox.folder / "standalone.log").read_text()
            filler.unlink()
            await sandbox.stop()
            await sandbox.start()
            async with client.ledgers.open(ledger_id) as reader:
                entries = await reader.read(0, acknowledged - 1)
                assert [e.payload for e in entries] == ENTRIES * (acknowledged // len(ENTRIES))


async def append_until_the_end(client: Client) -> tuple[int, int]:
    """Return the ledger's id and how many entries were acknowledged."""
    acknowledged = 0
    with trio.fail_after(30):
        async with client.ledgers.create(1, 1, 1) as ledger:
            while True:
                try:
                    await ledger.append_many(ENTRIES)
                except LedgerError:
                    break
                acknowledged += len(ENTRIES)
    return ledger.id, acknowledged
