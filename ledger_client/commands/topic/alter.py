"""``quire topic alter``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.topic.settings import Settings, changes, name
from ledger_client.topics.catalogue import TopicInfo


@click.command()
@name
@changes
@options.cluster
@options.as_json
def alter(*, name: str, given: Settings, cluster: str, as_json: bool) -> None:
    """Alter the settings of a topic that are given; the others stay.

    Limits, copies and compression hold for ledgers that are begun afterwards; retention
    holds for all. The order of a topic stays.

    Partitions can be added; messages with a key may go to another partition afterwards. So
    one that a named producer sent before that, and sends again after it, may be kept twice:
    let producers flush first.
    """
    if given == Settings():
        raise click.UsageError("nothing is to be altered")
    altered = trio.run(finish, partial(_alter, cluster, name, given))
    if as_json:
        click.echo(msgspec.json.encode(altered).decode())


async def _alter(cluster: str, name: str, given: Settings) -> TopicInfo:
    async with ledger_client.connect(cluster) as client:
        now = await client.topic(name)
        return await client.alter_topic(
            name,
            partitions=given.partitions,
            replication=given.replication,
            ack_quorum=given.ack_quorum,
            compression=given.compression,
            roll=given.roll(now.roll),
            retention=given.retention(now.retention),
            schema=given.schema_after(now.schema),
            properties=given.properties_after(now.properties),
        )
