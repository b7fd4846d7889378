"""``quire cluster``: how the cluster is, and levelling its bookies."""

from __future__ import annotations

import click

from ledger_client.commands.deferred import DeferredGroup

_COMMANDS = {
    "status": "ledger_client.commands.cluster.status:status",
    "usage": "ledger_client.commands.cluster.usage:usage",
    "rebalance": "ledger_client.commands.cluster.rebalance:rebalance",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def cluster() -> None:
    """Look at the whole cluster, and move ledgers between bookies."""
