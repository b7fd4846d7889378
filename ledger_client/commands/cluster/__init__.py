"""``quire cluster``: how the cluster is, and levelling its bookies."""

from __future__ import annotations

import click

from ledger_client.commands.cluster.rebalance import rebalance
from ledger_client.commands.cluster.status import status
from ledger_client.commands.cluster.usage import usage


@click.group()
def cluster() -> None:
    """Look at the whole cluster, and move ledgers between bookies."""


for command in (status, usage, rebalance):
    cluster.add_command(command)
