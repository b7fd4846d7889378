"""``quire bench``: how fast the disk is, and how fast quire is on it.

``disk`` is the floor. ``append``, ``read``, ``produce``, ``consume`` and ``replay`` measure it
too, in the same run and the same folder, and state their figures as a part of it. ``failover``
compares a writer with itself, before and after one of its bookies is killed; ``spark`` a topic
with what Spark reads fastest, ``compact`` with plain Spark over the same rows.
"""

from __future__ import annotations

import click

from ledger_client.commands.deferred import DeferredGroup

_COMMANDS = {
    "disk": "ledger_client.commands.bench.disk:disk",
    "append": "ledger_client.commands.bench.append:append",
    "read": "ledger_client.commands.bench.read:read",
    "produce": "ledger_client.commands.bench.produce:produce",
    "consume": "ledger_client.commands.bench.consume:consume",
    "replay": "ledger_client.commands.bench.replay:replay",
    "compact": "ledger_client.commands.bench.compact:compact",
    "spark": "ledger_client.commands.bench.spark:spark",
    "failover": "ledger_client.commands.bench.failover:failover",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def bench() -> None:
    """Measure disk, ledgers, topics, replay, compaction, and Spark.

    Figures stand beside what the disk does by itself, or Spark; failover says what the loss of a
    bookie does to a writer.
    """
