"""``quire cluster``: state, disk usage and balance of the whole cluster."""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "status": "ledger_client.commands.cluster.status:status",
    "usage": "ledger_client.commands.cluster.usage:usage",
    "rebalance": "ledger_client.commands.cluster.rebalance:rebalance",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def cluster() -> None:
    """Inspect the whole cluster, and balance its bookies."""
