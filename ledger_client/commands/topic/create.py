"""``quire topic create``."""

from __future__ import annotations

from functools import partial
from typing import Literal

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.topic.settings import Settings, name, settings
from ledger_client.topics.administration import ONE_COPY
from ledger_client.topics.alteration import REPLICATION
from ledger_client.topics.catalogue import TopicInfo
from metadata.topics import Retention, RollPolicy, Schema

Order = Literal["none", "event-time"]


@click.command()
@name
@settings
@click.option(
    "--order",
    type=click.Choice(["none", "event-time"]),
    default="none",
    show_default=True,
    help="event-time: an event time lower than the last one of its lane is refused.",
)
@options.cluster
@options.as_json
def create(*, name: str, given: Settings, order: Order, cluster: str, as_json: bool) -> None:
    """Make a topic and print its name.

    It is told on the topic __events of its namespace, as every change of a topic is. Messages
    have two copies; in a cluster of one bookie one, with a warning. While bookies are away and
    fewer than two are left, say --replication 1 or wait.
    """
    made = trio.run(finish, partial(_create, cluster, name, order, given))
    if not as_json:
        click.echo(made.name)
        return
    told = msgspec.to_builtins(made)
    if given.replication is None and made.replication < REPLICATION:
        told["warning"] = ONE_COPY
    click.echo(msgspec.json.encode(told).decode())


async def _create(cluster: str, name: str, order: Order, given: Settings) -> TopicInfo:
    async with ledger_client.connect(cluster) as client:
        return await client.create_topic(
            name,
            given.partitions or 0,
            replication=given.replication,
            ack_quorum=given.ack_quorum,
            order=order,
            compression=given.compression or "none",
            roll=given.roll(RollPolicy()),
            retention=given.retention(Retention()),
            schema=given.schema_after(Schema()),
            properties=given.properties_after({}),
        )
