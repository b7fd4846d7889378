"""``quire topic truncate``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.messages import BYS, By, PlaceOrTime, Point
from ledger_client.commands.progress import show_entries
from ledger_client.commands.quantity import count
from ledger_client.commands.topic.settings import name
from ledger_client.topics.client import TopicClient
from ledger_client.topics.keeping.truncation import LaneTruncated, Truncated


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    topic: str
    ledgers: int
    """that held nothing else"""
    messages: int
    dry_run: bool
    lanes: list[LaneTruncated]


class Wanted(NamedTuple):
    """What is to go, and where."""

    name: str
    start: Point
    end: Point | None
    by: By | None
    partition: int | None
    lane: int | None
    force: bool


@click.command()
@name
@click.option(
    "--from", "from_", type=PlaceOrTime(), required=True, metavar="PLACE", help="Begin with it."
)
@click.option("--to", type=PlaceOrTime(), metavar="PLACE", help="End with it; else with the last.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    show_default="event-time where the topic is ordered by it, else publish-time",
    help="What times in PLACE mean.",
)
@click.option("--partition", type=click.IntRange(-1), help="Only in this partition.")
@click.option("--lane", type=click.IntRange(0), help="Only in lanes of this number.")
@click.option("--force", is_flag=True, help="End producers that write what is to be cut.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    """Delete the messages of a topic from a place on, or up to another, in every lane.

    PLACE is what `quire read` takes, and shows what would go: earliest, the id of a message, or
    a time. Nobody reads it again; ids of the others are as they were, and producers go on from
    the last message that stays. A producer that writes a lane which is cut at its end must be
    closed first, or is ended by --force. May be interrupted and repeated.
    """
    wanted = Wanted(name, from_, to, by, partition, lane, force)
    planned = trio.run(finish, partial(_plan, cluster, wanted))
    if not (dry_run or yes) and planned.messages:
        _tell(planned, "would be deleted", to_err=True)
        click.confirm("Delete them?", abort=True, err=True)
    done = planned if dry_run else trio.run(finish, partial(_truncate, cluster, wanted, planned))
    if as_json:
        told = Deleted(
            topic=name,
            ledgers=done.ledgers,
            messages=done.messages,
            dry_run=dry_run,
            lanes=done.lanes,
        )
        click.echo(msgspec.json.encode(told).decode())
    else:
        _tell(done, "would be deleted" if dry_run else "deleted", to_err=False)


async def _plan(cluster: str, wanted: Wanted) -> Truncated:
    async with ledger_client.connect(cluster) as client:
        return await _delete(client, wanted, dry_run=True, on_removed=lambda _count: None)


async def _truncate(cluster: str, wanted: Wanted, planned: Truncated) -> Truncated:
    async with ledger_client.connect(cluster) as client:
        with show_entries(planned.ledgers) as advance:
            return await _delete(client, wanted, dry_run=False, on_removed=advance)


async def _delete(
    client: TopicClient, wanted: Wanted, *, dry_run: bool, on_removed: Callable[[int], None]
) -> Truncated:
    topic = await client.topic(wanted.name)
    by: By = wanted.by or ("event-time" if topic.order == "event-time" else "publish-time")
    start = wanted.start.at(by)
    call = (
        partial(client.truncate_topic, wanted.name, start)
        if wanted.end is None
        else partial(client.delete_messages, wanted.name, start, wanted.end.at(by))
    )
    return await call(
        partition=wanted.partition,
        lane=wanted.lane,
        force=wanted.force,
        dry_run=dry_run,
        on_removed=on_removed,
    )


def _tell(done: Truncated, verb: str, *, to_err: bool) -> None:
    for lane in done.lanes:
        where = f"partition {lane.partition}, lane {lane.lane}"
        behind = "all of it" if lane.last_kept is None else f"behind {lane.last_kept}"
        click.echo(f"{where}: {count(lane.messages, 'message')}, {behind}", err=to_err)
    parts = (count(done.messages, "message"), count(done.ledgers, "whole ledger"))
    click.echo(f"{', '.join(parts)} {verb}", err=to_err)
