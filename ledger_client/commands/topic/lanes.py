"""``quire topic lanes``, ``rename-lane`` and ``delete-lane``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.commands.tables import LaneDescribed, count, lanes_table, show
from ledger_client.errors import lane_text
from ledger_client.topics.retention.explanation import LaneExplained
from ledger_client.topics.retention.lane_parts import Truncated
from metadata.outcome import confirm
from metadata.topics import TopicRecord

_lane = click.argument("lane", type=click.IntRange(0))
_partition = click.option(
    "--partition",
    type=click.IntRange(-1),
    metavar="INDEX",
    show_default="the only one of a topic without partitions",
    help="The lane's partition; required if the topic has partitions.",
)


class LaneDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `topic delete-lane --json`; *partition* is -1 if there is only one."""

    topic: str
    partition: int
    lane: int
    messages: int


@click.command()
@options.topic
@options.cluster
@options.as_json
def lanes(*, name: str, cluster: str, as_json: bool) -> None:
    """List a topic's lanes with their names, contents and writers."""
    found = trio.run(finish, partial(_lanes, cluster, name))
    described = [LaneDescribed.of(lane) for lane in found]
    if as_json:
        for lane in described:
            click.echo(msgspec.json.encode(lane).decode())
    else:
        show(lanes_table(described))


async def _lanes(cluster: str, name: str) -> list[LaneExplained]:
    async with connect(cluster) as client:
        return await client.topics.lanes(name)


@click.command("rename-lane")
@options.topic
@_lane
@click.argument("new_name", metavar="NEW_NAME")
@_partition
@options.cluster
def rename_lane(
    *, name: str, lane: int, new_name: str, partition: int | None, cluster: str
) -> None:
    """Rename a lane; '' removes its name.

    Its present writer carries on; the next one has to use the new name.
    """
    index = _index_of(cluster, name, partition)
    trio.run(finish, partial(_rename, cluster, name, index, lane, new_name))


async def _rename(cluster: str, name: str, partition: int, lane: int, new_name: str) -> None:
    async with connect(cluster) as client:
        await client.topics.rename_lane(name, partition, lane, new_name)


@click.command("delete-lane")
@options.topic
@_lane
@_partition
@click.option("--force", is_flag=True, help="Fence an active writer; without it the command fails.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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
    """Delete a lane of a topic with all its messages."""
    index = _index_of(cluster, name, partition)
    if not yes:
        question = f"Delete {lane_text(index, lane)} with all its messages?"
        confirm(question, refused="nothing was deleted")
    went = trio.run(finish, partial(_delete, cluster, name, index, lane, force))
    if as_json:
        deleted = LaneDeleted(topic=name, partition=index, lane=lane, messages=went.messages)
        click.echo(msgspec.json.encode(deleted).decode())
    else:
        click.echo(f"lane {lane}: {count(went.messages, 'message')} deleted")


async def _delete(cluster: str, name: str, partition: int, lane: int, force: bool) -> Truncated:
    async with connect(cluster) as client:
        return await client.topics.delete_lane(name, partition, lane, force=force)


def _index_of(cluster: str, name: str, partition: int | None) -> int:
    """Return the lane's partition. Raises UsageError if it is not given or does not exist."""
    topic = trio.run(finish, partial(_topic, cluster, name))
    there = topic.partition_indexes
    if partition is None and topic.partitions:
        raise click.UsageError(
            f"topic {name} has {count(topic.partitions, 'partition')}, each with lanes of its "
            f"own: choose one with --partition, {there[0]} to {there[-1]}"
        )
    if partition is not None and partition not in there:
        raise click.UsageError(f"topic {name} has no partition {partition}")
    return there[0] if partition is None else partition


async def _topic(cluster: str, name: str) -> TopicRecord:
    async with connect(cluster) as client:
        return await client.topics.info(name)
