"""``quire consume``: print the messages of topics as a member of a group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, Unpack

import click
import trio
from click.core import ParameterSource

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.forms import MessageFields, json_of, text_of
from ledger_client.commands.group.names import GroupParam
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.options import parse_duration
from ledger_client.commands.outcome import finish
from ledger_client.commands.places import BYS, By, PlaceOrTime, Point
from ledger_client.commands.streams import put
from ledger_client.errors import (
    BadGroup,
    BadSchema,
    CommitRefused,
    LedgerError,
    MetadataUnavailable,
    NoSuchTopic,
)
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import ConsumerOptions, ConsumerSettings, FirstStart
from ledger_client.groups.wanted import namespace_of
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Position
from metadata.groups.rows import Mode

field = partial(options.field_option, ConsumerOptions)
POLL_S = 1.0
POLL_MAX = 4096
"""A commit of each message by itself would cost the metadata more than the message."""
COMMIT_S = 5.0
CLOSE_S = 5.0
"""for the last commit"""
AGAIN = "it may be printed again, here or elsewhere"
SHARED_ONLY = {"ack_timeout_s", "deliveries_max", "dead_topic"}
"""Options that mean nothing in mode exclusive."""
UNSTORED = (CommitRefused, MetadataUnavailable)


class FirstPlace(click.ParamType[Point | None]):
    """Parses earliest, latest, a time, or none, which becomes `None`."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Point | None:
        """Parse where a group begins, or a time whose kind --by decides later."""
        if value == "none":
            return None
        point = PlaceOrTime().convert(value, param, ctx)
        if isinstance(point.start, MessageId | Position):
            what = "message" if isinstance(point.start, MessageId) else "position"
            self.fail(f"a group cannot begin at a {what}; `quire group reset` moves it to one")
        return point


class CommitParam(click.ParamType[float]):
    """Parses when to commit, in seconds: auto, each (0), none (math.inf), or a duration."""

    name = "when"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse one of the words, or a duration."""
        words = {"auto": COMMIT_S, "each": 0.0, "none": math.inf}
        seconds = words.get(str(value), parse_duration(str(value)))
        if seconds is None:
            self.fail(f"{value!r} is not auto, each, none, or a duration such as 30s", param, ctx)
        return seconds


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--group", required=True, type=GroupParam(), metavar="NAME", help="Name of the group."
)
@click.option(
    "--start",
    "first",
    type=FirstPlace(),
    default="latest",
    show_default=True,
    metavar="PLACE",
    help="Where a group begins in a partition in which it has committed nothing: earliest, latest, "
    "a time, or none, which is an error then. A time is a date and time, nanoseconds since 1970, "
    "or a duration such as 15min for that long ago; a number with --by timestamp is one that "
    "quire tso get prints.",
)
@click.option(
    "--by",
    type=click.Choice(BYS),
    default="publish-time",
    show_default=True,
    help="Kind of the time in PLACE.",
)
@click.option(
    "--commit",
    "commit_s",
    type=CommitParam(),
    default="auto",
    show_default=True,
    metavar="WHEN",
    help="Commit what was printed: auto is every 5s, a duration such as 30s is so often, and each "
    f"is before more is read; up to {POLL_MAX} messages are read and printed at a time. All of "
    "them commit at the end, too. none commits nothing, and all of it comes again.",
)
@click.option(
    "--shared",
    "is_shared",
    is_flag=True,
    help="Share partitions, too: any number of members read each of them, in no order. What was "
    "printed is acknowledged message by message, unless --commit is none.",
)
@click.option(
    "--key-shared",
    "is_key_shared",
    is_flag=True,
    help="As --shared, and one member gets all messages of a key, in order.",
)
@field("ack_timeout_s", "--ack-timeout", "ack_timeout_s")
@field("deliveries_max", "--deliveries-max")
@field("dead_topic", "--dead-topic", metavar="TOPIC")
@field("order", "--order")
@field("member", "--member", metavar="NAME")
@field("missing", "--missing")
@click.option(
    "--limit", type=click.IntRange(1), metavar="COUNT", help="Stop after this many messages."
)
@click.option(
    "--idle",
    "idle_s",
    type=options.DurationParam(),
    metavar="DURATION",
    help="Stop when no message came for so long. [default: go on until Ctrl-C]",
)
@click.option(
    "--skip-gaps", is_flag=True, help="Skip messages that were removed, instead of failing."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
@metrics_port
@options.cluster
def consume(
    *,
    topics: tuple[str, ...],
    first: Point | None,
    by: By,
    commit_s: float,
    is_shared: bool,
    is_key_shared: bool,
    limit: int | None,
    idle_s: float | None,
    skip_gaps: bool,
    as_json: bool,
    metrics_port: int,
    cluster: str,
    **settings: Unpack[ConsumerSettings],
) -> None:
    """Print the messages of TOPIC as a member of a group, until Ctrl-C.

    The members of a group share its topics: start the command several times with the same
    --group, and each partition is read by one of them. A group goes on where it stopped; what it
    printed is committed as --commit says. "*" in TOPIC stands for any
    characters: 'shop/*' is a whole namespace, with the topics that are created later.
    """
    settings["start"] = _first(first, by)
    settings["mode"] = _mode(is_shared=is_shared, is_key_shared=is_key_shared)
    settings["on_gap"] = "skip" if skip_gaps else "raise"
    settings["auto_commit_s"] = None
    _check(topics, settings)
    request = ConsumeRequest(cluster, topics, commit_s, limit, idle_s, as_json, metrics_port)
    trio.run(finish, partial(_consume, request, settings))


def _first(first: Point | None, by: By) -> FirstStart:
    """Return where a group begins; `None` stands for "none"."""
    if first is None:
        return "none"
    if first.start == "earliest" or first.start == "latest":
        return first.start
    return first.time(by)


def _mode(*, is_shared: bool, is_key_shared: bool) -> Mode:
    """Return the group's mode. Raises UsageError for both flags."""
    if is_shared and is_key_shared:
        raise click.UsageError(
            "--shared and --key-shared exclude each other: take --key-shared to have the messages "
            "of a key together and in order, and --shared otherwise"
        )
    if is_key_shared:
        return "key-shared"
    return "shared" if is_shared else "exclusive"


