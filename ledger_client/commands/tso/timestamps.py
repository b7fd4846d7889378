"""``quire tso get``, ``parse`` and ``reset``."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.options import MomentParam
from ledger_client.commands.outcome import finish
from metadata.outcome import confirm
from metadata.time.timestamps import (
    PER_MS,
    TIMESTAMP_MAX,
    TimestampRange,
    first_at,
    split,
    utc_of,
)

NS_PER_S = 1_000_000_000


class TimestampShown(msgspec.Struct, frozen=True):
    """The output of `tso parse --json`."""

    timestamp: int
    time: str
    """in UTC, exact to the millisecond"""
    physical_ms: int
    """milliseconds since 1970"""
    logical: int

    @classmethod
    def of(cls, timestamp: int) -> TimestampShown:
        """Take a timestamp apart."""
        return cls(timestamp, _text(utc_of(timestamp)), *split(timestamp))

    def __str__(self) -> str:
        return f"{self.timestamp}  {self.time}  logical {self.logical}"


class TimestampsTaken(msgspec.Struct, frozen=True):
    """The output of `tso get --json`."""

    first: TimestampShown
    last: TimestampShown
    count: int


class TimeSet(msgspec.Struct, frozen=True):
    """The output of `tso reset --json`: the cluster's time, in UTC."""

    time: str


@click.command()
@click.option(
    "--count",
    type=click.IntRange(1, PER_MS),
    default=1,
    show_default=True,
    help="Take so many consecutive ones.",
)
@options.cluster
@options.as_json
def get(*, count: int, cluster: str, as_json: bool) -> None:
    """Take timestamps from the cluster.

    Prints the timestamp, its time in UTC and its logical part; of several the first and the last.
    Nobody else gets them. Each is greater than all that were handed out before.
    """
    found = trio.run(finish, partial(_get, cluster, count))
    first, last = TimestampShown.of(found.first), TimestampShown.of(found.last)
    if as_json:
        taken = TimestampsTaken(first, last, found.count)
        click.echo(msgspec.json.encode(taken).decode())
    else:
        click.echo(first)
        if count > 1:
            click.echo(last)


async def _get(cluster: str, count: int) -> TimestampRange:
    async with connect(cluster) as client:
        return await client.timestamps.allocate(count)


@click.command()
@click.argument("timestamp", type=click.IntRange(0, TIMESTAMP_MAX))
@options.as_json
def parse(*, timestamp: int, as_json: bool) -> None:
    """Show a timestamp's time in UTC and its logical part. Needs no cluster."""
    shown = TimestampShown.of(timestamp)
    click.echo(msgspec.json.encode(shown).decode() if as_json else str(shown))


@click.command()
@click.option(
    "--to",
    "to_ns",
    type=MomentParam(),
    required=True,
    metavar="TIME",
    help="New time: a date and time, UTC without an offset, or nanoseconds since 1970.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.cluster
@options.as_json
def reset(*, to_ns: int, yes: bool, cluster: str, as_json: bool) -> None:
    """Move the cluster's time forward.

    Needed after old metadata was restored, so that timestamps are not handed out again. Time moves
    forward only, by 24 h at most, and cannot be moved back: until the clock of the leader reaches
    the new time, timestamps stay ahead of it.
    """
    moment = datetime.fromtimestamp(to_ns // NS_PER_S, UTC)
    moment = moment.replace(microsecond=to_ns % NS_PER_S // 1000)
    try:
        first_at(moment)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--to") from None
    if not yes:
        question = f"Move the cluster's time to {_text(moment)}? It cannot be moved back."
        confirm(question, refused="nothing was changed")
    now = _text(trio.run(finish, partial(_reset, cluster, moment)))
    click.echo(msgspec.json.encode(TimeSet(now)).decode() if as_json else f"time is {now}")


async def _reset(cluster: str, moment: datetime) -> datetime:
    async with connect(cluster) as client:
        return await client.timestamps.reset(moment)


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
