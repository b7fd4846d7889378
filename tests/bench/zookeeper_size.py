"""What ledgers take of a ZooKeeper: ``python tests/bench/zookeeper_size.py``.

One ZooKeeper on this host, with the ledgers of a topic: each has BookKeeper's record, and a row in
its lane. It takes about a minute, and prints for each ledger the bytes of Java's memory, of
ZooKeeper's snapshot, and of the records themselves; then how long ZooKeeper takes to start.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.append(str(Path(__file__).parents[1] / "support"))

from ensemble import Ensemble
from metadata_load import fill

from metadata.urls import open_store

LEDGERS = 100_000


def say(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<40} {figure:>9.1f} {unit}\n")


async def put_ledgers(url: str, count: int) -> int:
    """Found a cluster with so many ledgers; return the bytes of their records."""
    async with open_store(url, create=True) as store:
        return await fill(store, count, random.Random(1)) if count else 0


def started(zookeeper: Ensemble) -> float:
    """Start the ZooKeeper; return the seconds until it serves."""
    began = time.perf_counter()
    zookeeper.start()
    zookeeper.wait()
    return time.perf_counter() - began


def nodes(zookeeper: Ensemble) -> int:
    found = re.search(r"zk_znode_count\t(\d+)", zookeeper.command(0, b"mntr"))
    assert found is not None
    return int(found[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        zookeeper = Ensemble(Path(name), 1, options=["-Xmx2g"])
        try:
            empty_s = started(zookeeper)
            trio.run(put_ledgers, zookeeper.url("/bench"), 0)
            before, heap = nodes(zookeeper), zookeeper.heap_size(0)
            began = time.perf_counter()
            size = trio.run(put_ledgers, zookeeper.url("/bench"), LEDGERS)
            say("ledgers, with their rows", LEDGERS / (time.perf_counter() - began), "/s")
            say("nodes of a ledger", (nodes(zookeeper) - before) / LEDGERS, "")
            say("records of a ledger", size / LEDGERS, "B")
            say("memory of a ledger", (zookeeper.heap_size(0) - heap) / LEDGERS, "B")
            zookeeper.kill()
            started(zookeeper)  # from its log, and makes a snapshot
            zookeeper.kill()
            full_s = started(zookeeper)
            say("memory of a ledger after a start", (zookeeper.heap_size(0) - heap) / LEDGERS, "B")
            say("snapshot of a ledger", zookeeper.snapshot_size(0) / LEDGERS, "B")
            say("start without ledgers", empty_s, "s")
            say(f"start with {LEDGERS:,} ledgers", full_s, "s")
        finally:
            zookeeper.kill()


if __name__ == "__main__":
    main()
