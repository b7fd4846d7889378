"""Places in topics on the command line: an end, the id of a message, or a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import click

from ledger_client.client import Client
from ledger_client.commands.options import SOONEST_NS, Ago, MomentParam, not_nanoseconds
from ledger_client.message_id import MessageId
from ledger_client.topics.catalogue import TopicInfo
from ledger_client.topics.positions import Position
from ledger_client.topics.reading.options import ReadSettings, Start
from ledger_client.topics.times import EventTime, PublishTime, Time, Timestamp
from metadata.time.timestamps import compose, split

By = Literal["event-time", "publish-time", "timestamp"]
BYS: tuple[By, ...] = ("event-time", "publish-time", "timestamp")
NS_PER_MS = 1_000_000
FindTopic = Callable[[str], Awaitable[TopicInfo]]


class Point(NamedTuple):
    """A place, or the *number* of a time whose kind --by decides.

    *is_moment*: the number is nanoseconds since 1970, whatever the kind; else a number that was
    written as one is nanoseconds or, of that kind, a timestamp.
    """

    start: Literal["earliest", "latest"] | MessageId | Position | None = None
    number: int = 0
    is_moment: bool = False

    def at(self, by: By) -> Start:
        """Return the place, taking a number as a time of the kind *by*."""
        return self.time(by) if self.start is None else self.start

    def time(self, by: By) -> Time:
        """Return the number as a time of the kind *by*.

        Raises UsageError for a number that is no timestamp, or too small a publish time.
        """
        if by == "event-time":
            return EventTime(self.number)
        ms = -(-self.number // NS_PER_MS)
        if by == "publish-time":
            if not self.is_moment and 0 < self.number < SOONEST_NS:
                raise click.UsageError(not_nanoseconds(self.number))
            return PublishTime(ms)
        try:
            if self.is_moment:
                return Timestamp(compose(ms))
            split(self.number)
        except ValueError as wrong:
            raise click.UsageError(str(wrong)) from wrong
        return Timestamp(self.number)


class PlaceOrTime(click.ParamType[Point]):
    """Parses earliest, latest, the id of a message, a position as JSON, or a time."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Point:
        """Parse a place, or a time whose kind --by decides later."""
        if isinstance(value, Point):
            return value
        text = str(value).strip()
        if text in {"earliest", "latest"}:
            return Point("earliest" if text == "earliest" else "latest")
        if text.isascii() and text.isdigit():
            return Point(number=int(text))
        if text.startswith("{"):
            try:
                return Point(Position.from_json(text))
            except ValueError as wrong:
                self.fail(str(wrong), param, ctx)
        try:
            return Point(MessageId.parse(text))
        except ValueError:
            pass
        try:
            return Point(number=MomentParam().convert(text, param, ctx), is_moment=True)
        except click.UsageError:
            forms = "write earliest, latest, an id as 7:2:-1:0, a time as 2024-05-01T12:00Z, or 7d"
            self.fail(f"{value!r} is not a place; {forms}", param, ctx)


class MomentOfRead(click.ParamType[Timestamp | Ago]):
    """Parses a timestamp of the cluster, or a time. timestamp_of() dates one so long ago."""

    name = "moment"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Timestamp | Ago:
        """Parse a number as a timestamp, and all else as a time."""
        if isinstance(value, Timestamp | Ago):
            return value
        text = str(value).strip()
        try:
            if text.isascii() and text.isdigit():
                split(int(text))
                return Timestamp(int(text))
            moment = MomentParam().convert(text, param, ctx)
            return moment if isinstance(moment, Ago) else Timestamp(compose(moment // NS_PER_MS))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


async def timestamp_of(client: Client, moment: Timestamp | Ago | None) -> Timestamp | None:
    """Return a moment so long ago by the cluster's time, which this host's clock may be far from.

    Raises:
        LedgerError: nobody hands out timestamps now.
    """
    if not isinstance(moment, Ago):
        return moment
    now = split((await client.timestamps.allocate()).first)
    return Timestamp(compose(max(now.physical_ms - moment.length_ns // NS_PER_MS, 0)))


class ReadRange(NamedTuple):
    """A range of messages, from one place to another."""

    start: Point | None
    inclusive: bool
    end: Point | None
    end_inclusive: bool
    by: By | None

    @property
    def has_time(self) -> bool:
        """True if the range has a time whose kind matters."""
        return any(point and point.start is None for point in (self.start, self.end))

    def settings(self, by: By) -> ReadSettings:
        """Return the range as reader settings, with times of the kind *by*."""
        return {
            "start": self.start and self.start.at(by),
            "inclusive": self.inclusive,
            "end": self.end and self.end.at(by),
            "end_inclusive": self.end_inclusive,
        }


async def kind_of_time(find_topic: FindTopic, topics: tuple[str, ...], span: ReadRange) -> By:
    """Return the kind of times in *span* for these topics, if --by was not given."""
    if not span.has_time:
        return "publish-time"
    records = [await find_topic(name) for name in topics]
    ordered = all(record.order == "event-time" for record in records)
    return "event-time" if ordered else "publish-time"
