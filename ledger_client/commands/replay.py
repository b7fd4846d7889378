"""``quire replay``: copy a range of topics into a topic, Parquet files, or standard output."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.forms import arrow_stream, json_of, text_of
from ledger_client.commands.options import SizeParam
from ledger_client.commands.outcome import advising, finish
from ledger_client.commands.places import BYS, By, PlaceOrTime, Point, ReadRange, kind_of_time
from ledger_client.commands.progress import show_messages
from ledger_client.commands.streams import put
from ledger_client.commands.tables import count, size
from ledger_client.jobs.replay.log import ReplayProgress, ReplayReport
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.jobs.replay.parquet_target import FILE_SIZE
from ledger_client.jobs.replay.replay import replay_into_stream
from ledger_client.jobs.replay.target import ReplayBatch
from metadata.cluster_options import check_exists
from metadata.replays import Order

if TYPE_CHECKING:
    from ledger_client.jobs.replay.rounds import Workers


class Bound(NamedTuple):
    """A place, and the text it was given by.

    A resumed replay is recognized by the text, as "7d ago" is another moment each time.
    """

    point: Point
    text: str


class _Place(click.ParamType[Bound]):
    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bound:
        """Parse a place, and keep the text that it was given by."""
        if isinstance(value, Bound):
            return value
        return Bound(PlaceOrTime().convert(value, param, ctx), str(value).strip())


def _place(*names: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(*names, type=_Place(), metavar="PLACE", help=text)


class ReplayCourse(msgspec.Struct):
    """How far a run has come, for the message after an interruption."""

    last: ReplayProgress | None = None


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options and arguments of the command line, beside the range."""

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
    starting_cut: str
    ending_cut: str
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
        """True if Spark does the work."""
        return bool(self.use_spark or self.master)

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.to and self.to_parquet:
            raise click.UsageError("--to and --to-parquet exclude each other")
        is_stream = not (self.to or self.to_parquet)
        wrong = {
            "--format applies to standard output only": self.form and not is_stream,
            "--to-cluster, --with-definition, --replication and --keep-ids need --to": (
                not self.to
                and (self.to_cluster or self.with_definition or self.replication or self.keep_ids)
            ),
            "--replication needs --with-definition": (
                self.replication and not self.with_definition
            ),
            "a replay to standard output cannot be resumed or verified: "
            "--name, --restart and --verify need --to or --to-parquet": (
                is_stream and (self.name or self.restart or self.verify)
            ),
            "--spark and --master need --to or --to-parquet": is_stream and self.by_spark,
            "--no-spark and --master exclude each other": self.use_spark is False and self.master,
            "--part-size needs --to and Spark": (
                self.part_size and not (self.to and self.by_spark)
            ),
            "Spark replays at full speed: --speed needs --no-spark": self.by_spark and self.speed,
            "Spark always writes all files anew, one lane beside the other: --name, --restart, "
            "--order and --file-size need --no-spark": (
                self.by_spark
                and self.to_parquet
                and (self.name or self.restart or self.order or self.file_size != FILE_SIZE)
            ),
        }
        for message, holds in wrong.items():
            if holds:
                raise click.UsageError(message)


