"""``quire topic``: create, inspect, alter, empty and delete topics."""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "create": "ledger_client.commands.topic.settings:create",
    "list": "ledger_client.commands.topic.describe:list_",
    "describe": "ledger_client.commands.topic.describe:describe",
    "explain": "ledger_client.commands.topic.describe:explain",
    "why": "ledger_client.commands.topic.why:why",
    "alter": "ledger_client.commands.topic.settings:alter",
    "roll": "ledger_client.commands.topic.rolls:roll",
    "purge": "ledger_client.commands.topic.removal:purge",
    "truncate": "ledger_client.commands.topic.removal:truncate",
    "delete": "ledger_client.commands.topic.removal:delete",
    "lanes": "ledger_client.commands.topic.lanes:lanes",
    "rename-lane": "ledger_client.commands.topic.lanes:rename_lane",
    "delete-lane": "ledger_client.commands.topic.lanes:delete_lane",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def topic() -> None:
    """Create and look after topics, and see what they hold and why."""
