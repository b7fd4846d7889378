"""The demonstration: write a file, kill a bookie in the middle, read every byte back.

start 3 ─► first part ─► SIGKILL one ─► second part ─► start it again
           └─ on all three              └─ on two       │
verify all three copies ◄─ it gets what it missed ◄─ read all back, compare ◄┘

Each line is a message of a topic, whose lane goes on in a new ledger a few times meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable

import trio

import ledger_client
from ledger_client import Client, MessageIds, Producer, RollPolicy
from ledger_client.commands.demo.comparison import Comparison
from ledger_client.commands.demo.healing import whole_copies
from ledger_client.commands.demo.report import Report
from ledger_client.commands.demo.sample import Sample
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.pump import chunks
from ledger_client.commands.records import Lines
from ledger_client.commands.sandbox import Sandbox
from ledger_client.repair.presence import runs_on
from ledger_client.repair.runs import count
from ledger_client.topics.producer_options import ProducerOptions

BOOKIES = 3
TOPIC = "demo/lines"
PRODUCER = ProducerOptions(producer_name="demo", access="exclusive")
CHUNKS = 64
CHUNK_SIZE_MIN = 4 << 10
CHUNK_SIZE_MAX = 1 << 20
LEDGER_SHARE = 0.38
KILL_SHARE = 0.6
"""Of the file, in one ledger, and before the kill. By then the third ledger was made ahead, and
it takes the rest; with one of three bookies dead there would be no fourth with three copies."""

Say = Callable[[str, str], None]


class Story:
    """Plays the story in a sandbox; *say* is told what happens when it happens."""

    def __init__(self, sample: Sample, sandbox: Sandbox, say: Say) -> None:
        self._path = sample.path
        self._sandbox = sandbox
        self._say = say
        self._victim = sandbox.bookies[1]
        self._command: list[str] = []
        self._served_at = 0.0
        self._splitter = Lines(PRODUCER.message_size_max)
        self._ids: list[MessageIds] = []
        self._size = 0
        self._under_way = 0
        self.report = Report(
            file=str(sample.path),
            generated=sample.generated,
            cluster=sandbox.cluster,
            processes={b.bookie_id: b.process_id for b in sandbox.bookies},
            topic=TOPIC,
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
            report.same_bytes
            and report.lines_read == report.lines
            and report.each_once_in_order
            and len(report.copies) == BOOKIES
            and set(report.copies.values()) == {report.entries}
        )
        return report

    # --- writing -----------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        report = self.report
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            await self._create_topic(client, os.fstat(descriptor).st_size)
            started = time.perf_counter()
            async with client.producer(
                TOPIC, producer_name=PRODUCER.producer_name, access=PRODUCER.access
            ) as producer:
                async for data in self._source(descriptor):
                    await self._send(producer, self._splitter.feed(data))
                await self._send(producer, self._splitter.finish())
            report.write_s = time.perf_counter() - started
        finally:
            os.close(descriptor)
        await self._note_ledgers(client)
        ledgers = ", ".join(map(str, report.ledgers))
        self._say(
            "wrote",
            f"all {report.lines} lines, {report.bytes} bytes, to topic {TOPIC}, ledgers "
            f"{ledgers}; what came after the kill is on the two that were left",
        )

    async def _create_topic(self, client: Client, size: int) -> None:
        if not size:
            raise CommandFailed(f"{self._path} is empty; name a file with at least one line")
        self._size = size
        roll = RollPolicy(size=max(int(size * LEDGER_SHARE), 1))
        await client.create_topic(TOPIC, replication=BOOKIES, roll=roll)

    async def _source(self, descriptor: int) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        size = min(max(self._size // CHUNKS, CHUNK_SIZE_MIN), CHUNK_SIZE_MAX)
        async for data in chunks(descriptor, size):
            digest.update(data)
            self.report.bytes += len(data)
            yield data
        self.report.sha256_written = digest.hexdigest()

    async def _send(self, producer: Producer, lines: list[bytes]) -> None:
        """Send lines, and kill the bookie while those in the middle are under way."""
        report = self.report
        async with trio.open_nursery() as nursery:
            self._under_way = len(lines)
            nursery.start_soon(self._send_lines, producer, lines)
            if report.bytes >= self._size * KILL_SHARE and not report.killed:
                await trio.lowlevel.checkpoint()
                self._kill()

    async def _send_lines(self, producer: Producer, lines: list[bytes]) -> None:
        self._ids.append(await producer.send_many(lines))
        self.report.lines += len(lines)
        self._under_way = 0

    def _kill(self) -> None:
        report = self.report
        self._command = self._sandbox.kill(self._victim)
        report.killed, report.killed_process = self._victim.bookie_id, self._victim.process_id
        report.killed_after_bytes, report.unacknowledged = report.bytes, self._under_way
        self._say(
            "killed",
            f"{report.killed} (process {report.killed_process}) with SIGKILL after "
            f"{report.bytes} bytes, with {report.unacknowledged} lines not acknowledged yet",
        )

    async def _note_ledgers(self, client: Client) -> None:
        lanes = (await client.explain_topic(TOPIC)).lanes
        rows = [fate.ledger for lane in lanes for fate in lane.ledgers]
        self.report.ledgers = [row.ledger_id for row in rows if row.state == "closed"]
        self.report.entries = sum(row.entries for row in rows)

    # --- afterwards --------------------------------------------------------------------

    async def _restart(self, client: Client) -> None:
        report = self.report
        started = time.perf_counter()
        self._victim = await self._sandbox.restart(self._victim, self._command)
        self._served_at = time.perf_counter()
        report.restart_s = self._served_at - started
        report.restarted_process = self._victim.process_id
        for ledger_id in report.ledgers:
            report.kept += count(await runs_on(client, self._victim.bookie_id, ledger_id))
        self._say(
            "restarted",
            f"{self._victim.bookie_id} as process {self._victim.process_id}; it serves again "
            f"after {report.restart_s:.2f} s, with {report.kept} of {report.entries} entries",
        )

    async def _read(self, client: Client) -> None:
        """Read everything, and compare numbers and ids with those that were acknowledged."""
        report = self.report
        comparison = Comparison(self._ids)
        started = time.perf_counter()
        async with client.topic_reader(TOPIC) as reader:
            while messages := await reader.next_messages():
                comparison.take(messages)
        report.read_s = time.perf_counter() - started
        report.lines_read, report.sha256_read = comparison.count, comparison.sha256
        report.each_once_in_order = comparison.ends_as_sent()
        bytes_are = "the same bytes" if report.same_bytes else "OTHER BYTES"
        order_is = "each once and in order" if report.each_once_in_order else "NOT AS SENT"
        self._say(
            "read",
            f"{report.lines_read} lines, {order_is}: {bytes_are} (sha256 {report.sha256_read})",
        )

    async def _heal(self, client: Client) -> None:
        """Wait until the bookies have given the killed one what it missed, and make sure."""
        report = self.report
        report.copies = await whole_copies(client, report.ledgers)
        report.healed_s = time.perf_counter() - self._served_at
        self._say(
            "healed",
            f"{report.killed} has what it missed from the others, {report.healed_s:.2f} s after "
            "it was back",
        )
        self._say(
            "verified",
            f"all {len(report.copies)} copies of all {report.entries} entries: whole and the same",
        )
