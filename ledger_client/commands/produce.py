"""``quire produce``: send a file or standard input to a topic.

source ──thread──► feed ──► messages ──► send_many
one task                    a few        another task

After Ctrl-C nothing more is read, but what was read is still sent and counted.
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import PurePath
from typing import Literal, cast

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.feeds import (
    UNITS_NS,
    CsvRows,
    Feed,
    Fields,
    JsonRows,
    LineFeed,
    Messages,
    RowFeed,
    TimeUnit,
)
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.outcome import interrupted
from ledger_client.commands.patience import Patience
from ledger_client.commands.progress import show_progress
from ledger_client.commands.stored_rows import StoredRows, stored_rows
from ledger_client.commands.streams import chunks
from ledger_client.commands.tables import count
from ledger_client.commands.templates import unescaped
from ledger_client.errors import LedgerError, TopicExists
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_options import Access, ProducerOptions
from metadata.outcome import CommandFailed, first_of

Form = Literal["lines", "csv", "json"]
FORMS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
AHEAD = 2
"""Chunks to read ahead while one is sent."""
GRACE_S = 5.0
"""Time after an interruption to send what was already read."""


class Produced(msgspec.Struct):
    """The messages sent. *bytes* counts values and keys; *duplicates* were stored already."""

    topic: str
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    complete: bool = False


class ProduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options and arguments of the command line."""

    cluster: str
    topic: str
    create: bool
    resume: bool
    producer_name: str
    access: Access | None
    partition: int | None
    lane_name: str
    compression: Literal["none", "zstd", "lz4"] | None
    metrics_port: int
    as_json: bool
    headers: dict[str, bytes] = {}


