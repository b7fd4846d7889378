"""The command ``quire``: topics, ledgers, the cluster, a demonstration and benchmarks."""

from __future__ import annotations

import sys

import click

from ledger_client.commands import DeferredGroup
from ledger_client.commands.outcome import conclude
from metadata import cluster_options

_COMMANDS = {
    "topic": "ledger_client.commands.topic:topic",
    "produce": "ledger_client.commands.produce:produce",
    "read": "ledger_client.commands.read:read",
    "consume": "ledger_client.commands.consume:consume",
    "group": "ledger_client.commands.group:group",
    "tso": "ledger_client.commands.tso:tso",
    "cut": "ledger_client.commands.cut:cut",
    "compact": "ledger_client.commands.compact:compact",
    "replay": "ledger_client.commands.replay:replay",
    "scrub": "ledger_client.commands.scrub:scrub",
    "ledger": "ledger_client.commands.ledger:ledger",
    "cluster": "ledger_client.commands.cluster:cluster",
    "demo": "ledger_client.commands.demo.story:demo",
    "monitoring": "ledger_client.commands.monitoring:monitoring",
    "bench": "ledger_client.commands.bench:bench",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
@cluster_options.cluster_of_group
@cluster_options.profile
@click.version_option(package_name="quire", message="quire %(version)s")
def quire() -> None:
    """Write, read and look after topics and replicated ledgers.

    New here? `quire demo` shows everything on this machine in a minute. For a cluster that
    stays, run `bookie standalone --data DIR`.

    Exit codes: 0 done; 1 failed, or damage found; 2 wrong command line; 3 no bookie answers;
    130 interrupted.
    """


def main() -> None:
    """Run the command line and exit with its code (see commands/outcome.py)."""
    sys.exit(conclude(quire, sys.argv[1:]))


if __name__ == "__main__":
    main()
