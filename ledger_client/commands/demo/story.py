"""The demonstration, step by step.

    file ─► 3 producers ─► topic ─► a reader that follows
                            │  one of four bookies is killed, its disk wiped, and it is replaced
                            ├─► read again: each line once, in order, with its id
                            ├─► every copy of every ledger compared
                            ├─► compacted: the last line of each key
                            ├─► replayed into another topic
                            └─► read by Spark

Every step counts messages and computes a checksum of keys and values; the final table compares
them.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import DEVNULL

import click
import msgspec
import trio
from rich.console import Console
from rich.table import Table

from ledger_client.background import Background
from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.demo.report import Comparison, DemoReport, Sum, whole_copies
from ledger_client.commands.demo.writing import InputFile, Sample, Writing, choose_sample
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import Sandbox, open_sandbox
from ledger_client.errors import SparkError
from ledger_client.topics.producing.producer_options import ProducerOptions
from metadata.outcome import CommandFailed
from metadata.topics import RollPolicy

BOOKIES = 4
COPIES = 3
PRODUCERS = 3
TOPIC = "demo/lines"
AGAIN = "demo/again"
KILL_SHARE = 0.4
LEDGER_SHARE = 0.08
"""Fractions of the file: sent before the kill, and stored in one ledger."""
LEASE_S = 1.5
"""The cluster notices a killed bookie after this time."""
SETTINGS = (f"lease_ttl_s={LEASE_S}",)
END_S = 30.0
"""An interrupted command has this long to clean up."""
LINE_SIZE_MAX = ProducerOptions().message_size_max
PROGRESS_S = 5
"""How often a step that takes long says that it goes on."""
KEPT = "keeps"

Say = Callable[[str, str], None]


class Story:
    """Runs the demonstration in a sandbox; *say* is called at every step."""

    def __init__(self, sample: Sample, sandbox: Sandbox, say: Say, *, spark: bool) -> None:
        self._path = sample.path
        self._sandbox = sandbox
        self._say = say
        self._spark = spark
        self._victim = sandbox.bookies[1]
        self._replaced_at = 0.0
        self._source = InputFile(sample.path, PRODUCERS, line_size_max=LINE_SIZE_MAX)
        self.report = DemoReport(
            file=str(sample.path),
            generated=sample.generated,
            cluster=sandbox.cluster,
            processes={b.bookie_id: b.process_id for b in sandbox.bookies},
            topic=TOPIC,
            producers=PRODUCERS,
            spark=spark,
        )

    async def play(self) -> DemoReport:
        """Run all steps and return the report.

        Raises:
            LedgerError, CommandFailed: a step failed.
            OSError: the file cannot be read.
        """
        report = self.report
        processes = ", ".join(str(process) for process in report.processes.values())
        self._say("started", f"{BOOKIES} bookies on this machine, processes {processes}")
        async with connect(self._sandbox.cluster) as client:
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
            raise CommandFailed(f"{self._path} is empty; pass a file with at least one line")
        roll = RollPolicy(size=max(int(size * LEDGER_SHARE), 1))
        await client.topics.create(TOPIC, 2, replication=COPIES, roll=roll)
        self._writing = Writing(
            PRODUCERS,
            source,
            open_producer=lambda name: client.producer(TOPIC, producer_name=name, access="shared"),
            open_reader=lambda: client.reader(TOPIC, follow=True),
        )
        await self._writing.run(int(size * KILL_SHARE), self._lose_and_replace)
        report.lines, report.bytes = source.sum.messages, source.consumed
        report.keys = len(source.latest)
        report.table.append(source.sum.row("the lines of the file", source.sum))
        self._add_row(
            "acknowledged, and read meanwhile", self._writing.followed, self._writing.seconds
        )
        self._say(
            "wrote",
            f"all {report.lines} lines, {report.bytes} bytes, from {PRODUCERS} producers to topic "
            f"{TOPIC}; a reader followed and saw {self._writing.followed.messages}",
        )

    async def _lose_and_replace(self) -> None:
        """Kill a bookie, wipe its disk, and start it again with an empty one."""
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
        await trio.sleep(LEASE_S)  # until then the cluster counts it as alive
        folders = ["--data", str(folder), "--bookie-id", victim.bookie_id]
        metadata = f"sqlite://{self._sandbox.folder / 'metadata.db'}"
        await _run("bookie", "replace", *folders, "--metadata", metadata)
        self._victim = await self._sandbox.restart(victim, command)
        self._replaced_at = time.perf_counter()
        report.replaced_process = self._victim.process_id
        self._say(
            "replaced",
            f"its folder was deleted; process {self._victim.process_id} continues in an empty "
            'one, and never answers "no such entry" until it is refilled',
        )

    # --- afterwards --------------------------------------------------------------------

    async def _read(self, client: Client) -> None:
        """Read everything again, and compare numbers and ids with the acknowledged ones."""
        report, found = self.report, Sum()
        comparison = Comparison(self._writing.ids)
        started = time.perf_counter()
        async with client.reader(TOPIC) as reader:
            while messages := await reader.next_messages():
                comparison.take(messages)
                found.add(
                    [message.key or b"" for message in messages],
                    [message.value or b"" for message in messages],
                )
        report.each_once_in_order = comparison.ends_as_sent()
        self._add_row("read again", found, time.perf_counter() - started)
        order_is = "each once and in order" if report.each_once_in_order else "NOT AS SENT"
        self._say("read", f"{found.messages} lines, {order_is}, under their acknowledged ids")

    async def _heal(self, client: Client) -> None:
        """Wait until the replaced bookie has its copies again, and verify all of them."""
        report = self.report
        lanes = (await client.topics.explain(TOPIC)).lanes
        rows = [fate.ledger for lane in lanes for fate in lane.ledgers if fate.ledger.closed_ms]
        report.ledgers = [row.ledger_id for row in rows]
        report.entries = sum(row.entries for row in rows)
        report.copies = await whole_copies(client.cluster.verify, report.ledgers)
        report.healed_s = time.perf_counter() - self._replaced_at
        self._say(
            "healed",
            f"{report.killed} got its copies back from the others, {report.healed_s:.2f} s after "
            "it restarted",
        )
        self._say(
            "verified",
            f"all {COPIES} copies of all {report.entries} entries in {len(report.ledgers)} "
            "ledgers: whole and the same",
        )

    async def _compact(self, client: Client) -> None:
        """Compact the topic, and compare the result with the last line of each key."""
        started = time.perf_counter()
        async with self._progress("compacting"):
            await self._quire("compact", TOPIC, *self._engine)
        seconds = time.perf_counter() - started
        latest, found = Sum(), Sum()
        latest.add([*self._source.latest], [*self._source.latest.values()])
        async with client.reader(TOPIC, compacted=True) as reader:
            async for batch in reader.read_batches():
                found.add_batch(batch)
        report = self.report
        report.table.append(latest.row("the last line of each key", latest))
        report.table.append(found.row("compacted", latest, seconds))
        by = "by Spark" if self._spark else "in one process"
        self._say("compacted", f"{report.lines} messages to {found.messages}, {by}")

    async def _replay(self, client: Client) -> None:
        """Replay the topic into another one; with Spark, also export it to Parquet."""
        started = time.perf_counter()
        await self._quire("replay", TOPIC, "--to", AGAIN, "--with-definition")
        seconds, found = time.perf_counter() - started, Sum()
        async with client.reader(AGAIN) as reader:
            async for batch in reader.read_batches():
                found.add_batch(batch)
        self._add_row(f"replayed to {AGAIN}", found, seconds)
        self._say("replayed", f"{found.messages} messages to topic {AGAIN}")
        if self._spark:
            await self._read_by_spark()

    async def _read_by_spark(self) -> None:
        folder = self._sandbox.folder / "parquet"
        started = time.perf_counter()
        words = ("replay", TOPIC, "--to-parquet", str(folder), "--spark", *self._engine)
        async with self._progress("exporting to Parquet"):
            await self._quire(*words)
        seconds = time.perf_counter() - started
        found = await trio.to_thread.run_sync(_sum_parquet, folder)
        self._add_row("read by Spark, to Parquet", found, seconds)
        self._say("exported", f"{found.messages} messages to Parquet, by Spark")

    def _progress(self, doing: str) -> AbstractAsyncContextManager[None]:
        """Say what is done by Spark for the length of the block; without Spark it is short."""
        return still(self._say, doing) if self._spark else nullcontext()

    def _add_row(self, what: str, found: Sum, seconds: float) -> None:
        self.report.table.append(found.row(what, self._source.sum, seconds))

    @property
    def _engine(self) -> Sequence[str]:
        return ("--master", "local[2]") if self._spark else ("--no-spark",)

    async def _quire(self, *words: str) -> None:
        await _run("ledger_client", *words, "--cluster", self._sandbox.cluster)


@asynccontextmanager
async def still(say: Say, doing: str) -> AsyncIterator[None]:
    """Say at once that Spark starts for the block, and every PROGRESS_S that it goes on."""

    async def go_on() -> None:
        for seconds in count(PROGRESS_S, PROGRESS_S):
            await trio.sleep(PROGRESS_S)
            say("", f"still {doing}, {seconds} s so far")

    say("Spark", f"{doing}; it starts a Java process first, which takes most of the time")
    async with Background() as nursery:
        nursery.start_soon(go_on)
        yield


async def _run(module: str, *words: str) -> None:
    """Run a quire command as a process. Raises CommandFailed with its last line of output."""
    # -P prefers the installed quire to sources in the current folder.
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
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandFailed(f"`{' '.join(words)}` failed: {lines[-1] if lines else 'no reason'}")


async def _end(process: trio.Process) -> None:
    """Interrupt a command and let it clean up, which takes Spark a while."""
    process.terminate()
    await trio.sleep(END_S)
    process.kill()


def _sum_parquet(folder: Path) -> Sum:
    import pyarrow.dataset  # slow to import

    found = Sum()
    for batch in pyarrow.dataset.dataset(folder, format="parquet").to_batches(["key", "value"]):
        found.add_batch(batch)
    return found


# --- The command -------------------------------------------------------------------------

_TABLE_WIDTH = 110


@click.command()
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--no-spark", is_flag=True, help="Leave out Spark, which needs Java 17 or later.")
@click.option("--keep", is_flag=True, help="Keep the bookies' data.")
@options.as_json
def demo(*, file: Path | None, no_spark: bool, keep: bool, as_json: bool) -> None:
    """Show the whole system at work on this machine.

    Starts four bookies and sends each line of FILE as a message, in three copies, from three
    producers, while a reader follows. Meanwhile one bookie is killed, its disk wiped, and the
    bookie replaced. Then everything is read again, all copies are compared, and the topic is
    compacted, replayed into another one, and read by Spark. A table at the end shows that all
    counts and checksums agree.

    By default, FILE is a log of this machine, or a generated one. Everything happens in a
    temporary folder, which is deleted at the end.
    """
    if not no_spark:
        _check_spark()
    say = _say_folder if as_json else _say
    report = trio.run(finish, partial(_play, file, keep, not no_spark, say))
    click.echo(msgspec.json.encode(report).decode() if as_json else _summary(report))
    if not report.intact:
        raise CommandFailed("the messages read differ from those written")


def _check_spark() -> None:
    # Before anything starts, as Spark only comes last.
    from ledger_client.spark.session import check_java, check_spark

    try:
        check_spark()
        check_java()
    except SparkError as missing:
        raise CommandFailed(f"{missing}; or leave Spark out: `quire demo --no-spark`") from missing


async def _play(file: Path | None, keep: bool, spark: bool, say: Say) -> DemoReport:
    with tempfile.TemporaryDirectory(prefix="quire-demo-") as scratch:
        sample = Sample(file, generated=False) if file else choose_sample(Path(scratch))
        origin = "a generated log, as none was found" if sample.generated else "a log"
        say("file", str(file) if file else f"{sample.path}, {origin} (pass another if you like)")
        async with open_sandbox(BOOKIES, keep=keep, settings=SETTINGS) as sandbox:
            if keep:
                say(KEPT, f"all data, in {sandbox.folder}")
            report = await Story(sample, sandbox, say, spark=spark).play()
            report.kept_folder = str(sandbox.folder) if keep else None
    return report


def _say(what: str, text: str) -> None:
    click.echo(f"{what:>10}  {text}")


def _say_folder(what: str, text: str) -> None:
    """Say only what nobody could find out after an interruption, beside the JSON."""
    if what == KEPT:
        click.echo(f"quire: {what} {text}", err=True)


def _summary(report: DemoReport) -> str:
    verdict = (
        "Every count and every checksum agrees, and all copies are whole."
        if report.intact
        else "NOT EVERY COUNT AND CHECKSUM AGREES."
    )
    data = report.kept_folder or "./data"
    return f"""
{_table(report)}
{verdict}

Try next:
  bookie standalone --data {data} --bookies {BOOKIES}    a cluster that stays
  quire produce --create {TOPIC} FILE        each line becomes a message
  quire read {TOPIC}                         the same lines again; --follow waits for more
  quire topic explain {TOPIC}                its ledgers, and when each expires
  quire compact {TOPIC}                      the latest message of each key
  quire bench produce                           the speed on this disk"""


def _table(report: DemoReport) -> str:
    table = Table("", box=None, pad_edge=False)
    for name in ("messages", "bytes", "checksum", "seconds", "agrees"):
        table.add_column(name, justify="right")
    for row in report.table:
        seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
        agrees = "yes" if row.agrees else "NO"
        table.add_row(
            row.what, f"{row.messages:,}", f"{row.bytes:,}", row.checksum, seconds, agrees
        )
    out = io.StringIO()
    Console(file=out, width=_TABLE_WIDTH, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
