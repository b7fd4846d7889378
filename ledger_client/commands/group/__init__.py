"""``quire group``: see, and look after, groups of consumers."""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "list": "ledger_client.commands.group.describe:list_",
    "describe": "ledger_client.commands.group.describe:describe",
    "members": "ledger_client.commands.group.members:members",
    "lag": "ledger_client.commands.group.progress:lag",
    "reset": "ledger_client.commands.group.progress:reset",
    "keep": "ledger_client.commands.group.retention:keep",
    "export": "ledger_client.commands.group.exports:export",
    "import": "ledger_client.commands.group.exports:import_",
    "delete": "ledger_client.commands.group.removal:delete",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def group() -> None:
    """See who consumes what and how far it came; reset, export, import and delete groups."""
