"""``quire topic delete``, ``truncate`` and ``purge``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.options import Ago, MomentParam
from ledger_client.commands.outcome import finish, interrupted
from ledger_client.commands.places import BYS, By, PlaceOrTime, Point
from ledger_client.commands.progress import show_entries
from ledger_client.commands.tables import count, size
from ledger_client.errors import LedgerError, NoSuchTopic
from ledger_client.topics.retention.lane_parts import LaneTruncated, Truncated
from ledger_client.topics.retention.removal import Purged
from ledger_client.topics.retention.retention import Before, Fate
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.outcome import confirm

MS = 1_000_000
"""Nanoseconds in a millisecond."""
STATE_S = 3.0
"""How long an interrupted command waits for the metadata."""


class TopicDeleted(msgspec.Struct, frozen=True):
    """The output of `topic delete --json`, after an interruption too."""

    topic: str
    ledgers: int
    """number removed by this command"""
    complete: bool


@click.command()
@options.topic
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete it although groups consume it.")
@options.cluster
@options.as_json
def delete(*, name: str, yes: bool, force: bool, cluster: str, as_json: bool) -> None:
    """Delete a topic with all its messages.

    The topic disappears at once, and its producers and readers fail. While members of groups
    name it, it is deleted only by --force. If the command is interrupted, the cluster's leader
    completes the deletion. Bookies free the space at their next garbage collection.
    """
    if not yes:
        held = count(trio.run(finish, partial(_count_ledgers, cluster, name)), "ledger")
        report = f"Delete topic {name} with all its messages, in {held}?"
        confirm(report, refused="nothing was deleted")
    deleted, state = trio.run(_delete_topic, cluster, name, force)
    if as_json:
        click.echo(msgspec.json.encode(deleted).decode())
    elif not deleted.complete:
        click.echo(f"interrupted; {state}", err=True)
    if not deleted.complete:
        raise click.Abort


async def _count_ledgers(cluster: str, name: str) -> int:
    """Count the topic's ledgers, even after an interrupted deletion."""
    async with connect(cluster) as client:
        if await client._context.catalogue.find(name) is None:
            raise NoSuchTopic(name)
        return await client.topics.count_ledgers(name)


async def _delete_topic(cluster: str, name: str, force: bool) -> tuple[TopicDeleted, str]:
    """Delete a topic; return what was done and, after an interruption, how things stand."""
    ledgers = 0
    state = ""

    async with connect(cluster) as client:
        held = await client.topics.count_ledgers(name)
        with show_entries(f"deleting {name}", held) as advance:

            def removed(number: int) -> None:
                nonlocal ledgers
                ledgers += number
                advance(number)

            work = partial(client.topics.delete, name, force=force, on_removed=removed)
            cut_short = await interrupted(work)
        if cut_short:
            state = await _state(client, name, ledgers)
    return TopicDeleted(name, ledgers, not cut_short), state


async def _state(client: Client, name: str, removed: int) -> str:
    """Say how far the deletion of a topic came, of which so many ledgers were removed."""
    ledgers = count(removed, "ledger")
    with trio.move_on_after(STATE_S), suppress(LedgerError):
        found = await client._context.catalogue.find(name)
        if found is None:
            return f"there is no topic {name} any more"
        if found[0].state == "active":
            return f"topic {name} is still there"
        return f"{ledgers} removed, the leader will remove the rest"
    return (
        f"{ledgers} removed. `quire topic describe {name}` shows whether it is still there; "
        "if not, the leader removes the rest"
    )


# --- Truncate ---------------------------------------------------------------------------


class MessagesDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `topic truncate --json`, or with --dry-run its forecast."""

    topic: str
    ledgers: int
    """number removed as a whole"""
    messages: int
    dry_run: bool
    lanes: list[LaneTruncated]


class TruncateRequest(NamedTuple):
    """The messages to delete: from *start* to *end*, or to the end of each lane."""

    name: str
    start: Point
    end: Point | None
    by: By | None
    partition: int | None
    lane: int | None
    force: bool


@click.command()
@options.topic
@click.option(
    "--from", "from_", type=PlaceOrTime(), required=True, metavar="PLACE", help="Begin at PLACE."
)
@click.option(
    "--to", type=PlaceOrTime(), metavar="PLACE", help="End at PLACE; without it, at the end."
)
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time for topics ordered by it, else publish-time",
    help="Kind of the times in PLACE.",
)
@click.option(
    "--partition", metavar="INDEX", type=click.IntRange(-1), help="Only in this partition."
)
@click.option(
    "--lane", metavar="NUMBER", type=click.IntRange(0), help="Only in lanes with this number."
)
@click.option(
    "--force",
    is_flag=True,
    help="Fence active producers of lanes that lose their end; without it the command fails.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.cluster
@options.as_json
def truncate(
    *,
    name: str,
    from_: Point,
    to: Point | None,
    by: By | None,
    partition: int | None,
    lane: int | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Delete messages from a place on, or between two places.

    This applies to every lane of the topic. PLACE is that of `quire read`, which shows what
    would be deleted: earliest, the id of a message, or a time. Without --to, messages are
    deleted up to the end of each lane, and producers continue after the last one left; close
    active producers first, or fence them with --force. The ids of the other messages stay. May
    be interrupted and repeated.
    """
    wanted = TruncateRequest(name, from_, to, by, partition, lane, force)
    wanted, planned = trio.run(finish, partial(_plan, cluster, wanted))
    if not (dry_run or yes) and planned.messages:
        _show_truncated(planned, "would be deleted", to_err=True)
        confirm("Delete them?", refused="nothing was deleted")
    done = planned if dry_run else trio.run(finish, partial(_truncate, cluster, wanted, planned))
    if as_json:
        report = MessagesDeleted(
            topic=name,
            ledgers=done.ledgers,
            messages=done.messages,
            dry_run=dry_run,
            lanes=done.lanes,
        )
        click.echo(msgspec.json.encode(report).decode())
    else:
        _show_truncated(done, "would be deleted" if dry_run else "deleted", to_err=False)


async def _plan(cluster: str, wanted: TruncateRequest) -> tuple[TruncateRequest, Truncated]:
    """Return what would be deleted, and what names the same messages later."""
    async with connect(cluster) as client:
        start, end = wanted.start, wanted.end
        wanted = wanted._replace(
            start=await _dated(client, start),
            end=None if end is None else await _dated(client, end),
        )
        return wanted, await _delete(client, wanted, dry_run=True, on_removed=lambda _count: None)


async def _dated(client: Client, point: Point) -> Point:
    """Return a time that is relative to now by the store's clock, which also dated messages."""
    if not isinstance(point.number, Ago):
        return point
    now_ms = await client._context.catalogue.now_ms()
    return point._replace(number=now_ms * MS - point.number.length_ns)


async def _truncate(cluster: str, wanted: TruncateRequest, planned: Truncated) -> Truncated:
    async with connect(cluster) as client:
        with show_entries(f"deleting messages of {wanted.name}", planned.ledgers) as advance:
            return await _delete(client, wanted, dry_run=False, on_removed=advance)


async def _delete(
    client: Client,
    wanted: TruncateRequest,
    *,
    dry_run: bool,
    on_removed: Callable[[int], None],
) -> Truncated:
    topic = await client.topics.info(wanted.name)
    by: By = wanted.by or ("event-time" if topic.order == "event-time" else "publish-time")
    start = wanted.start.at(by)
    call = (
        partial(client.topics.truncate, wanted.name, start)
        if wanted.end is None
        else partial(client.topics.delete_messages, wanted.name, start, wanted.end.at(by))
    )
    return await call(
        partition=wanted.partition,
        lane=wanted.lane,
        force=wanted.force,
        dry_run=dry_run,
        on_removed=on_removed,
    )


def _show_truncated(done: Truncated, verb: str, *, to_err: bool) -> None:
    for lane in done.lanes:
        where = _place(lane.partition, lane.lane)
        behind = "all of it" if lane.last_kept is None else f"after {lane.last_kept}"
        click.echo(f"{where}: {count(lane.messages, 'message')}, {behind}", err=to_err)
    parts = (count(done.messages, "message"), count(done.ledgers, "whole ledger"))
    click.echo(f"{', '.join(parts)} {verb}", err=to_err)


