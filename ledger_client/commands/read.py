"""``quire read``: print the messages of topics."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click
import trio
from click.core import ParameterSource

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.forms import FORMS, MessageFields, form_of, json_of, text_of
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.options import Ago
from ledger_client.commands.outcome import finish
from ledger_client.commands.patience import Patience
from ledger_client.commands.places import (
    BYS,
    By,
    MomentOfRead,
    PlaceOrTime,
    Point,
    ReadRange,
    kind_of_time,
    timestamp_of,
)
from ledger_client.commands.streams import put
from ledger_client.commands.templates import Template
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.options import ReadOptions, ReadSettings
from ledger_client.topics.reading.reader import TopicReader
from ledger_client.topics.times import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa


def _place(*names: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(*names, type=PlaceOrTime(), metavar="PLACE", help=text)


class FormParam(click.ParamType[str | Template]):
    """The name of a form, or a template with a percent sign in it."""

    name = "form"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | Template:
        """Parse a form."""
        if isinstance(value, Template):
            return value
        text = str(value)
        if text in FORMS:
            return text
        if "%" not in text:
            self.fail(f"{text!r} is not {', '.join(FORMS)} or a template with %v", param, ctx)
        try:
            return Template(text)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


field = partial(options.field_option, ReadOptions)

_NOT_WITH_LATEST = frozenset(
    {
        "--from",
        "--after",
        "--to",
        "--before",
        "--by",
        "--starting-cut",
        "--ending-cut",
        "--follow",
        "--reverse",
        "--lane",
        "--compacted",
    }
)


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
@field("starting_cut", "--starting-cut", metavar="NAME", callback=options.not_empty)
@field("ending_cut", "--ending-cut", metavar="NAME", callback=options.not_empty)
@field("follow", "-f", "--follow")
@field("reverse", "--reverse")
@field("partitions", "--partition", "partitions", metavar="INDEX")
@field(
    "lanes",
    "--lane",
    "lanes",
    metavar="NUMBER|NAME",
    help=options.field_text(ReadOptions, "lanes") + " =1 is the lane with the name 1.",
)
@field("order", "--order")
@field("compacted", "--compacted")
@click.option(
    "--as-of",
    "moment",
    type=MomentOfRead(),
    metavar="TIME",
    help="Print no message later than TIME; a number is a timestamp of quire tso get.",
)
@field("consistency", "--consistency")
@field("staleness_s", "--staleness", "staleness_s")
@click.option(
    "--latest",
    is_flag=True,
    help="Print only the latest message of each key, without keys that were deleted.",
)
@click.option(
    "--limit", type=click.IntRange(1), metavar="COUNT", help="Stop after this many messages."
)
@click.option(
    "--skip-gaps", is_flag=True, help="Skip messages that were removed, instead of failing."
)
@click.option(
    "--format",
    "form",
    type=FormParam(),
    show_default="text",
    metavar="text|json|arrow|TEMPLATE",
    help="Values as lines, a JSON object per line, an Arrow IPC stream, or a template such as "
    "'%k %v %t %i\\n'.",
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
    moment: Timestamp | Ago | None,
    latest: bool,
    limit: int | None,
    skip_gaps: bool,
    form: str | Template | None,
    as_json: bool,
    metrics_port: int,
    cluster: str,
    **settings: Unpack[ReadSettings],
) -> None:
    r"""Print the messages of TOPIC, from first to last.

    PLACE is earliest, latest, the id of a message (ledger:entry:partition:batch), a position as
    Position.to_json() writes it, or a time: a date and time (UTC unless it has an offset),
    nanoseconds since 1970, or a duration such as 15min for that long ago; a number with --by
    timestamp is one that quire tso get prints. A time stands for the first message at that time or
    later.
    With --reverse, reading goes from --from back to --to.

    --as-of, --consistency and --latest show topics with timesync as they are at a moment, in the
    order of timestamps.

    For topics with an Avro or protobuf schema, JSON objects include the decoded "fields", and
    an Arrow stream has a column for each. A value that does not fit the schema yields null.

    In a template, as in kcat's, %v is the value and %S its size, %k the key and %K its size,
    %t the topic, %p the partition, %l the lane, %i the id, %T the publish time in ms, %e the event
    time in ns, %h the headers; \n, \t and \xHH are bytes. Nothing is added, so end it with \n. Null
    is printed as NULL and has the size -1; an empty value is printed as nothing.
    """
    if (from_ and after) or (to and before):
        raise click.UsageError("--from and --after, --to and --before exclude each other")
    if as_json and form not in {None, "json"}:
        raise click.UsageError("--json and --format exclude each other")
    form = form or ("json" if as_json else "text")
    if latest and (len(topics) > 1 or form == "arrow"):
        raise click.UsageError(
            "--latest shows one topic as it is at a moment, as text, JSON or by a template"
        )
    consistency = settings["consistency"]
    _check_given(
        latest=latest,
        by_moment=moment is not None or consistency is not None,
        is_bounded=consistency == "bounded",
    )
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is binary: redirect it to a file")
    span = ReadRange(from_ or after, after is None, to or before, before is None, by)
    settings["on_gap"] = "skip" if skip_gaps else "raise"
    settings["partitions"] = settings["partitions"] or None
    if moment is not None or consistency is not None:
        settings["order"] = "timestamp"
    settings["lanes"] = [_lane(str(each)) for each in settings["lanes"] or ()] or None
    request = ReadRequest(cluster, topics, span, moment, form, limit, metrics_port)
    trio.run(finish, partial(_show_latest if latest else _read, request, settings))


def _lane(text: str) -> int | str:
    """Return the number or the name of a lane; =NAME is one that may look like a number."""
    if text.startswith("="):
        return text[1:]
    return int(text) if text.isascii() and text.isdigit() else text


def _check_given(*, latest: bool, by_moment: bool, is_bounded: bool) -> None:
    """Raise UsageError for options on the command line that would have no effect."""
    context = click.get_current_context()
    given = {
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    if latest and (idle := sorted(given & _NOT_WITH_LATEST)):
        raise click.UsageError(f"--latest shows a topic as it is at a moment, without {idle[0]}")
    is_other = "--order" in given and context.params["order"] != "timestamp"
    if (latest or by_moment) and is_other:
        raise click.UsageError("--as-of, --consistency and --latest need --order timestamp")
    if "--staleness" in given and not is_bounded:
        raise click.UsageError("--staleness is for --consistency bounded")


class ReadRequest(NamedTuple):
    """The options and arguments of the command line, apart from the reader's settings."""

    cluster: str
    topics: tuple[str, ...]
    span: ReadRange
    moment: Timestamp | Ago | None
    form: str | Template
    limit: int | None
    metrics_port: int


