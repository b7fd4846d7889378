"""``quire bench``: how fast the disk is, and how fast quire is on it.

``disk`` is the floor. ``append``, ``read``, ``produce``, ``consume`` and ``replay`` measure it
too, in the same run and the same folder, and state their figures as a part of it. ``failover``
compares a writer with itself, before and after one of its bookies is killed; ``spark`` a topic
with what Spark reads fastest, ``compact`` with plain Spark over the same rows.
"""

from __future__ import annotations

import click

from ledger_client.commands.bench.append import append
from ledger_client.commands.bench.compact import compact
from ledger_client.commands.bench.consume import consume
from ledger_client.commands.bench.disk import disk
from ledger_client.commands.bench.failover import failover
from ledger_client.commands.bench.produce import produce
from ledger_client.commands.bench.read import read
from ledger_client.commands.bench.replay import replay
from ledger_client.commands.bench.spark import spark


@click.group()
def bench() -> None:
    """Measure disk, ledgers, topics, replay, compaction, and Spark.

    Figures stand beside what the disk does by itself, or Spark; failover says what the loss of a
    bookie does to a writer.
    """


for command in (disk, append, read, produce, consume, replay, compact, spark, failover):
    bench.add_command(command)