def _place(partition: int, lane: int) -> str:
    return f"partition {partition}, lane {lane}" if partition >= 0 else f"lane {lane}"


# --- Purge ------------------------------------------------------------------------------


class LedgersPurged(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `purge --json`. Sizes are payload bytes of one copy."""

    topic: str
    ledgers: int
    messages: int
    size: int
    dry_run: bool
    kept: list[Fate]
    """the first ledger left in each lane, and why"""


class PurgePlace(NamedTuple):
    """Where to purge; `None` means everywhere."""

    partition: int | None
    lane: int | None


@click.command()
@options.topic
@click.option(
    "--before",
    type=MomentParam(published=True),
    metavar="TIME",
    help="Remove ledgers closed before TIME.",
)
@click.option(
    "--before-event-time",
    type=MomentParam(),
    metavar="TIME",
    help="Remove ledgers whose event times are all lower than TIME.",
)
@click.option(
    "--before-timestamp",
    type=click.IntRange(0, (1 << 64) - 1),
    metavar="NUMBER",
    help="Remove ledgers whose timestamps are all lower than NUMBER.",
)
@click.option("--all", "everything", is_flag=True, help="Remove every closed ledger.")
@click.option(
    "--partition", metavar="INDEX", type=click.IntRange(-1), help="Only in this partition."
)
@click.option(
    "--lane", metavar="NUMBER", type=click.IntRange(0), help="Only in lanes with this number."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
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
    """Remove closed ledgers that lie entirely before a time.

    TIME is a date and time (UTC unless it has an offset), nanoseconds since 1970, or a duration
    such as 7d for that long ago. A ledger that also has later messages stays, and so do open
    ledgers and all newer ones of the lane. Producers and readers carry on; a reader whose
    position was removed gets an error. May be interrupted and repeated.
    """
    end = _end(before, before_event_time, before_timestamp, everything)
    place = PurgePlace(partition, lane)
    ago = before if isinstance(before, Ago) else None
    purged = trio.run(finish, partial(_purge, cluster, name, end, ago, place, dry_run))
    report = LedgersPurged(
        topic=name,
        ledgers=len(purged.removed),
        messages=purged.messages,
        size=purged.size,
        dry_run=dry_run,
        kept=purged.kept,
    )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _show_purged(report)


def _end(
    before: int | None, event_time: int | None, timestamp: int | None, everything: bool
) -> Before | None:
    given = [value for value in (before, event_time, timestamp) if value is not None]
    if len(given) + everything != 1:
        raise click.UsageError(
            "choose what to remove: one of --before, --before-event-time, --before-timestamp, --all"
        )
    if before is not None:
        return PublishTime(before // MS)
    if event_time is not None:
        return EventTime(event_time)
    return None if timestamp is None else Timestamp(timestamp)


async def _purge(
    cluster: str,
    name: str,
    before: Before | None,
    ago: Ago | None,
    place: PurgePlace,
    dry_run: bool,
) -> Purged:
    async with connect(cluster) as client:
        if ago is not None:  # by the store's clock, which also dated the ledgers
            before = PublishTime(await client._context.catalogue.now_ms() - ago.length_ns // MS)
        where = place._asdict()
        planned = await client.topics.purge(name, before=before, **where, dry_run=True)
        if dry_run:
            return planned
        with show_entries(f"removing ledgers of {name}", len(planned.removed)) as advance:
            return await client.topics.purge(name, before=before, **where, on_removed=advance)


def _show_purged(report: LedgersPurged) -> None:
    verb = "would be removed" if report.dry_run else "removed"
    parts = (count(report.ledgers, "ledger"), count(report.messages, "message"), size(report.size))
    click.echo(f"{', '.join(parts)} {verb}")
    for fate in report.kept:
        where = _place(fate.partition, fate.lane)
        click.echo(f"{where}: ledger {fate.ledger.ledger_id} is the first one left: {fate.why}")
