"""``quire group delete``."""

from __future__ import annotations

from functools import partial

import click
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.outcome import finish


@click.command()
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete it although it has members.")
@options.cluster
def delete(*, name: str, yes: bool, force: bool, cluster: str) -> None:
    """Delete a group with its progress.

    A group with members is deleted only by --force. Consumers that go on found it anew, without
    progress.
    """
    if not yes:
        click.confirm(f"Delete group {name} with its progress?", abort=True, err=True)
    trio.run(finish, partial(_delete, cluster, name, force))


async def _delete(cluster: str, name: str, force: bool) -> None:
    async with connect(cluster) as client:
        await client.groups.delete(name, force=force)
