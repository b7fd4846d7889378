"""``quire demo``: a topic on three bookies, one killed, every line read back, all copies healed."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.commands import options
from ledger_client.commands.demo.report import Report
from ledger_client.commands.demo.sample import Sample, choose_sample
from ledger_client.commands.demo.story import BOOKIES, TOPIC, Say, Story
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.interruption import finish
from ledger_client.commands.sandbox import open_sandbox


@click.command()
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--keep", is_flag=True, help="Keep the folder with the bookies' data.")
@options.as_json
def demo(*, file: Path | None, keep: bool, as_json: bool) -> None:
    """Write FILE to a topic on three bookies, kill one meanwhile, read every line back.

    Each line is a message with three copies. FILE is by default a log of this machine, or one
    made up if there is none. The bookies run in a temporary folder; both are gone when the
    command ends.
    """
    say = _keep_silent if as_json else _say
    report = trio.run(finish, partial(_play, file, keep, say))
    click.echo(msgspec.json.encode(report).decode() if as_json else _summary(report))
    if not report.intact:
        raise CommandFailed("what was read is not what was written")


async def _play(file: Path | None, keep: bool, say: Say) -> Report:
    with tempfile.TemporaryDirectory(prefix="quire-demo-") as scratch:
        sample = Sample(file, generated=False) if file else choose_sample(Path(scratch))
        origin = "a log made up for this, since none was found" if sample.generated else "a log"
        say("file", str(file) if file else f"{sample.path}, {origin} (name another if you like)")
        async with open_sandbox(BOOKIES, keep=keep) as sandbox:
            report = await Story(sample, sandbox, say).play()
            report.kept_folder = str(sandbox.folder) if keep else None
    return report


def _say(what: str, text: str) -> None:
    click.echo(f"{what:>10}  {text}")


def _keep_silent(what: str, text: str) -> None:
    pass


def _summary(report: Report) -> str:
    verdict = (
        "Every line that was written was read back once and in order, byte for byte, and all "
        "copies are whole."
        if report.intact
        else "THE LINES READ ARE NOT THE LINES WRITTEN."
    )
    data = report.kept_folder or "./data"
    return f"""
{verdict}
Writing took {report.write_s:.3f} s ({_speed(report, report.write_s)}), reading \
{report.read_s:.3f} s ({_speed(report, report.read_s)}).

Try next:
  bookie standalone --data {data} --bookies {BOOKIES}    three bookies that stay
  quire produce --create {TOPIC} FILE        each line becomes a message
  quire read {TOPIC}                         the same lines again; --follow waits for more
  quire topic explain {TOPIC}                its ledgers, and when each will go
  quire bench produce                           how fast it is on this disk"""


def _speed(report: Report, seconds: float) -> str:
    return f"{report.lines / seconds:,.0f} lines/s, {report.bytes / seconds / 1e6:.1f} MB/s"
