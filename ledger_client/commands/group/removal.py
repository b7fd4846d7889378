"""``quire group delete``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.group.names import group_name
from ledger_client.commands.outcome import finish
from metadata.outcome import confirm


class GroupDeleted(msgspec.Struct, frozen=True):
    """The output of `group delete --json`."""

    group: str


@click.command()
@group_name
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete it although it has members.")
@options.cluster
@options.as_json
def delete(*, name: str, yes: bool, force: bool, cluster: str, as_json: bool) -> None:
    """Delete a group with its progress.

    A group with members is deleted only by --force. Consumers that go on found it anew, without
    progress.
    """
    if not yes:
        trio.run(finish, partial(_find, cluster, name))
        confirm(f"Delete group {name} with its progress?", refused="nothing was deleted")
    trio.run(finish, partial(_delete, cluster, name, force))
    if as_json:
        click.echo(msgspec.json.encode(GroupDeleted(name)).decode())


async def _find(cluster: str, name: str) -> None:
    """Raise BadGroup if there is no such group."""
    async with connect(cluster) as client:
        await client.groups.describe(name)


async def _delete(cluster: str, name: str, force: bool) -> None:
    async with connect(cluster) as client:
        await client.groups.delete(name, force=force)
