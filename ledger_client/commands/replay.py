"""``quire replay``: a range of topics into a topic, Parquet files, or standard output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec
import trio

import ledger_client
from ledger_client import Client
from ledger_client.commands import options
from ledger_client.commands.errors import Interrupted
from ledger_client.commands.interruption import finish
from ledger_client.commands.messages import BYS, By, PlaceOrTime, Point, Span, kind_of_time
from ledger_client.commands.progress import show_messages
from ledger_client.commands.quantity import count, size
from ledger_client.commands.replay_stream import write_stream
from ledger_client.commands.size import Size
from ledger_client.commands.spark_advice import advising
from ledger_client.replay.options import ORDERS, ReplayOptions
from ledger_client.replay.parquet_target import FILE_SIZE
from ledger_client.replay.report import Progress, Report
from metadata.replays import Order

if TYPE_CHECKING:
    from ledger_client.replay.rounds import Workers


class Bound(NamedTuple):
    """A place, and how it was written: what is so long ago is so when a replay begins."""

    point: Point
    text: str


class _Place(click.ParamType[Bound]):
    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bound:
        """Return the place that *value* names."""
        if isinstance(value, Bound):
            return value
        return Bound(PlaceOrTime().convert(value, param, ctx), str(value).strip())


def _place(*names: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(*names, type=_Place(), metavar="PLACE", help=text)


class Course(msgspec.Struct):
    """How far a run is, for whoever interrupts it."""

    last: Progress | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for, beside the range."""

    cluster: str
    to: str | None
    to_cluster: str | None
    to_parquet: Path | None
    file_size: int
    part_size: int
    with_definition: bool
    replication: int | None
    form: Literal["text", "json", "arrow"] | None
    order: Order | None
    partitions: tuple[int, ...]
    lanes: tuple[int, ...]
    speed: float
    skip_gaps: bool
    keep_ids: bool
    verify: bool
    name: str
    restart: bool
    master: str | None
    use_spark: bool | None
    as_json: bool

    @property
    def by_spark(self) -> bool:
        """Whether Spark does it."""
        return bool(self.use_spark or self.master)

    def check(self) -> None:
        """Raise UsageError for what does not go together."""
        if self.to and self.to_parquet:
            raise click.UsageError("--to and --to-parquet exclude each other")
        is_stream = not (self.to or self.to_parquet)
        wrong = {
            "--format is for standard output": self.form and not is_stream,
            "--to-cluster, --with-definition, --replication and --keep-ids are for --to": (
                not self.to
                and (self.to_cluster or self.with_definition or self.replication or self.keep_ids)
            ),
            "--replication is for the topic that --with-definition makes": (
                self.replication and not self.with_definition
            ),
            "what goes to standard output is not kept, and so not resumed nor verified: "
            "--name, --restart and --verify are for --to and --to-parquet": (
                is_stream and (self.name or self.restart or self.verify)
            ),
            "--spark and --master are for --to and --to-parquet": is_stream and self.by_spark,
            "--no-spark and --master exclude each other": self.use_spark is False and self.master,
            "--part-size is for --to by Spark": (
                self.part_size and not (self.to and self.by_spark)
            ),
            "Spark replays at full speed: --speed is for --no-spark": self.by_spark and self.speed,
            "Spark writes all files anew, lanes side by side: --name, --restart, --order and "
            "--file-size are for --no-spark": (
                self.by_spark
                and self.to_parquet
                and (self.name or self.restart or self.order or self.file_size != FILE_SIZE)
            ),
        }
        for message, holds in wrong.items():
            if holds:
                raise click.UsageError(message)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_place("--from", "from_", text="Begin with it.")
