"""``quire topic delete``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.errors import Interrupted
from ledger_client.commands.interruption import finish, interrupted
from ledger_client.commands.progress import show_entries
from ledger_client.commands.quantity import count
from ledger_client.commands.topic.settings import name
from ledger_client.topics.errors import NoSuchTopic


class Deleted(msgspec.Struct, frozen=True):
    """What --json prints."""

    topic: str
    ledgers: int
    """that were removed here"""
    complete: bool


@click.command()
@name
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.cluster
@options.as_json
def delete(*, name: str, yes: bool, cluster: str, as_json: bool) -> None:
    """Delete a topic with all that it holds.

    From the first step on nobody finds it; producers and readers that use it learn it. When
    this is interrupted, the cluster's leader ends it. Bookies free the space when they collect
    garbage next.
    """
    if not yes:
        held = count(trio.run(finish, partial(_look, cluster, name)), "ledger")
        told = f"Delete topic {name} with all its messages, in {held}?"
        click.confirm(told, abort=True, err=True)
    deleted = trio.run(_delete, cluster, name)
    if as_json:
        click.echo(msgspec.json.encode(deleted).decode())
    elif not deleted.complete:
        ledgers = count(deleted.ledgers, "ledger")
        click.echo(f"interrupted; {ledgers} removed, the leader removes the rest", err=True)
    if not deleted.complete:
        raise Interrupted


async def _look(cluster: str, name: str) -> int:
    """Return how many ledgers there are; also of a topic whose deletion was interrupted."""
    async with ledger_client.connect(cluster) as client:
        if await client.topics.find(name) is None:
            raise NoSuchTopic(name)
        return await client.count_ledgers(name)


async def _delete(cluster: str, name: str) -> Deleted:
    ledgers = 0

    async with ledger_client.connect(cluster) as client:
        held = await client.count_ledgers(name)
        with show_entries(held) as advance:

            def removed(number: int) -> None:
                nonlocal ledgers
                ledgers += number
                advance(number)

            cut_short = await interrupted(partial(client.delete_topic, name, on_removed=removed))
    return Deleted(name, ledgers, not cut_short)
