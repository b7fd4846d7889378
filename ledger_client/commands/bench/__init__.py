"""``quire bench``: the speed of the disk, and of quire on it.

``disk`` measures the floor. ``append``, ``read``, ``produce``, ``consume`` and ``replay`` measure
it too, in the same run and folder, and relate their figures to it. ``order`` compares topics with
timesync with those without. ``failover`` compares a
writer's throughput before and after one of its bookies is killed, ``spark`` a topic with the
fastest that Spark can read, and ``compact`` with plain Spark over the same rows.
"""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "disk": "ledger_client.commands.bench.disk:disk",
    "append": "ledger_client.commands.bench.append:append",
    "read": "ledger_client.commands.bench.read:read",
    "produce": "ledger_client.commands.bench.produce:produce",
    "consume": "ledger_client.commands.bench.consume:consume",
    "replay": "ledger_client.commands.bench.replay:replay",
    "compact": "ledger_client.commands.bench.compact:compact",
    "spark": "ledger_client.commands.bench.spark:spark",
    "order": "ledger_client.commands.bench.order:order",
    "failover": "ledger_client.commands.bench.failover:failover",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def bench() -> None:
    """Measure disk, ledgers, topics, replay, compaction and Spark.

    Figures are related to the speed of the bare disk or of plain Spark, measured in the same run.
    """