@_place("--after", text="Begin behind it.")
@_place("--until", text="End with it.")
@_place("--before", text="End in front of it.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time where topics are ordered by it, else publish-time",
    help="What times in PLACE mean.",
)
@click.option("--to", metavar="TOPIC", help="Into this topic.")
@click.option(
    "--to-cluster", metavar="URL", show_default="the same cluster", help="Where that topic is."
)
@click.option(
    "--with-definition",
    is_flag=True,
    help="Make that topic like the one that is replayed: settings, partitions, schema, properties.",
)
@click.option(
    "--replication",
    type=click.IntRange(1, 64),
    metavar="COPIES",
    show_default="as there",
    help="Of the topic that is made.",
)
@click.option(
    "--to-parquet",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Into Parquet files in this folder.",
)
@click.option(
    "--file-size",
    type=Size(),
    default=FILE_SIZE,
    show_default="256 MiB",
    help="Values and keys in each Parquet file, about.",
)
@click.option(
    "--part-size",
    type=Size(),
    default=0,
    show_default="128 MiB, and more for many partitions",
    help="By Spark into a topic: what a task does, about.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "arrow"]),
    show_default="text",
    help="Of standard output: values as lines, JSON objects as lines, an Arrow IPC stream.",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    show_default="event-time where topics are ordered by it, else time",
    help="How lanes are merged: by event time, by timestamp or publish time, or entries in turn.",
)
@click.option("--partition", "partitions", type=int, multiple=True, metavar="INDEX")
@click.option("--lane", "lanes", type=click.IntRange(0), multiple=True, metavar="NUMBER")
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=0.0,
    show_default="0: full speed",
    metavar="FACTOR",
    help="1: as far apart as the messages were; 10: ten times as fast.",
)
@click.option("--skip-gaps", is_flag=True, help="Take what is left where messages were removed.")
@click.option("--keep-ids", is_flag=True, help="Tell in headers which id and publish time it had.")
@click.option("--verify", is_flag=True, help="Read the target back and compare checksums.")
@click.option("--name", default="", metavar="TEXT", help="Of the replay, to resume it by.")
@click.option("--restart", is_flag=True, help="Begin anew what was begun or done.")
@click.option("--spark/--no-spark", "use_spark", default=None, help="Let Spark do it.")
@click.option("--master", metavar="URL", help="Of Spark, as local[2] or spark://host:7077.")
@options.cluster
@options.as_json
def replay(
    *,
    topics: tuple[str, ...],
    from_: Bound | None,
    after: Bound | None,
    until: Bound | None,
    before: Bound | None,
    by: By | None,
    **asked: Any,  # noqa: ANN401 - click's values; Asked says which
) -> None:
    """Replay a range of TOPIC: into another topic, Parquet files, or standard output.

    PLACE is that of `quire read`. The range is fixed when the replay begins. Into a topic or
    Parquet it may be interrupted: the same command goes on where it was, and each message is
    there once. Spark (--master) does the same into a topic, part by part, each part in a task;
    Parquet files it begins anew.
    """
    if (from_ and after) or (until and before):
        raise click.UsageError("--from and --after, --until and --before exclude each other")
    wanted = msgspec.convert(asked, Asked, dec_hook=lambda _kind, value: value)
    wanted.check()
    begin, end = from_ or after, until or before
    span = Span(begin and begin.point, after is None, end and end.point, before is None, by)
    words = {"from": from_, "after": after, "until": until, "before": before}
    parts = [f"{word} {bound.text}" for word, bound in words.items() if bound is not None]
    parts += [f"by {by}"] if by else []
    parts += [f"partition {index}" for index in wanted.partitions]
    parts += [f"lane {number}" for number in wanted.lanes]
    text = ", ".join(parts) or "everything"
    course = Course()
    to_files = wanted.by_spark and wanted.to_parquet
    run = _parquet_by_spark if to_files else partial(_replay, course)
    try:
        with advising("do it without Spark: leave out --spark and --master"):
            report = trio.run(finish, partial(run, topics, span, text, wanted))
    except Interrupted:
        _tell_interrupted(course, wanted)
        raise
    _tell(report, wanted)


async def _replay(
    course: Course, topics: tuple[str, ...], span: Span, text: str, asked: Asked
) -> Report:
    async with ledger_client.connect(asked.cluster) as client:
        with show_messages() as tell:

            def on_progress(progress: Progress) -> None:
                course.last = progress
                tell(progress.messages, progress.entries, progress.entries_total)

            how = await _options(client, topics, span, text, asked)
            if asked.to is None and asked.to_parquet is None:
                return await write_stream(client, topics, how, asked.form or "text")
            how = msgspec.structs.replace(how, on_progress=on_progress)
            if asked.to_parquet is not None:
                from ledger_client.replay.into_parquet import replay_into_parquet

                return await replay_into_parquet(
                    client, topics, asked.to_parquet, how, file_size=asked.file_size
                )
            async with _workers(asked) as workers:
                return await _into_topic(client, topics, how, asked, workers)


