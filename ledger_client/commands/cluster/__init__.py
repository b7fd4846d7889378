"""``quire cluster``: how the cluster is."""

from __future__ import annotations

import click

from ledger_client.commands.cluster.status import status


@click.group()
def cluster() -> None:
    """Look at the whole cluster."""


cluster.add_command(status)
