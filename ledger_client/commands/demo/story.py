"""The demonstration: a topic written, read, hurt, healed, compacted and replayed.

    file ─► 3 producers ─► topic ─► a reader that follows
                            │  one of four bookies is killed, its disk wiped, and it is replaced
                            ├─► read again: each line once, in order, with its id
                            ├─► every copy of every ledger compared
                            ├─► compacted: the last line of each key
                            ├─► replayed into another topic
                            └─► read by Spark

Every step counts messages and sums up keys and values; the closing table sets them side by side.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL

import trio

import ledger_client
from ledger_client import Client, RollPolicy
from ledger_client.commands.demo.comparison import Comparison
from ledger_client.commands.demo.healing import whole_copies
from ledger_client.commands.demo.report import Report
from ledger_client.commands.demo.sample import Sample
from ledger_client.commands.demo.source import Source
from ledger_client.commands.demo.sums import Sum
from ledger_client.commands.demo.writing import Writing
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.sandbox import Sandbox
from ledger_client.topics.producing.producer_options import ProducerOptions

BOOKIES = 4
COPIES = 3
PRODUCERS = 3
TOPIC = "demo/lines"
AGAIN = "demo/again"
KILL_SHARE = 0.4
LEDGER_SHARE = 0.08
"""Of the file, before the kill, and in one ledger."""
LEASE_S = 1.5
"""For so long a bookie that is killed is taken for alive."""
SETTINGS = (f"lease_ttl_s={LEASE_S}",)
END_S = 30.0
"""For so long a command that is interrupted may take to leave nothing behind."""
LINE_SIZE_MAX = ProducerOptions().message_size_max

Say = Callable[[str, str], None]


class Story:
    """Plays the story in a sandbox; *say* is told what happens when it happens."""

    def __init__(self, sample: Sample, sandbox: Sandbox, say: Say, *, spark: bool) -> None:
        self._path = sample.path
        self._sandbox = sandbox
        self._say = say
        self._spark = spark
        self._victim = sandbox.bookies[1]
        self._replaced_at = 0.0
        self._source = Source(sample.path, PRODUCERS, line_size_max=LINE_SIZE_MAX)
        self.report = Report(
            file=str(sample.path),
            generated=sample.generated,
            cluster=sandbox.cluster,
            processes={b.bookie_id: b.process_id for b in sandbox.bookies},
            topic=TOPIC,
            producers=PRODUCERS,
            spark=spark,
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
            await self._read(client)
            await self._heal(client)
            await self._compact(client)
            await self._replay(client)
        report.intact = (
            all(row.agrees for row in report.table)
            and report.each_once_in_order
            and sum(report.copies.values()) == COPIES * report.entries
        )
        return report

    # --- writing -----------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        report, source = self.report, self._source
        size = (await trio.Path(self._path).stat()).st_size
        if not size:
            raise CommandFailed(f"{self._path} is empty; name a file with at least one line")
        roll = RollPolicy(size=max(int(size * LEDGER_SHARE), 1))
        await client.create_topic(TOPIC, 2, replication=COPIES, roll=roll)
        self._writing = Writing(client, TOPIC, PRODUCERS, source)
        await self._writing.run(int(size * KILL_SHARE), self._lose_and_replace)
        report.lines, report.bytes = source.sum.messages, source.sum.bytes
        report.keys = len(source.latest)
        report.table.append(source.sum.row("the file", source.sum))
        self._add_row(
            "acknowledged, and read meanwhile", self._writing.followed, self._writing.seconds
        )
        self._say(
            "wrote",
            f"all {report.lines} lines, {report.bytes} bytes, from {PRODUCERS} producers to topic "
            f"{TOPIC}; a reader followed and saw {self._writing.followed.messages}",
        )

    async def _lose_and_replace(self) -> None:
        """Kill a bookie, take its disk away, and start it again with an empty one."""
        report, victim = self.report, self._victim
        command = self._sandbox.kill(victim)
        report.killed, report.killed_process = victim.bookie_id, victim.process_id
        report.killed_after_bytes = self._source.consumed
        report.unacknowledged = self._writing.under_way
        self._say(
            "killed",
            f"{victim.bookie_id} (process {victim.process_id}) with SIGKILL after "
            f"{report.killed_after_bytes} bytes, with {report.unacknowledged} lines not "
            "acknowledged yet",
        )
        folder = self._sandbox.folder / victim.bookie_id
        await trio.to_thread.run_sync(shutil.rmtree, folder)
        await trio.sleep(LEASE_S)  # until then the cluster takes it for alive
        folders = ["--data", str(folder), "--bookie-id", victim.bookie_id]
        metadata = f"sqlite://{self._sandbox.folder / 'metadata.db'}"
        await _run("bookie", "replace", *folders, "--metadata", metadata)
        self._victim = await self._sandbox.restart(victim, command)
        self._replaced_at = time.perf_counter()
        report.replaced_process = self._victim.process_id
        self._say(
            "replaced",
            f"its folder was deleted; as process {self._victim.process_id} it goes on in an "
            "empty one, and denies nothing until it is refilled",
        )

    # --- afterwards --------------------------------------------------------------------

    async def _read(self, client: Client) -> None:
        """Read everything again, and compare numbers and ids with those that were acknowledged."""
        report, found = self.report, Sum()
        comparison = Comparison(self._writing.ids)
        started = time.perf_counter()
        async with client.topic_reader(TOPIC) as reader:
            while messages := await reader.next_messages():
                comparison.take(messages)
                found.add(
                    [message.key or b"" for message in messages],
                    [message.value or b"" for message in messages],
                )
        report.each_once_in_order = comparison.ends_as_sent()
        self._add_row("read again", found, time.perf_counter() - started)
        order_is = "each once and in order" if report.each_once_in_order else "NOT AS SENT"
        self._say("read", f"{found.messages} lines, {order_is}, under the ids that were told")

    async def _heal(self, client: Client) -> None:
        """Wait until the bookies have given the replaced one what it lost, and make sure."""
        report = self.report
        lanes = (await client.explain_topic(TOPIC)).lanes
        rows = [fate.ledger for lane in lanes for fate in lane.ledgers if fate.ledger.closed_ms]
        report.ledgers = [row.ledger_id for row in rows]
        report.entries = sum(row.entries for row in rows)
        report.copies = await whole_copies(client, report.ledgers)
        report.healed_s = time.perf_counter() - self._replaced_at
        self._say(
            "healed",
            f"{report.killed} has its copies again from the others, {report.healed_s:.2f} s after "
            "it was back",
        )
        self._say(
            "verified",
            f"all {COPIES} copies of all {report.entries} entries in {len(report.ledgers)} "
            "ledgers: whole and the same",
        )

    async def _compact(self, client: Client) -> None:
        """Compact the topic, and compare what is left with the last line of each key."""
        started = time.perf_counter()
        await self._quire("compact", TOPIC, *self._engine)
        seconds = time.perf_counter() - started
        latest, found = Sum(), Sum()
        latest.add([*self._source.latest], [*self._source.latest.values()])
        async with client.topic_reader(TOPIC, compacted=True) as reader:
            async for batch in reader.read_batches():
                found.add_batch(batch)
        report = self.report
        report.table.append(latest.row("the last line of each key", latest))
        report.table.append(found.row("compacted", latest, seconds))
        by = "by Spark" if self._spark else "in one process"
        self._say("compacted", f"{report.lines} messages to {found.messages}, {by}")

    async def _replay(self, client: Client) -> None:
        """Copy the topic into another one; with Spark, read it there as well."""
        started = time.perf_counter()
        await self._quire("replay", TOPIC, "--to", AGAIN, "--with-definition")
        seconds, found = time.perf_counter() - started, Sum()
        async with client.topic_reader(AGAIN) as reader:
            async for batch in reader.read_batches():
                found.add_batch(batch)
        self._add_row(f"replayed to {AGAIN}", found, seconds)
        self._say("replayed", f"{found.messages} messages to topic {AGAIN}")
        if self._spark:
            await self._read_by_spark()

    async def _read_by_spark(self) -> None:
        folder = self._sandbox.folder / "parquet"
        started = time.perf_counter()
        await self._quire("replay", TOPIC, "--to-parquet", str(folder), "--spark", *self._engine)
        seconds = time.perf_counter() - started
        found = await trio.to_thread.run_sync(_sum_parquet, folder)
        self._add_row("read by Spark, to Parquet", found, seconds)
        self._say("exported", f"{found.messages} messages to Parquet, by Spark")

    def _add_row(self, what: str, found: Sum, seconds: float) -> None:
        self.report.table.append(found.row(what, self._source.sum, seconds))

    @property
    def _engine(self) -> Sequence[str]:
        return ("--master", "local[2]") if self._spark else ("--no-spark",)

    async def _quire(self, *words: str) -> None:
        await _run("ledger_client", *words, "--cluster", self._sandbox.cluster)


async def _run(module: str, *words: str) -> None:
    """Run one of our commands in a process of its own. Raises CommandFailed with its last words."""
    # -P: what is installed, although the current folder may hold quire's sources.
    command = [sys.executable, "-P", "-m", module, *words, "--json"]
    done = await trio.run_process(
        command,
        stdin=DEVNULL,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=_end,
    )
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandFailed(f"`{' '.join(words)}` failed: {told[-1] if told else 'no reason'}")


async def _end(process: trio.Process) -> None:
    """Let a command end as it does when it is interrupted; Spark takes its time for that."""
    process.terminate()
    await trio.sleep(END_S)
    process.kill()


def _sum_parquet(folder: Path) -> Sum:
    import pyarrow.dataset  # loads when it is needed

    found = Sum()
    for batch in pyarrow.dataset.dataset(folder, format="parquet").to_batches(["key", "value"]):
        found.add_batch(batch)
    return found
