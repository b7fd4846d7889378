"""``quire topic lanes``, ``rename-lane`` and ``delete-lane``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.quantity import count
from ledger_client.commands.topic.describe import LaneDescribed, lanes_table
from ledger_client.commands.topic.settings import name
from ledger_client.commands.topic.tables import show
from ledger_client.topics.keeping.explanation import LaneExplained
from ledger_client.topics.keeping.truncation import Truncated
from metadata.topics import TopicRecord

_lane = click.argument("lane", type=click.IntRange(0))
_partition = click.option(
    "--partition",
    type=click.IntRange(-1),
    show_default="the only one of a topic without partitions",
    help="Of this partition; a topic with partitions asks for it.",
)


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    topic: str
    partition: int
    lane: int
    messages: int


@click.command()
@name
@options.cluster
@options.as_json
def lanes(*, name: str, cluster: str, as_json: bool) -> None:
    """List the lanes of a topic: their names, what they hold, and who writes them."""
    found = trio.run(finish, partial(_lanes, cluster, name))
    described = [LaneDescribed.of(lane) for lane in found]
    if as_json:
        for lane in described:
            click.echo(msgspec.json.encode(lane).decode())
    else:
        show(lanes_table(described))


async def _lanes(cluster: str, name: str) -> list[LaneExplained]:
    async with ledger_client.connect(cluster) as client:
        return await client.lanes(name)


@click.command("rename-lane")
@name
@_lane
@click.argument("new_name", metavar="NEW_NAME")
@_partition
@options.cluster
def rename_lane(
    *, name: str, lane: int, new_name: str, partition: int | None, cluster: str
) -> None:
    """Give a lane a name, in the place of the one it has; '' takes it away.

    Whoever writes the lane goes on; the next one asks for it by its new name.
    """
    index = _index_of(cluster, name, partition)
    trio.run(finish, partial(_rename, cluster, name, index, lane, new_name))


async def _rename(cluster: str, name: str, partition: int, lane: int, new_name: str) -> None:
    async with ledger_client.connect(cluster) as client:
        await client.rename_lane(name, partition, lane, new_name)


@click.command("delete-lane")
@name
@_lane
@_partition
@click.option("--force", is_flag=True, help="End who writes it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.cluster
@options.as_json
def delete_lane(
    *,
    name: str,
    lane: int,
    partition: int | None,
    force: bool,
    yes: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Delete a lane of a topic, with its messages and its name."""
    index = _index_of(cluster, name, partition)
    if not yes:
        where = f" of partition {index}" if index >= 0 else ""
        click.confirm(f"Delete lane {lane}{where} with all its messages?", abort=True, err=True)
    went = trio.run(finish, partial(_delete, cluster, name, index, lane, force))
    if as_json:
        told = Deleted(topic=name, partition=index, lane=lane, messages=went.messages)
        click.echo(msgspec.json.encode(told).decode())
    else:
        click.echo(f"lane {lane}: {count(went.messages, 'message')} deleted")


async def _delete(cluster: str, name: str, partition: int, lane: int, force: bool) -> Truncated:
    async with ledger_client.connect(cluster) as client:
        return await client.delete_lane(name, partition, lane, force=force)


def _index_of(cluster: str, name: str, partition: int | None) -> int:
    """Return the partition that is meant. Raises UsageError: it is not said, or not there."""
    topic = trio.run(finish, partial(_topic, cluster, name))
    there = topic.partition_indexes
    if partition is None and topic.partitions:
        raise click.UsageError(
            f"topic {name} has {count(topic.partitions, 'partition')}, each with lanes of its "
            f"own: say which by --partition, {there[0]} to {there[-1]}"
        )
    if partition is not None and partition not in there:
        raise click.UsageError(f"topic {name} has no partition {partition}")
    return there[0] if partition is None else partition


async def _topic(cluster: str, name: str) -> TopicRecord:
    async with ledger_client.connect(cluster) as client:
        return await client.topic(name)
