"""``quire topic list``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.topic.tables import kept_for, moment_of_ms, show, table
from ledger_client.topics.catalogue import TopicInfo


@click.command("list")
@click.argument("namespace", required=False)
@click.option("--all", "own", is_flag=True, help="Also quire's own, such as __events.")
@options.cluster
@options.as_json
def list_(*, namespace: str | None, own: bool, cluster: str, as_json: bool) -> None:
    """List the topics of NAMESPACE, or all; with --json, an object on a line for each."""
    found = trio.run(finish, partial(_list, cluster, namespace, own))
    if as_json:
        for topic in found:
            click.echo(msgspec.json.encode(topic).decode())
    elif found:
        _tell(found)


async def _list(cluster: str, namespace: str | None, own: bool) -> list[TopicInfo]:
    async with ledger_client.connect(cluster) as client:
        return await client.list_topics(namespace, own=own)


def _tell(found: list[TopicInfo]) -> None:
    right = ("partitions", "copies")
    drawn = table("topic", *right, "order", "compression", "kept", "created", right=right)
    for topic in found:
        drawn.add_row(
            topic.name,
            str(topic.partitions) if topic.partitions else "-",
            str(topic.replication),
            topic.order,
            topic.compression,
            kept_for(topic.retention),
            moment_of_ms(topic.created_ms),
        )
    show(drawn)
