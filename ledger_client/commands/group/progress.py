"""``quire group lag`` and ``reset``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio
from rich.live import Live
from rich.table import Table

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.group.names import group_name
from ledger_client.commands.group.new_places import GroupReset, print_reset
from ledger_client.commands.outcome import finish
from ledger_client.commands.places import BYS, By, PlaceOrTime, Point
from ledger_client.commands.tables import Output, partition_text, show, table
from ledger_client.groups.consumers import GroupLane
from ledger_client.topics.positions import Position
from metadata.outcome import confirm

WATCH_S = 2.0


@click.command()
@group_name
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable."
)
@click.option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@options.cluster
@options.as_json
def lag(*, name: str, topics: tuple[str, ...], watch: bool, cluster: str, as_json: bool) -> None:
    """Show how far a group came in each lane.

    "lag" counts the messages that the group has not done, and "oldest" is the time since the first
    of them was sent. A number with ~ is an estimate: then the group is more than some batches
    behind within a ledger. "unacked", shown for shared groups, counts those of "lag" that members
    hold and have not acknowledged.

    "committed" and "end" count entries, each a batch of messages: the group goes on at
    "committed", where in a shared group messages begin that no member has taken. "member" has the
    partition. Without --topic, all topics are shown in which the group has committed something.
    """
    trio.run(finish, partial(_lag, cluster, name, topics, watch, as_json))


async def _lag(
    cluster: str, name: str, topics: tuple[str, ...], watch: bool, as_json: bool
) -> None:
    async with connect(cluster) as client:
        if watch and not as_json and sys.stdout.isatty():
            with Live(console=Output(), auto_refresh=False) as live:
                while True:
                    live.update(await _look(client, name, topics), refresh=True)
                    await trio.sleep(WATCH_S)
        while True:
            if as_json:
                found = await client.groups.lag(name, topics)
                click.echo(msgspec.json.encode(found).decode())
            else:
                show(await _look(client, name, topics))
            if not watch:
                return
            await trio.sleep(WATCH_S)


async def _look(client: Client, name: str, topics: tuple[str, ...]) -> Table:
    lanes = await client.groups.lag(name, topics)
    is_shared = (await client.groups._record(name)).mode != "exclusive"
    return _table(lanes, with_unacked=is_shared)


def _table(lanes: Sequence[GroupLane], *, with_unacked: bool) -> Table:
    shared = ("unacked",) if with_unacked else ()
    rows = table(
        *("topic", "partition", "lane", "committed", "end", "lag", *shared, "oldest", "member"),
        right=("lane", "committed", "end", "lag", "unacked", "oldest"),
    )
    for lane in lanes:
        committed = "-" if lane.committed < 0 else str(lane.committed)
        lag = f"{'' if lane.is_exact else '~'}{lane.lag}"
        unacked = (str(lane.unacked),) if with_unacked else ()
        rows.add_row(
            *(lane.topic, partition_text(lane.partition), str(lane.lane), committed),
            *(str(lane.end), lag, *unacked, f"{lane.lag_s:.1f} s" if lane.lag else "-"),
            lane.member or "-",
        )
    return rows


class ResetRequest(NamedTuple):
    """The options and arguments of the command line."""

    cluster: str
    group: str
    to: Point
    by: By
    topics: tuple[str, ...]


@click.command()
@group_name
@click.option("--to", type=PlaceOrTime(), required=True, metavar="PLACE", help="Go on at PLACE.")
@click.option(
    "--by",
    type=click.Choice(BYS),
    default="publish-time",
    show_default=True,
    help="Kind of the time in PLACE.",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Show the new places, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.cluster
@options.as_json
def reset(
    *,
    name: str,
    to: Point,
    by: By,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Let a group go on from another place. Its consumers must be stopped.

    PLACE is earliest, latest, the id of a message (ledger:entry:partition:batch), which changes
    its partition alone, or a time: a date and time, nanoseconds since 1970, or a duration such as
    15min for that long ago; a number with --by timestamp is one that quire tso get prints. The new
    places are shown before anything is changed. Without --topic, all topics are reset in which the
    group has committed something.
    """
    request = ResetRequest(cluster, name, to, by, topics)
    if dry_run or not yes:
        planned = trio.run(finish, partial(_reset, request, dry_run=True))
        print_reset(GroupReset(name, True, planned), as_json)
        if dry_run:
            return
        confirm(f"Let group {name} go on there?", refused="nothing was changed")
    done = trio.run(finish, partial(_reset, request, dry_run=False))
    if as_json or yes:
        print_reset(GroupReset(name, False, done), as_json)


async def _reset(request: ResetRequest, *, dry_run: bool) -> Position:
    async with connect(request.cluster) as client:
        to = request.to.at(request.by)
        return await client.groups.reset(request.group, to, request.topics, dry_run=dry_run)