async def _into_topic(
    client: Client,
    topics: tuple[str, ...],
    how: ReplayOptions,
    asked: Asked,
    workers: Workers | None,
) -> Report:
    from ledger_client.replay.into_topic import replay_into_topic

    assert asked.to is not None
    into = partial(
        replay_into_topic,
        client,
        topics,
        asked.to,
        how,
        with_definition=asked.with_definition,
        replication=asked.replication,
        workers=workers,
        part_size=asked.part_size,
    )
    if asked.to_cluster is None or asked.to_cluster == asked.cluster:
        return await into()
    async with ledger_client.connect(asked.to_cluster) as target:
        return await into(target=target, cluster=asked.to_cluster)


@asynccontextmanager
async def _workers(asked: Asked) -> AsyncIterator[Workers | None]:
    """Lend Spark's workers for the block, if Spark is asked for."""
    if not asked.by_spark:
        yield None
        return
    from ledger_client.spark.replay_workers import spark_workers  # PySpark only for who uses it

    elsewhere = asked.to_cluster if asked.to_cluster != asked.cluster else None
    master = asked.master or "local[*]"
    async with spark_workers(asked.cluster, target_url=elsewhere, master=master) as workers:
        yield workers


async def _parquet_by_spark(topics: tuple[str, ...], span: Span, text: str, asked: Asked) -> Report:
    from ledger_client.spark.replay import replay_by_spark  # PySpark only for who uses it

    assert asked.to_parquet is not None
    async with ledger_client.connect(asked.cluster) as client:
        how = await _options(client, topics, span, text, asked)
        master = asked.master or "local[*]"
        return await replay_by_spark(
            client, asked.cluster, topics, asked.to_parquet, how, master=master
        )


async def _options(
    client: Client, topics: tuple[str, ...], span: Span, text: str, asked: Asked
) -> ReplayOptions:
    by = span.by or await kind_of_time(client, topics, span)
    settings = span.settings(by)
    return ReplayOptions(
        start=settings.get("start"),
        inclusive=settings["inclusive"],
        end=settings.get("end"),
        end_inclusive=settings["end_inclusive"],
        partitions=asked.partitions or None,
        lanes=asked.lanes or None,
        on_gap="skip" if asked.skip_gaps else "raise",
        order=asked.order,
        speed=asked.speed,
        name=asked.name,
        restart=asked.restart,
        keep_ids=asked.keep_ids,
        verify=asked.verify,
        asked=text,
    )


def _tell_interrupted(course: Course, asked: Asked) -> None:
    """Say what is there and how to go on, unless nothing is kept: Spark's files, or a stream."""
    if not asked.to and (asked.by_spark or not asked.to_parquet):
        return
    if course.last is None or course.last.kept == 0:
        next_ = "begins anew" if asked.restart else "goes on where it was"
        told = f"interrupted before anything more was kept; the same command {next_}"
    else:
        kept = count(course.last.kept, "message")
        where = f"topic {asked.to}" if asked.to else f"folder {asked.to_parquet}"
        same = "the same command without --restart" if asked.restart else "the same command"
        has = f"{where} has at least {kept} of the replay"
        told = f"interrupted; {has}, and {same} goes on behind them"
    click.echo(told, err=True)


def _tell(report: Report, asked: Asked) -> None:
    is_stream = not (asked.to or asked.to_parquet)
    if asked.as_json:
        told = msgspec.json.encode(report).decode()
        click.echo(told, err=is_stream)
        return
    checked = ", read back and compared" if report.verified else ""
    if report.finished_before:
        click.echo(
            f"replay {report.name} was done before: {count(report.messages, 'message')} in "
            f"{report.target}{checked}; --restart begins it anew",
            err=True,
        )
        return
    before = f", {report.resumed:,} of them by former runs" if report.resumed else ""
    known = f", {report.repeated:,} were there already" if report.repeated else ""
    click.echo(
        f"{count(report.messages, 'message')}, {size(report.bytes)} replayed into "
        f"{report.target}{before}{known}{checked}; checksum {report.checksum}",
        err=is_stream,
    )
