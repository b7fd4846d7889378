"""The demonstration: write a file, kill a bookie in the middle, read every byte back.

start 3 ─► first half ─► SIGKILL one ─► second half ─► start it again
           └─ on all three              └─ on two       │
verify all three copies ◄─ it gets what it missed ◄─ read all back, compare ◄┘
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import trio

import ledger_client
from ledger_client.catalogue import Catalogue
from ledger_client.client import Client
from ledger_client.commands.demo.sample import Sample
from ledger_client.commands.errors import CommandFailed, NotHealed
from ledger_client.commands.pump import chunks, pump
from ledger_client.commands.records import Lines
from ledger_client.commands.sandbox import Sandbox
from ledger_client.operations.verification import Verification, verify
from ledger_client.repair.presence import runs_on
from ledger_client.repair.runs import count
from ledger_client.writer import PAYLOAD_SIZE_MAX, LedgerWriter
from metadata.urls import open_store

BOOKIES = 3
ACK_QUORUM = 2
CHUNKS = 64
CHUNK_SIZE_MIN = 4 << 10
CHUNK_SIZE_MAX = 1 << 20
HEAL_TIMEOUT_S = 60.0
HEAL_POLL_S = 0.1

Say = Callable[[str, str], None]


class Report(msgspec.Struct, kw_only=True):
    """What happened. Sizes in bytes; *intact* is the verdict."""

    file: str
    generated: bool
    cluster: str
    processes: dict[str, int]
    ledger_id: int = -1
    entries: int = 0
    bytes: int = 0
    write_s: float = 0.0
    read_s: float = 0.0
    killed: str = ""
    killed_process: int = 0
    killed_after_bytes: int = 0
    unacknowledged: int = 0
    restarted_process: int = 0
    restart_s: float = 0.0
    entries_read: int = 0
    kept: int = 0
    """entries that the killed bookie had when it was back"""
    healed_s: float = 0.0
    copies: dict[str, int] = {}
    """sound entries on each bookie, in the end"""
    sha256_written: str = ""
    sha256_read: str = ""
    intact: bool = False
    kept_folder: str | None = None


class Story:
    """Plays the story in a sandbox; *say* is told what happens when it happens."""

    def __init__(self, sample: Sample, sandbox: Sandbox, say: Say) -> None:
        self._path = sample.path
        self._sandbox = sandbox
        self._say = say
        self._victim = sandbox.bookies[1]
        self._command: list[str] = []
        self._served_at = 0.0
        self.report = Report(
            file=str(sample.path),
            generated=sample.generated,
            cluster=sandbox.cluster,
            processes={b.bookie_id: b.process_id for b in sandbox.bookies},
        )

    async def play(self) -> Report:
        """Play it to the end.

        Raises:
            LedgerError, CommandFailed: it could not be played.
            OSError: the file cannot be read.
        """
        report = self.report
        processes = ", ".join(str(process) for process in report.processes.values())
        self._say("started", f"{BOOKIES} bookies on this machine, processes {processes}")
        async with ledger_client.connect(self._sandbox.cluster) as client:
            await self._write(client)
            await self._restart(client)
            await self._read(client)
            await self._heal(client)
        report.intact = (
            report.sha256_read == report.sha256_written
            and report.entries_read == report.entries
            and len(report.copies) == BOOKIES
            and set(report.copies.values()) == {report.entries}
        )
        return report

    async def _write(self, client: Client) -> None:
        report = self.report
        descriptor = os.open(self._path, os.O_RDONLY)
        started = time.perf_counter()
        try:
            async with client.create_ledger(BOOKIES, BOOKIES, ACK_QUORUM) as ledger:
                report.ledger_id = ledger.id
                await pump(self._source(descriptor, ledger), Lines(PAYLOAD_SIZE_MAX), ledger)
                report.entries = ledger.last_confirmed + 1
        finally:
            os.close(descriptor)
        report.write_s = time.perf_counter() - started
        self._say(
            "wrote",
            f"all {report.entries} lines, {report.bytes} bytes, to ledger {report.ledger_id}; "
            "what came after the kill is on the two that were left",
        )

    async def _source(self, descriptor: int, ledger: LedgerWriter) -> AsyncIterator[bytes]:
        """Yield the file's bytes, and kill the bookie when half of them are on their way."""
        report = self.report
        size = os.fstat(descriptor).st_size
        if not size:
            raise CommandFailed(f"{self._path} is empty; name a file with at least one line")
        digest = hashlib.sha256()
        lines = 0
        async for data in chunks(
            descriptor, min(max(size // CHUNKS, CHUNK_SIZE_MIN), CHUNK_SIZE_MAX)
        ):
            digest.update(data)
            lines += data.count(b"\n")
            report.bytes += len(data)
            yield data
            if not report.killed and report.bytes * 2 >= size:
                self._kill(lines - ledger.last_confirmed - 1)
        report.sha256_written = digest.hexdigest()

    def _kill(self, unacknowledged: int) -> None:
        report = self.report
        self._command = self._sandbox.kill(self._victim)
        report.killed, report.killed_process = self._victim.bookie_id, self._victim.process_id
        report.killed_after_bytes, report.unacknowledged = report.bytes, unacknowledged
        self._say(
            "killed",
            f"{report.killed} (process {report.killed_process}) with SIGKILL after "
            f"{report.bytes} bytes, with {unacknowledged} lines not acknowledged yet",
        )

    async def _restart(self, client: Client) -> None:
        report = self.report
        started = time.perf_counter()
        self._victim = await self._sandbox.restart(self._victim, self._command)
        self._served_at = time.perf_counter()
        report.restart_s = self._served_at - started
        report.restarted_process = self._victim.process_id
        report.kept = count(await runs_on(client, self._victim.bookie_id, report.ledger_id))
        self._say(
            "restarted",
            f"{self._victim.bookie_id} as process {self._victim.process_id}; it serves again "
            f"after {report.restart_s:.2f} s, with {report.kept} of the lines",
        )

    async def _read(self, client: Client) -> None:
        report = self.report
        digest = hashlib.sha256()
        started = time.perf_counter()
        async with client.open_ledger(report.ledger_id) as reader:
            async for batch in reader.read_batches(0, reader.last_confirmed):
                digest.update(b"".join(batch.payloads()))
                report.entries_read += len(batch)
        report.read_s = time.perf_counter() - started
        report.sha256_read = digest.hexdigest()
        same = "the same bytes" if report.sha256_read == report.sha256_written else "OTHER BYTES"
        self._say("read", f"{report.entries_read} lines: {same} (sha256 {report.sha256_read})")

    async def _heal(self, client: Client) -> None:
        """Wait until the bookies have given the killed one what it missed, and make sure."""
        report = self.report
        found = await self._whole(client)
        report.healed_s = time.perf_counter() - self._served_at
        report.copies = {name: copy.sound for name, copy in found.copies.items()}
        self._say(
            "healed",
            f"{report.killed} has what it missed from the others, {report.healed_s:.2f} s after "
            "it was back",
        )
        self._say(
            "verified",
            f"all {len(report.copies)} copies of all {report.entries} lines: whole and the same",
        )

    async def _whole(self, client: Client) -> Verification:
        async with open_store(self._sandbox.cluster) as store:
            catalogue = Catalogue(store, timeout_s=client.options.metadata_timeout_s)
            with trio.move_on_after(HEAL_TIMEOUT_S):
                while True:
                    record, _ = await catalogue.get(self.report.ledger_id)
                    found = await verify(client, record)
                    if found.whole:
                        return found
                    await trio.sleep(HEAL_POLL_S)
        raise NotHealed(f"not every copy is whole after {HEAL_TIMEOUT_S:g} s")