class HeaderParam(click.ParamType[tuple[str, bytes]]):
    """Parses NAME=VALUE."""

    name = "header"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, bytes]:
        """Parse a header; its value may have further equals signs."""
        name, equals, content = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, os.fsencode(content)


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False), default="-")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "csv", "json"]),
    show_default="by the file's name, else lines",
    help="Form of the input; json means one object per line.",
)
@click.option(
    "--value",
    metavar="FIELD",
    show_default="the whole row",
    help="Column or field with the value.",
)
@click.option("--key", metavar="FIELD", help="Column or field with the key.")
@click.option(
    "--event-time", metavar="FIELD", help="Column or field with the event time: a number or date."
)
@click.option(
    "--time-unit",
    type=click.Choice(list(UNITS_NS)),
    default="ns",
    show_default=True,
    help="Unit of event times that are numbers, counted from 1970.",
)
@click.option(
    "--delimiter", default=",", show_default=True, metavar="CHAR", help="Separator of CSV columns."
)
@click.option(
    "--key-separator",
    default="",
    metavar="TEXT",
    help="In lines, separates the key from the value; a line without it has no key. \\t is a tab.",
)
@click.option(
    "--header",
    "header",
    type=HeaderParam(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of each message. May be repeated.",
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@options.field_option(ProducerOptions, "partition", "--partition", metavar="INDEX")
@options.field_option(ProducerOptions, "lane_name", "--lane", "lane_name", metavar="NAME")
@options.field_option(ProducerOptions, "access", "--access")
@options.field_option(ProducerOptions, "compression", "--compression")
@options.field_option(
    ProducerOptions,
    "producer_name",
    "--producer-name",
    "producer_name",
    metavar="TEXT",
    help=options.field_text(ProducerOptions, "producer_name")
    + " The same command run twice stores all messages twice, unless the second has --resume.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Send the same FILE again, after a run that was cut short: messages that "
    "--producer-name stored already are skipped. A name that sent anything else is refused.",
)
@metrics_port
@options.cluster
@options.as_json
def produce(
    *,
    file: str,
    form: Form | None,
    value: str | None,
    key: str | None,
    event_time: str | None,
    time_unit: TimeUnit,
    delimiter: str,
    key_separator: str,
    header: tuple[tuple[str, bytes], ...],
    **arguments: object,
) -> None:
    """Send FILE, or standard input, to TOPIC.

    Each line becomes a message; of CSV each row does, as a JSON object or just its column
    --value. At the end, even after Ctrl-C, the number of durable messages is reported.
    """
    headers = dict(header)
    if len(headers) < len(header):
        raise click.UsageError("two headers have the same name")
    order = msgspec.structs.replace(msgspec.convert(arguments, ProduceRequest), headers=headers)
    if order.resume and not order.producer_name:
        raise click.UsageError("--resume needs the --producer-name that sent FILE before")
    fields = Fields(value, key, event_time, time_unit)
    feed = _feed(form or _form_of(file), fields, delimiter, _separator(key_separator))
    source = sys.stdin.fileno() if file == "-" else os.open(file, os.O_RDONLY)
    trio.run(_produce, source, feed, order)


def _form_of(file: str) -> Form:
    return cast(Form, FORMS.get(PurePath(file).suffix.lower(), "lines"))


def _separator(text: str) -> bytes:
    try:
        return unescaped(text)
    except ValueError as wrong:
        raise click.UsageError(f"--key-separator: {wrong}") from wrong


def _feed(form: Form, fields: Fields, delimiter: str, key_separator: bytes) -> Feed:
    needed = [field for field in fields[:3] if field is not None]
    if form == "lines":
        if needed:
            raise click.UsageError(
                "lines have no fields; use --format csv or json, or --key-separator for a key"
            )
        return LineFeed(PAYLOAD_SIZE_MAX, key_separator)
    if key_separator:
        raise click.UsageError(f"--key-separator is for lines; with --format {form}, use --key")
    if form == "json":
        return RowFeed(fields, JsonRows(PAYLOAD_SIZE_MAX))
    if len(delimiter) != 1:
        raise click.UsageError(f"--delimiter must be one character, not {delimiter!r}")
    return RowFeed(fields, CsvRows(PAYLOAD_SIZE_MAX, delimiter, needed))


async def _produce(source: int, feed: Feed, order: ProduceRequest) -> None:
    done = Produced(order.topic)
    async with (
        connect(order.cluster) as client,
        metrics_page(lambda: client.metrics, order.metrics_port),
    ):
        if order.create:
            with suppress(TopicExists):
                await client.topics.create(order.topic)
        async with AsyncExitStack() as stack:
            producer = await _open_producer(client, order, stack)
            try:
                stored = await stored_rows(client, producer) if order.resume else None
                transfer = Transfer(source, feed, producer, done, order.headers, stored)
                done.complete = await transfer.run()
            except* (LedgerError, CommandFailed) as failed:
                first_of(failed).add_note(f"{count(done.messages, 'message')} acknowledged")
                raise
    _show(done, as_json=order.as_json)
    if not done.complete:
        raise click.Abort


async def _open_producer(client: Client, order: ProduceRequest, stack: AsyncExitStack) -> Producer:
    """Open the producer until *stack* ends; explain a wait for one that writes the lane."""
    partition = order.partition
    if (
        order.resume
        and partition is None
        and (await client.topics.info(order.topic)).partitions == 1
    ):
        partition = 0  # sequence numbers count there, even if partitions are added meanwhile
    opening = client.producer(
        order.topic,
        producer_name=order.producer_name,
        access=order.access,
        partition=partition,
        lane_name=order.lane_name,
        compression=order.compression,
    )
    busy = "another one may write it: `quire topic describe` shows who"
    with Patience(f"waiting for {order.topic} to take a producer; {busy}").waiting():
        return await stack.enter_async_context(opening)


class Transfer:
    """Sends the descriptor *source* to the topic; *done* counts what is acknowledged.

    Messages that are *stored* already are passed over.
    """

    def __init__(
        self,
        source: int,
        feed: Feed,
        producer: Producer,
        done: Produced,
        headers: dict[str, bytes],
        stored: StoredRows | None,
    ) -> None:
        self._source = source
        self._feed = feed
        self._producer = producer
        self._stored = stored
        self._next = 0
        self._headers = headers
        self._done = done
        self._patience = Patience(
            f"waiting for bookies to store messages of {done.topic}; `quire cluster status` shows "
            "them"
        )

    async def run(self) -> bool:
        """Return True once everything is acknowledged.

        After an interruption, return False once what was read by then is acknowledged.

        Raises CommandFailed if something else is stored than the input begins with.
        """
        pieces, taken = trio.open_memory_channel[tuple[int, Messages]](AHEAD)
        with show_progress(self._source) as advance:
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    async for size, messages in taken:
                        await self._send(messages)
                        advance(size)

                nursery.start_soon(send)
                async with pieces:
                    cut_short = await interrupted(partial(self._read, pieces))
                if cut_short:
                    nursery.cancel_scope.deadline = trio.current_time() + GRACE_S
        if self._stored is not None and not cut_short:
            self._stored.check_end(self._next)
        return not cut_short

    async def _read(self, pieces: trio.MemorySendChannel[tuple[int, Messages]]) -> None:
        async for data in chunks(self._source):
            await pieces.send((len(data), self._feed.feed(data)))
        await pieces.send((0, self._feed.finish()))

    async def _send(self, messages: Messages) -> None:
        values, keys, event_times = messages
        if self._stored is not None:
            self._stored.check(self._next, messages)
        with self._patience.waiting():
            ids = await self._producer.send_many(
                values,
                keys=keys,
                event_times=event_times,
                headers=[self._headers] * len(values) if self._headers else None,
                sequence=None if self._stored is None else self._next,
            )
        self._next += len(values)
        duplicates = 0
        if self._stored is not None:
            duplicates = sum(1 for message_id in ids if message_id.ledger_id < 0)
        self._done.duplicates += duplicates
        self._done.messages += len(values) - duplicates
        self._done.bytes += messages.size_from(duplicates)


def _show(done: Produced, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    begin = "" if done.complete else "interrupted; "
    known = f", {done.duplicates:,} were stored already" if done.duplicates else ""
    click.echo(
        f"{begin}{count(done.messages, 'message')}, {done.bytes:,} bytes acknowledged in "
        f"{done.topic}{known}",
        err=True,
    )
