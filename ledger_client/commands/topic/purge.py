"""``quire topic purge``."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.moment import Ago, Moment
from ledger_client.commands.progress import show_entries
from ledger_client.commands.quantity import count, size
from ledger_client.commands.topic.settings import name
from ledger_client.topics.keeping.purge import Purged
from ledger_client.topics.keeping.retention import Before, Fate
from ledger_client.topics.reading.times import EventTime, PublishTime, Timestamp

MS = 1_000_000


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints. Sizes are payload bytes of one copy."""

    topic: str
    ledgers: int
    messages: int
    size: int
    dry_run: bool
    kept: list[Fate]
    """the first ledger of each lane that is still there, and why"""


class Place(NamedTuple):
    """Where to purge; None: everywhere."""

    partition: int | None
    lane: int | None


@click.command()
@name
@click.option("--before", type=Moment(), metavar="TIME", help="What was written before TIME.")
@click.option(
    "--before-event-time",
    type=Moment(),
    metavar="TIME",
    help="What has event times lower than TIME.",
)
@click.option(
    "--before-timestamp",
    type=click.IntRange(0, (1 << 64) - 1),
    metavar="NUMBER",
    help="What has timestamps lower than NUMBER.",
)
@click.option("--all", "everything", is_flag=True, help="Everything that is closed.")
@click.option("--partition", type=click.IntRange(-1), help="Only in this partition.")
@click.option("--lane", type=click.IntRange(0), help="Only in lanes of this number.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@options.cluster
@options.as_json
def purge(
    *,
    name: str,
    before: int | None,
    before_event_time: int | None,
    before_timestamp: int | None,
    everything: bool,
    partition: int | None,
    lane: int | None,
    dry_run: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Remove the closed ledgers of a topic that are wholly before a time.

    TIME is a date and time (UTC without an offset), nanoseconds since 1970, or how long
    ago: 7d. A ledger that has later messages too stays, and so does what is after it in its
    lane; what is written stays. Producers and readers go on; a reader whose position was
    removed is told so. May be interrupted and repeated.
    """
    end = _end(before, before_event_time, before_timestamp, everything)
    place = Place(partition, lane)
    ago = before if isinstance(before, Ago) else None
    purged = trio.run(finish, partial(_purge, cluster, name, end, ago, place, dry_run))
    told = Removed(
        topic=name,
        ledgers=len(purged.removed),
        messages=purged.messages,
        size=purged.size,
        dry_run=dry_run,
        kept=purged.kept,
    )
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
    else:
        _tell(told)


def _end(
    before: int | None, event_time: int | None, timestamp: int | None, everything: bool
) -> Before | None:
    given = [value for value in (before, event_time, timestamp) if value is not None]
    if len(given) + everything != 1:
        raise click.UsageError(
            "say what to remove: one of --before, --before-event-time, --before-timestamp, --all"
        )
    if before is not None:
        return PublishTime(before // MS)
    if event_time is not None:
        return EventTime(event_time)
    return None if timestamp is None else Timestamp(timestamp)


async def _purge(
    cluster: str, name: str, before: Before | None, ago: Ago | None, place: Place, dry_run: bool
) -> Purged:
    async with ledger_client.connect(cluster) as client:
        if ago is not None:  # so long ago by the time with which ledgers were closed
            before = PublishTime(await client.topics.now_ms() - ago.length_ns // MS)
        where = place._asdict()
        planned = await client.purge_topic(name, before=before, **where, dry_run=True)
        if dry_run:
            return planned
        with show_entries(len(planned.removed)) as advance:
            return await client.purge_topic(name, before=before, **where, on_removed=advance)


def _tell(told: Removed) -> None:
    verb = "would be removed" if told.dry_run else "removed"
    parts = (count(told.ledgers, "ledger"), count(told.messages, "message"), size(told.size))
    click.echo(f"{', '.join(parts)} {verb}")
    for fate in told.kept:
        where = f"partition {fate.partition}, lane {fate.lane}"
        click.echo(f"{where}: ledger {fate.ledger.ledger_id} is the first that stays: {fate.why}")
