"""``quire produce``: a file or standard input becomes the messages of a topic.

source ──thread──► feed ──► messages ──► send_many
one task                    a few        another task

Ctrl-C ends the reading: what was read is sent, and told, before the command ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Literal, cast

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.errors import CommandFailed, Interrupted, first_of
from ledger_client.commands.feeds import (
    CsvRows,
    Feed,
    Fields,
    JsonRows,
    LineFeed,
    Messages,
    RowFeed,
)
from ledger_client.commands.field_times import UNITS_NS, TimeUnit
from ledger_client.commands.interruption import interrupted
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.progress import show_progress
from ledger_client.commands.pump import chunks
from ledger_client.commands.quantity import count
from ledger_client.errors import LedgerError
from ledger_client.topics.errors import TopicExists
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_options import ACCESSES, Access
from ledger_client.writer import PAYLOAD_SIZE_MAX

Form = Literal["lines", "csv", "json"]
FORMS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
AHEAD = 2
"""Pieces that are read while one is sent."""
GRACE_S = 5.0
"""For what was read before an interruption."""


class Produced(msgspec.Struct):
    """What was sent; *bytes* are those of values and keys, *duplicates* were kept already."""

    topic: str
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    complete: bool = False


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

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


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False), default="-")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "csv", "json"]),
    show_default="by the file's name, else lines",
    help="json: an object on each line.",
)
@click.option("--value", metavar="FIELD", show_default="the whole row", help="Column or field.")
@click.option("--key", metavar="FIELD", help="Column or field; a key decides the partition.")
@click.option("--event-time", metavar="FIELD", help="Column or field: a number or a date.")
@click.option(
    "--time-unit",
    type=click.Choice(list(UNITS_NS)),
    default="ns",
    show_default=True,
    help="Of event times that are numbers, since 1970.",
)
@click.option("--delimiter", default=",", show_default=True, metavar="CHAR", help="Of CSV.")
@click.option("--create", is_flag=True, help="Make the topic if there is none.")
@click.option("--partition", type=int, metavar="INDEX", help="Write to this one alone.")
@click.option(
    "--lane", "lane_name", default="", metavar="NAME", help="Write the lane of this name."
)
@click.option("--access", type=click.Choice(ACCESSES), help="Who else may write.")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), help="Of batches.")
@click.option("--name", "producer_name", default="", metavar="TEXT", help="The producer's name.")
@click.option(
    "--resume",
    is_flag=True,
    help="FILE is the same as before, from its beginning: send what is not kept. With --name.",
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
    **asked: object,
) -> None:
    """Send FILE, or standard input, to TOPIC as messages.

    Each line is a message; of CSV each row, as a JSON object, or the column --value. How many
    messages are durable is told at the end, also of Ctrl-C.
    """
    order = msgspec.convert(asked, Order)
    if order.resume and not order.producer_name:
        raise click.UsageError("--resume needs the --name of the producer that was there before")
    fields = Fields(value, key, event_time, time_unit)
    feed = _feed(form or _form_of(file), fields, delimiter)
    source = sys.stdin.fileno() if file == "-" else os.open(file, os.O_RDONLY)
    trio.run(_produce, source, feed, order)


def _form_of(file: str) -> Form:
    return cast(Form, FORMS.get(PurePath(file).suffix.lower(), "lines"))


def _feed(form: Form, fields: Fields, delimiter: str) -> Feed:
    needed = [field for field in fields[:3] if field is not None]
    if form == "lines":
        if needed:
            raise click.UsageError("lines have no fields; choose --format csv or json")
        return LineFeed(PAYLOAD_SIZE_MAX)
    if form == "json":
        return RowFeed(fields, JsonRows(PAYLOAD_SIZE_MAX))
    if len(delimiter) != 1:
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}")
    return RowFeed(fields, CsvRows(PAYLOAD_SIZE_MAX, delimiter, needed))


async def _produce(source: int, feed: Feed, order: Order) -> None:
    done = Produced(order.topic)
    async with (
        ledger_client.connect(order.cluster) as client,
        metrics_page(client, order.metrics_port),
    ):
        if order.create:
            with suppress(TopicExists):
                await client.create_topic(order.topic)
        partition = order.partition
        if order.resume and partition is None and (await client.topic(order.topic)).partitions == 1:
            partition = 0  # numbers count there, also when partitions are added meanwhile
        async with client.producer(
            order.topic,
            producer_name=order.producer_name,
            access=order.access,
            partition=partition,
            lane_name=order.lane_name,
            compression=order.compression,
        ) as producer:
            try:
                done.complete = await Transfer(source, feed, producer, order.resume, done).run()
            except* (LedgerError, CommandFailed) as failed:
                first_of(failed).add_note(f"{count(done.messages, 'message')} acknowledged")
                raise
    _tell(done, as_json=order.as_json)
    if not done.complete:
        raise Interrupted


class Transfer:
    """From the descriptor *source* to the topic; *done* counts what is acknowledged."""

    def __init__(
        self, source: int, feed: Feed, producer: Producer, resume: bool, done: Produced
    ) -> None:
        self._source = source
        self._feed = feed
        self._producer = producer
        self._next = 0 if resume else None
        self._done = done

    async def run(self) -> bool:
        """Return when all is acknowledged, or what was read before an interruption is.

        Returns whether it was not interrupted.
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
        return not cut_short

    async def _read(self, pieces: trio.MemorySendChannel[tuple[int, Messages]]) -> None:
        async for data in chunks(self._source):
            await pieces.send((len(data), self._feed.feed(data)))
        await pieces.send((0, self._feed.finish()))

    async def _send(self, messages: Messages) -> None:
        values, keys, event_times = messages
        ids = await self._producer.send_many(
            values, keys=keys, event_times=event_times, sequence=self._next
        )
        duplicates = 0
        if self._next is not None:
            self._next += len(values)
            duplicates = sum(1 for message_id in ids if message_id.ledger_id < 0)
        self._done.duplicates += duplicates
        self._done.messages += len(values) - duplicates
        self._done.bytes += messages.size_from(duplicates)


def _tell(done: Produced, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    begin = "" if done.complete else "interrupted; "
    known = f", {done.duplicates:,} were kept already" if done.duplicates else ""
    click.echo(
        f"{begin}{count(done.messages, 'message')}, {done.bytes:,} bytes acknowledged in "
        f"{done.topic}{known}",
        err=True,
    )
