"""``quire demo``: a topic written, hurt, healed, compacted and replayed; every count compared."""

from __future__ import annotations

import io
import tempfile
from functools import partial
from pathlib import Path

import click
import msgspec
import trio
from rich.console import Console
from rich.table import Table

from ledger_client.commands import options
from ledger_client.commands.demo.report import Report
from ledger_client.commands.demo.sample import Sample, choose_sample
from ledger_client.commands.demo.story import BOOKIES, SETTINGS, TOPIC, Say, Story
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.interruption import finish
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.spark.errors import SparkError

_TABLE_WIDTH = 110


@click.command()
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--no-spark", is_flag=True, help="Do without Spark, which needs Java 17 or later.")
@click.option("--keep", is_flag=True, help="Keep the folder with the bookies' data.")
@options.as_json
def demo(*, file: Path | None, no_spark: bool, keep: bool, as_json: bool) -> None:
    """Tell the whole story on this machine, with a file of yours.

    Starts four bookies and writes each line of FILE as a message, three copies each, from
    three producers, while a reader follows. Meanwhile a bookie is killed, its disk is wiped,
    and it is replaced. Then everything is read again, all copies are compared, the topic is
    compacted, replayed into another one, and read by Spark. At the end stands a table in which
    all counts and checksums must agree.

    FILE is by default a log of this machine, or one made up if there is none. Everything is
    in a temporary folder, which is gone when the command ends.
    """
    if not no_spark:
        _check_spark()
    say = _keep_silent if as_json else _say
    report = trio.run(finish, partial(_play, file, keep, not no_spark, say))
    click.echo(msgspec.json.encode(report).decode() if as_json else _summary(report))
    if not report.intact:
        raise CommandFailed("what was read is not what was written")


def _check_spark() -> None:
    # Before anything starts: the story takes a while to come to it.
    from ledger_client.spark.java import check_java
    from ledger_client.spark.session import check_spark

    try:
        check_spark()
        check_java()
    except SparkError as missing:
        raise CommandFailed(f"{missing}; or leave Spark out: `quire demo --no-spark`") from missing


async def _play(file: Path | None, keep: bool, spark: bool, say: Say) -> Report:
    with tempfile.TemporaryDirectory(prefix="quire-demo-") as scratch:
        sample = Sample(file, generated=False) if file else choose_sample(Path(scratch))
        origin = "a log made up for this, since none was found" if sample.generated else "a log"
        say("file", str(file) if file else f"{sample.path}, {origin} (name another if you like)")
        async with open_sandbox(BOOKIES, keep=keep, settings=SETTINGS) as sandbox:
            report = await Story(sample, sandbox, say, spark=spark).play()
            report.kept_folder = str(sandbox.folder) if keep else None
    return report


def _say(what: str, text: str) -> None:
    click.echo(f"{what:>10}  {text}")


def _keep_silent(what: str, text: str) -> None:
    pass


def _summary(report: Report) -> str:
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
  bookie standalone --data {data} --bookies {BOOKIES}    bookies that stay
  quire produce --create {TOPIC} FILE        each line becomes a message
  quire read {TOPIC}                         the same lines again; --follow waits for more
  quire topic explain {TOPIC}                its ledgers, and when each will go
  quire compact {TOPIC}                      the latest message of each key
  quire bench produce                           how fast it is on this disk"""


def _table(report: Report) -> str:
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