field = partial(options.field_option, ReplayOptions)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_place("--from", "from_", text="Begin at PLACE.")
@_place("--after", text="Begin right after PLACE.")
@_place("--until", text="End at PLACE.")
@_place("--before", text="End right before PLACE.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time for topics ordered by it, else publish-time",
    help="Kind of the times in PLACE.",
)
@field("starting_cut", "--starting-cut", metavar="NAME", callback=options.not_empty)
@field("ending_cut", "--ending-cut", metavar="NAME", callback=options.not_empty)
@click.option("--to", metavar="TOPIC", help="Write into this topic.")
@click.option(
    "--to-cluster",
    metavar="URL",
    callback=check_exists,
    show_default="the same cluster",
    help="Cluster of that topic.",
)
@click.option(
    "--with-definition",
    is_flag=True,
    help="Create that topic with the settings, partitions, schema and properties of TOPIC.",
)
@click.option(
    "--replication",
    type=click.IntRange(1, 64),
    metavar="COPIES",
    show_default="as in TOPIC",
    help="Copies in the topic that --with-definition creates.",
)
@click.option(
    "--to-parquet",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write Parquet files into this folder.",
)
@click.option(
    "--file-size",
    type=SizeParam(),
    default=FILE_SIZE,
    show_default="256 MiB",
    help="Approximate bytes of values and keys in each Parquet file.",
)
@click.option(
    "--part-size",
    type=SizeParam(),
    default=0,
    show_default="128 MiB, and more for many partitions",
    help="Approximate bytes that one task of Spark writes into a topic.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "arrow"]),
    show_default="text",
    help="Form of standard output: values as lines, a JSON object per line, or an Arrow stream.",
)
@field("order", "--order")
@field("partitions", "--partition", "partitions", metavar="INDEX")
@field("lanes", "--lane", "lanes", type=click.IntRange(0), metavar="NUMBER")
@field("speed", "--speed", type=click.FloatRange(0), metavar="FACTOR")
@click.option(
    "--skip-gaps", is_flag=True, help="Skip messages that were removed, instead of failing."
)
@field("keep_ids", "--keep-ids")
@field("verify", "--verify")
@field("name", "--name", metavar="TEXT")
@field("restart", "--restart")
@click.option("--spark/--no-spark", "use_spark", default=None, help="Run the replay in Spark.")
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[2], spark://HOST:7077; implies --spark.",
)
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
    **request: object,  # the fields of ReplayRequest
) -> None:
    """Copy a range of TOPIC to a topic, Parquet or standard output.

    See `quire read --help` for PLACE. The range is fixed when the replay begins. A replay into
    a topic or Parquet files may be interrupted: the same command resumes it, and each message
    arrives exactly once. With Spark, each task copies a part of the range; Spark resumes
    replays into topics, and writes Parquet files from scratch.
    """
    if (from_ and after) or (until and before):
        raise click.UsageError("--from and --after, --until and --before exclude each other")
    wanted = msgspec.convert(request, ReplayRequest, dec_hook=lambda _kind, value: value)
    wanted.check()
    begin, end = from_ or after, until or before
    span = ReadRange(begin and begin.point, after is None, end and end.point, before is None, by)
    words = {"from": from_, "after": after, "until": until, "before": before}
    parts = [f"{word} {bound.text}" for word, bound in words.items() if bound is not None]
    parts += [f"by {by}"] if by else []
    parts += [f"starting cut {wanted.starting_cut}"] if wanted.starting_cut else []
    parts += [f"ending cut {wanted.ending_cut}"] if wanted.ending_cut else []
    parts += [f"partition {index}" for index in wanted.partitions]
    parts += [f"lane {number}" for number in wanted.lanes]
    text = ", ".join(parts) or "everything"
    course = ReplayCourse()
    to_files = wanted.by_spark and wanted.to_parquet
    run = _parquet_by_spark if to_files else partial(_replay, course)
    try:
        with advising("run it without Spark: leave out --spark and --master"):
            report = trio.run(finish, partial(run, topics, span, text, wanted))
    except click.Abort:
        _show_interrupted(course, wanted)
        raise
    _show(report, wanted)


async def _replay(
    course: ReplayCourse,
    topics: tuple[str, ...],
    span: ReadRange,
    text: str,
    request: ReplayRequest,
) -> ReplayReport:
    async with connect(request.cluster) as client:
        with show_messages(f"replaying {', '.join(topics)}") as advance:

            def on_progress(progress: ReplayProgress) -> None:
                course.last = progress
                advance(progress.messages, progress.entries, progress.entries_total)

            how = await _options(client, topics, span, text, request)
            if request.to is None and request.to_parquet is None:
                return await write_stream(client, topics, how, request.form or "text")
            how = msgspec.structs.replace(how, on_progress=on_progress)
            if request.to_parquet is not None:
                from ledger_client.jobs.replay.replay import replay_into_parquet

                return await replay_into_parquet(
                    client._context, topics, request.to_parquet, how, file_size=request.file_size
                )
            async with _workers(request) as workers:
                return await _into_topic(client, topics, how, request, workers)


async def _into_topic(
    client: Client,
    topics: tuple[str, ...],
    how: ReplayOptions,
    request: ReplayRequest,
    workers: Workers | None,
) -> ReplayReport:
    from ledger_client.jobs.replay.replay import replay_into_topic

    assert request.to is not None
    into = partial(
        replay_into_topic,
        client._context,
        topics,
        request.to,
        how,
        replication=request.replication,
        workers=workers,
        part_size=request.part_size,
    )
    if request.to_cluster is None or request.to_cluster == request.cluster:
        return await into(create=client.topics.create if request.with_definition else None)
    async with connect(request.to_cluster) as target:
        create = target.topics.create if request.with_definition else None
        return await into(target=target._context, cluster=request.to_cluster, create=create)


