"""The command ``quire``: topics, ledgers, the cluster, a demonstration, measurements."""

from __future__ import annotations

import sys

import click

from ledger_client.commands.bench import bench
from ledger_client.commands.cluster import cluster
from ledger_client.commands.compact import compact
from ledger_client.commands.demo import demo
from ledger_client.commands.ledger import ledger
from ledger_client.commands.messages import read
from ledger_client.commands.monitoring import monitoring
from ledger_client.commands.outcome import conclude
from ledger_client.commands.produce import produce
from ledger_client.commands.replay import replay
from ledger_client.commands.scrub import scrub
from ledger_client.commands.topic import topic


@click.group()
@click.version_option(package_name="quire", message="quire %(version)s")
def quire() -> None:
    """Write and read topics and replicated ledgers.

    Try `quire demo` first: it needs nothing but this installation.
    """


for command in (
    topic,
    produce,
    read,
    compact,
    replay,
    scrub,
    ledger,
    cluster,
    demo,
    monitoring,
    bench,
):
    quire.add_command(command)


def main() -> None:
    """Run the command line and exit with its code (see commands/outcome.py)."""
    sys.exit(conclude(quire, sys.argv[1:]))


if __name__ == "__main__":
    main()
