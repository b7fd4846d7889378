"""``quire topic``: topics made, looked at, altered, emptied and deleted."""

from __future__ import annotations

import click

from ledger_client.commands.deferred import DeferredGroup

_COMMANDS = {
    "create": "ledger_client.commands.topic.create:create",
    "list": "ledger_client.commands.topic.listing:list_",
    "describe": "ledger_client.commands.topic.describe:describe",
    "explain": "ledger_client.commands.topic.explain:explain",
    "alter": "ledger_client.commands.topic.alter:alter",
    "purge": "ledger_client.commands.topic.purge:purge",
    "truncate": "ledger_client.commands.topic.truncate:truncate",
    "delete": "ledger_client.commands.topic.delete:delete",
    "lanes": "ledger_client.commands.topic.lanes:lanes",
    "rename-lane": "ledger_client.commands.topic.lanes:rename_lane",
    "delete-lane": "ledger_client.commands.topic.lanes:delete_lane",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def topic() -> None:
    """Make topics, look after them, and see what they hold and why."""
