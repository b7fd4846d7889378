"""``quire read``: messages of topics to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import click
import trio

import ledger_client
from ledger_client import Client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.message_fields import MessageFields
from ledger_client.commands.message_forms import FORMS
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.moment import Moment
from ledger_client.commands.output import put
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.reading.read_options import ReadSettings
from ledger_client.topics.reading.starting import Start
from ledger_client.topics.reading.times import EventTime, PublishTime, Timestamp

By = Literal["event-time", "publish-time", "timestamp"]
BYS: tuple[By, ...] = ("event-time", "publish-time", "timestamp")
NS_PER_MS = 1_000_000


class Point(NamedTuple):
    """A place, or a *number* whose kind --by tells."""

    start: Literal["earliest", "latest"] | MessageId | None = None
    number: int = 0

    def at(self, by: By) -> Start:
        """Return the place, a number being a time of the kind *by*."""
        if self.start is not None:
            return self.start
        if by == "event-time":
            return EventTime(self.number)
        if by == "timestamp":
            return Timestamp(self.number)
        return PublishTime(-(-self.number // NS_PER_MS))


class PlaceOrTime(click.ParamType[Point]):
    """earliest, latest, the id of a message, or a time."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Point:
        """Return the place or time that *value* names."""
        if isinstance(value, Point):
            return value
        text = str(value).strip()
        if text in {"earliest", "latest"}:
            return Point("earliest" if text == "earliest" else "latest")
        if text.isascii() and text.isdigit():
            return Point(number=int(text))
        try:
            return Point(MessageId.parse(text))
        except ValueError:
            pass
        try:
            return Point(number=Moment().convert(text, param, ctx))
        except click.UsageError:
            told = "write earliest, latest, an id as 7:2:-1:0, a time as 2024-05-01T12:00Z, or 7d"
            self.fail(f"{value!r} is no place; {told}", param, ctx)


def _place(*names: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(*names, type=PlaceOrTime(), metavar="PLACE", help=text)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_place("--from", "from_", text="Begin with it.")
@_place("--after", text="Begin behind it.")
@_place("--to", text="End with it.")
@_place("--before", text="End in front of it.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time where topics are ordered by it, else publish-time",
    help="What times in PLACE mean.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more.")
@click.option("--reverse", is_flag=True, help="The last message first.")
@click.option("--partition", "partitions", type=int, multiple=True, metavar="INDEX")
@click.option("--lane", "lanes", multiple=True, metavar="NUMBER|NAME")
@click.option(
    "--order",
    type=click.Choice(["arrival", "event-time"]),
    default="arrival",
    show_default=True,
    help="As messages come, or all merged by event time.",
)
@click.option(
    "--compacted",
    is_flag=True,
    help="Of what was compacted only the latest message of each key; then all that came later.",
)
@click.option("--limit", type=click.IntRange(1), metavar="COUNT", help="At most so many messages.")
@click.option("--skip-gaps", is_flag=True, help="Go on where messages were removed.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    show_default="text",
    help="Values as lines, JSON objects as lines, or an Arrow IPC stream.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@metrics_port
@options.cluster
def read(
    *,
    topics: tuple[str, ...],
    from_: Point | None,
    after: Point | None,
    to: Point | None,
    before: Point | None,
    by: By | None,
    limit: int | None,
    skip_gaps: bool,
    form: str | None,
    as_json: bool,
    metrics_port: int,
    cluster: str,
    **asked: Any,  # noqa: ANN401 - follow, reverse, partitions, lanes, order, compacted
) -> None:
    """Write the messages of TOPIC to standard output, from first to last.

    PLACE is earliest, latest, the id of a message (ledger:entry:partition:batch), or a time: a
    date and time (UTC without an offset), a number, or how long ago: 15min. A time stands for
    the first message of that time or later. With --reverse, reading goes from --from back to
    --to. Ends with Ctrl-C, and when nobody reads the output any more.

    Of topics with an Avro or protobuf schema, JSON objects have the decoded "fields", and an
    Arrow stream has a column for each. They are null where a value is not what the schema says.
    """
    if (from_ and after) or (to and before):
        raise click.UsageError("--from and --after, --to and --before exclude each other")
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = form or ("json" if as_json else "text")
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is nothing for a terminal: send it to a file")
    span = Span(from_ or after, after is None, to or before, before is None, by)
    settings: ReadSettings = {
        "on_gap": "skip" if skip_gaps else "raise",
        "follow": asked["follow"],
        "reverse": asked["reverse"],
        "order": asked["order"],
        "partitions": asked["partitions"] or None,
        "lanes": [int(lane) if lane.isdecimal() else lane for lane in asked["lanes"]] or None,
        "compacted": asked["compacted"],
    }
    order = Order(cluster, topics, span, form, limit, metrics_port)
    trio.run(finish, partial(_read, order, settings))


class Span(NamedTuple):
    """From where to where."""

    start: Point | None
    inclusive: bool
    end: Point | None
    end_inclusive: bool
    by: By | None

    @property
    def has_time(self) -> bool:
        """Whether somebody must know what times mean."""
        return any(point and point.start is None for point in (self.start, self.end))

    def settings(self, by: By) -> ReadSettings:
        """Return what the reader is told, times being of the kind *by*."""
        return {
            "start": self.start and self.start.at(by),
            "inclusive": self.inclusive,
            "end": self.end and self.end.at(by),
            "end_inclusive": self.end_inclusive,
        }


class Order(NamedTuple):
    """What the command line asks for, beside what readers are told."""

    cluster: str
    topics: tuple[str, ...]
    span: Span
    form: str
    limit: int | None
    metrics_port: int


async def _read(order: Order, settings: ReadSettings) -> None:
    topics, span = order.topics, order.span
    async with (
        ledger_client.connect(order.cluster) as client,
        metrics_page(client, order.metrics_port),
    ):
        by = span.by or await kind_of_time(client, topics, span)
        settings |= span.settings(by)
        async with client.topic_reader(topics, **settings) as reader:
            decoded = () if order.form == "text" else topics
            fields = MessageFields([await client.topic(name) for name in decoded])
            await FORMS[order.form](reader, order.limit, put, fields)
            for gap in reader.gaps:
                click.echo(f"quire: {gap}", err=True)


async def kind_of_time(client: Client, topics: tuple[str, ...], span: Span) -> By:
    """Return what a time in *span* means when nothing says so."""
    if not span.has_time:
        return "publish-time"
    records = [await client.topic(name) for name in topics]
    ordered = all(record.order == "event-time" for record in records)
    return "event-time" if ordered else "publish-time"