@asynccontextmanager
async def _workers(request: ReplayRequest) -> AsyncIterator[Workers | None]:
    """Provide Spark's workers for the block, if the request asks for Spark."""
    if not request.by_spark:
        yield None
        return
    from ledger_client.spark.replay import spark_workers  # imports PySpark

    elsewhere = request.to_cluster if request.to_cluster != request.cluster else None
    master = request.master or "local[*]"
    async with spark_workers(request.cluster, target_url=elsewhere, master=master) as workers:
        yield workers


async def _parquet_by_spark(
    topics: tuple[str, ...], span: ReadRange, text: str, request: ReplayRequest
) -> ReplayReport:
    from ledger_client.spark.replay import replay_by_spark  # imports PySpark

    assert request.to_parquet is not None
    async with connect(request.cluster) as client:
        how = await _options(client, topics, span, text, request)
        master = request.master or "local[*]"
        return await replay_by_spark(
            client._context, request.cluster, topics, request.to_parquet, how, master=master
        )


async def _options(
    client: Client, topics: tuple[str, ...], span: ReadRange, text: str, request: ReplayRequest
) -> ReplayOptions:
    by = span.by or await kind_of_time(client.topics.info, topics, span)
    settings = span.settings(by)
    return ReplayOptions(
        start=settings.get("start"),
        inclusive=settings["inclusive"],
        end=settings.get("end"),
        end_inclusive=settings["end_inclusive"],
        starting_cut=request.starting_cut,
        ending_cut=request.ending_cut,
        partitions=request.partitions or None,
        lanes=request.lanes or None,
        on_gap="skip" if request.skip_gaps else "raise",
        order=request.order,
        speed=request.speed,
        name=request.name,
        restart=request.restart,
        keep_ids=request.keep_ids,
        verify=request.verify,
        range_text=text,
    )


def _show_interrupted(course: ReplayCourse, request: ReplayRequest) -> None:
    """Report what is stored and how to resume; Spark's files and streams cannot be resumed."""
    if not request.to and (request.by_spark or not request.to_parquet):
        return
    if course.last is None or course.last.kept == 0:
        next_ = "starts over" if request.restart else "resumes"
        text = f"interrupted before anything more was stored; the same command {next_}"
    else:
        kept = count(course.last.kept, "message")
        where = f"topic {request.to}" if request.to else f"folder {request.to_parquet}"
        same = "the same command without --restart" if request.restart else "the same command"
        has = f"{where} has at least {kept} of the replay"
        text = f"interrupted; {has}, and {same} resumes after them"
    click.echo(text, err=True)


def _show(report: ReplayReport, request: ReplayRequest) -> None:
    is_stream = not (request.to or request.to_parquet)
    if request.as_json:
        text = msgspec.json.encode(report).decode()
        click.echo(text, err=is_stream)
        return
    checked = ", read back and compared" if report.verified else ""
    if report.finished_before:
        click.echo(
            f"replay {report.name} was done before: {count(report.messages, 'message')} in "
            f"{report.target}{checked}; --restart repeats it",
            err=True,
        )
        return
    before = f", {report.resumed:,} of them by earlier runs" if report.resumed else ""
    known = f", {report.repeated:,} were stored already" if report.repeated else ""
    click.echo(
        f"{count(report.messages, 'message')}, {size(report.bytes)} replayed into "
        f"{report.target}{before}{known}{checked}; checksum {report.checksum}",
        err=is_stream,
    )


# --- A replay to standard output --------------------------------------------------------


FormName = Literal["text", "json", "arrow"]


async def write_stream(
    client: Client, topics: Sequence[str], how: ReplayOptions, form: FormName
) -> ReplayReport:
    """Print the messages and return the report. Raises as replay_into_stream()."""
    if form == "arrow":
        if sys.stdout.isatty():
            raise click.UsageError("an Arrow stream is binary: redirect it to a file")
        async with arrow_stream(put) as write_batch:

            async def write_part(part: ReplayBatch) -> None:
                await write_batch(part.batch)

            return await replay_into_stream(
                client._context, topics, write_part, how, as_objects=False
            )
    encode = text_of if form == "text" else json_of

    async def write(part: ReplayBatch) -> None:
        await put(encode(part.messages))

    return await replay_into_stream(client._context, topics, write, how, as_objects=True)