async def _read(order: ReadRequest, settings: ReadSettings) -> None:
    topics, span = order.topics, order.span
    async with (
        connect(order.cluster) as client,
        metrics_page(lambda: client.metrics, order.metrics_port),
    ):
        patience = _patience(topics)
        async with AsyncExitStack() as stack:
            with patience.waiting():
                by = span.by or await kind_of_time(client.topics.info, topics, span)
                settings |= span.settings(by)
                settings["as_of"] = await timestamp_of(client, order.moment)
                reader = await stack.enter_async_context(client.reader(topics, **settings))
                decoded = topics if order.form in {"json", "arrow"} else ()
                fields = MessageFields([await client.topics.info(name) for name in decoded])
            show = form_of(order.form)
            explained = Explained(reader, patience, follows=settings["follow"])
            await show(explained, order.limit, put, fields)
            for gap in reader.gaps:
                click.echo(f"quire: {gap}", err=True)


def _patience(topics: tuple[str, ...]) -> Patience:
    return Patience(
        f"waiting for messages of {', '.join(topics)}; `quire cluster status` shows bookies that "
        "are down"
    )


class Explained:
    """A reader whose long waits are explained on stderr, unless it follows: then they are usual."""

    def __init__(self, reader: TopicReader, patience: Patience, *, follows: bool) -> None:
        self._reader = reader
        self._waiting: Callable[[], AbstractContextManager[None]] = (
            nullcontext if follows else patience.waiting
        )

    async def next_messages(self) -> Sequence[Message]:
        """As TopicReader.next_messages()."""
        with self._waiting():
            return await self._reader.next_messages()

    def read_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """As TopicReader.read_batches()."""
        return _ExplainedBatches(self._reader.read_batches(), self._waiting)


class _ExplainedBatches:
    def __init__(
        self,
        batches: AsyncIterator[pa.RecordBatch],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._batches, self._waiting = batches, waiting

    def __aiter__(self) -> _ExplainedBatches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        with self._waiting():
            return await anext(self._batches)


async def _show_latest(order: ReadRequest, settings: ReadSettings) -> None:
    """Print the latest message of each key, by timestamp."""
    (name,) = order.topics
    async with (
        connect(order.cluster) as client,
        metrics_page(lambda: client.metrics, order.metrics_port),
    ):
        with _patience(order.topics).waiting():
            state = await client.topics.state(
                name,
                partitions=settings["partitions"],
                consistency=settings["consistency"] or "strong",
                staleness_s=settings["staleness_s"],
                as_of=await timestamp_of(client, order.moment),
                on_gap=settings["on_gap"],
            )
        messages = sorted(state.messages.values(), key=lambda message: message.timestamp)
        messages = messages[: order.limit]
        if order.form == "json":
            await put(json_of(messages, MessageFields([await client.topics.info(name)])))
        elif isinstance(order.form, Template):
            await put(order.form.text_of(messages))
        else:
            await put(text_of(messages))
