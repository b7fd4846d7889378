"""``quire ledger``: single ledgers, the level beneath topics."""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "create": "ledger_client.commands.ledger.catalogue:create",
    "list": "ledger_client.commands.ledger.catalogue:list_",
    "info": "ledger_client.commands.ledger.catalogue:info",
    "write": "ledger_client.commands.ledger.entries:write",
    "read": "ledger_client.commands.ledger.entries:read",
    "follow": "ledger_client.commands.ledger.entries:follow",
    "recover": "ledger_client.commands.ledger.catalogue:recover",
    "verify": "ledger_client.commands.ledger.verify:verify",
    "delete": "ledger_client.commands.ledger.catalogue:delete",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def ledger() -> None:
    """Work with single ledgers, the level beneath topics."""