def _check(topics: Sequence[str], settings: ConsumerSettings) -> None:
    """Raise UsageError for names and options that are not possible, or not in this mode."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        is_given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if is_given and param.name in SHARED_ONLY and settings["mode"] == "exclusive":
            raise click.UsageError(f"{param.opts[0]} needs --shared or --key-shared")
    try:
        ConsumerOptions(**settings).check()
        for topic in topics:
            namespace_of(topic)
    except BadGroup as wrong:
        raise click.UsageError(str(wrong)) from wrong


class ConsumeRequest(NamedTuple):
    """The options and arguments of the command line, apart from the consumer's settings."""

    cluster: str
    topics: tuple[str, ...]
    commit_s: float
    """between two commits; math.inf for none"""
    limit: int | None
    idle_s: float | None
    as_json: bool
    metrics_port: int


async def _consume(order: ConsumeRequest, settings: ConsumerSettings) -> None:
    async with (
        connect(order.cluster) as client,
        metrics_page(lambda: client.metrics, order.metrics_port),
        client.consumer(order.topics, **settings) as consumer,
    ):
        settle = Settling(consumer, is_shared=settings["mode"] != "exclusive")
        await Printing(client, consumer, settle, order).run()


class Settling:
    """Commits what was printed, or acknowledges it in a shared group."""

    def __init__(self, consumer: GroupConsumer, *, is_shared: bool) -> None:
        self._consumer = consumer
        self._is_shared = is_shared

    def note(self, messages: list[Message]) -> None:
        """Begin to acknowledge these messages, if the group is shared."""
        if self._is_shared:
            with _reported():
                self._consumer.ack_nowait(messages)

    async def commit(self) -> None:
        """Make it durable, as far as the messages are still ours."""
        with _reported():
            await (self._consumer.flush() if self._is_shared else self._consumer.commit())


@contextmanager
def _reported(kinds: tuple[type[LedgerError], ...] = UNSTORED) -> Iterator[None]:
    """Report messages that may be printed again, and go on."""
    try:
        yield
    except kinds as failure:
        click.echo(f"quire: {failure}; {AGAIN}", err=True)


class Printing:
    """Prints what the consumer gets."""

    def __init__(
        self, client: Client, consumer: GroupConsumer, settle: Settling, order: ConsumeRequest
    ) -> None:
        self._has_asked = False
        """the consumer was asked for messages, and has answered"""
        self._is_printing = False
        """what it handed out last is not printed yet, or only a part of it"""
        self._client = client
        self._consumer = consumer
        self._settle = settle
        self._order = order
        self._fields = MessageFields([])
        self._known: set[str] = set()
        """topics whose schemas were looked up"""

    async def run(self) -> None:
        """Print until the limit, or until nothing has come for the given time.

        However it ends, what was printed is committed.
        """
        try:
            await self._print_all()
        except BaseException:  # it ends for this, not for what becomes of its last commit
            with _reported((LedgerError,)):
                await self._commit()
            raise
        await self._commit()

    async def _commit(self) -> None:
        if self._order.commit_s < math.inf and self._has_asked:
            if self._is_printing:  # who reads it may have half a line: it comes again
                self._consumer.take_back()
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S) as limit:
                await self._settle.commit()
            if limit.cancelled_caught:
                told = f"nothing told in {CLOSE_S:g} s that the last of it is committed"
                click.echo(f"quire: {told}; {AGAIN}", err=True)

    async def _print_all(self) -> None:
        order, left = self._order, self._order.limit
        if order.as_json:
            await self._look_up({name for name in order.topics if "*" not in name})
        printed_at = committed_at = trio.current_time()
        while left is None or left > 0:
            count = POLL_MAX if left is None else min(left, POLL_MAX)
            messages = await self._consumer.poll(wait_s=POLL_S, messages_max=count)
            self._has_asked, self._is_printing = True, bool(messages)
            now = trio.current_time()
            if messages:
                printed_at = now
                await self._print(messages)
                left = left and left - len(messages)
            elif order.idle_s is not None and now - printed_at >= order.idle_s:
                return
            if now - committed_at >= order.commit_s:
                await self._settle.commit()
                committed_at = now

    async def _print(self, messages: list[Message]) -> None:
        if self._order.as_json:
            for name in sorted({message.topic for message in messages}):
                try:
                    await self._look_up({name})
                except BadSchema as wrong:  # of a topic that a pattern found
                    click.echo(f"warning: {wrong}; its values are shown as they are", err=True)
            await put(json_of(messages, self._fields))
        else:
            await put(text_of(messages))
        if self._order.commit_s < math.inf:
            self._settle.note(messages)
        self._is_printing = False

    async def _look_up(self, topics: set[str]) -> None:
        """Look up how values of these topics are decoded. Raises BadSchema."""
        for name in sorted(topics - self._known):
            with suppress(NoSuchTopic):  # not yet, or not any more
                topic = await self._client.topics.info(name)
                self._known.add(name)
                self._fields.add(topic)
