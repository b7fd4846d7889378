"""``quire read``: print the messages of topics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Unpack

import click
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.forms import FORMS, MessageFields
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.outcome import finish
from ledger_client.commands.places import BYS, By, PlaceOrTime, Point, ReadRange, kind_of_time
from ledger_client.commands.streams import put
from ledger_client.topics.reading.options import ReadOptions, ReadSettings


def _place(*names: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(*names, type=PlaceOrTime(), metavar="PLACE", help=text)


field = partial(options.field_option, ReadOptions)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_place("--from", "from_", text="Begin at PLACE.")
@_place("--after", text="Begin right after PLACE.")
@_place("--to", text="End at PLACE.")
@_place("--before", text="End right before PLACE.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time for topics ordered by it, else publish-time",
    help="Kind of the times in PLACE.",
)
@field("follow", "-f", "--follow")
@field("reverse", "--reverse")
@field("partitions", "--partition", "partitions", metavar="INDEX")
@field("lanes", "--lane", "lanes", metavar="NUMBER|NAME")
@field("order", "--order")
@field("compacted", "--compacted")
@click.option(
    "--limit", type=click.IntRange(1), metavar="COUNT", help="Stop after this many messages."
)
@click.option(
    "--skip-gaps", is_flag=True, help="Skip messages that were removed, instead of failing."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    show_default="text",
    help="Values as lines, a JSON object per line, or an Arrow IPC stream.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
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
    **settings: Unpack[ReadSettings],
) -> None:
    """Print the messages of TOPIC, from first to last.

    PLACE is earliest, latest, the id of a message (ledger:entry:partition:batch), or a time: a
    date and time (UTC unless it has an offset), nanoseconds since 1970, or a duration such as
    15min for that long ago. A time stands for the first message at that time or later.
    With --reverse, reading goes from --from back to --to.

    For topics with an Avro or protobuf schema, JSON objects include the decoded "fields", and
    an Arrow stream has a column for each. A value that does not fit the schema yields null.
    """
    if (from_ and after) or (to and before):
        raise click.UsageError("--from and --after, --to and --before exclude each other")
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = form or ("json" if as_json else "text")
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is binary: redirect it to a file")
    span = ReadRange(from_ or after, after is None, to or before, before is None, by)
    settings["on_gap"] = "skip" if skip_gaps else "raise"
    settings["partitions"] = settings["partitions"] or None
    lanes = settings["lanes"] or ()
    settings["lanes"] = [int(lane) if str(lane).isdecimal() else lane for lane in lanes] or None
    request = ReadRequest(cluster, topics, span, form, limit, metrics_port)
    trio.run(finish, partial(_read, request, settings))


class ReadRequest(NamedTuple):
    """The options and arguments of the command line, apart from the reader's settings."""

    cluster: str
    topics: tuple[str, ...]
    span: ReadRange
    form: str
    limit: int | None
    metrics_port: int


async def _read(order: ReadRequest, settings: ReadSettings) -> None:
    topics, span = order.topics, order.span
    async with (
        connect(order.cluster) as client,
        metrics_page(lambda: client.metrics, order.metrics_port),
    ):
        by = span.by or await kind_of_time(client.topics.info, topics, span)
        settings |= span.settings(by)
        async with client.reader(topics, **settings) as reader:
            decoded = () if order.form == "text" else topics
            fields = MessageFields([await client.topics.info(name) for name in decoded])
            await FORMS[order.form](reader, order.limit, put, fields)
            for gap in reader.gaps:
                click.echo(f"quire: {gap}", err=True)
