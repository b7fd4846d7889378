"""Make grafana/pictures anew: a cluster under load for some minutes, and what it looked like.

    pip install -e '.[dev,pictures]'
    python tests/support/make_pictures.py

Needs Prometheus, a free gigabyte, and five minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import trio
from dashboard_pictures import Album
from panel_queries import ROOT, dashboards
from watched import CLICKS, ORDERS, Load, Watched, compact, hold_job, kill_one, watched

from metadata.listings import leader

MINUTES = 4.0
PICTURES = ROOT / "grafana" / "pictures"


async def tell_story(folder: Path, minutes: float) -> None:
    """Run the load for so long, then draw."""
    part_s = minutes * 60 / 12
    async with watched(folder) as cluster, trio.open_nursery() as tasks:
        await tasks.start(Load(cluster.client).run)
        began = time.time()
        await trio.sleep(2 * part_s)
        await compact(cluster.client, ORDERS)
        await trio.sleep(part_s)
        await _lose_one(cluster, part_s)
        async with trio.open_nursery() as jobs:
            await jobs.start(hold_job, cluster.client, CLICKS)
            await trio.sleep(2 * part_s)
            await compact(cluster.client, ORDERS)
            jobs.cancel_scope.cancel()
        await trio.sleep(4 * part_s)
        await trio.to_thread.run_sync(_draw, cluster, began)
        tasks.cancel_scope.cancel()


async def _lose_one(cluster: Watched, part_s: float) -> None:
    """Kill a bookie, and start it again when its ledgers are elsewhere."""
    found = await leader(cluster.client._context.store)
    assert found is not None
    bookie, words = kill_one(cluster.sandbox, found.bookie_id)
    await trio.sleep(2 * part_s)
    await cluster.sandbox.restart(bookie, words)
    await trio.sleep(part_s)


def _draw(cluster: Watched, began: float) -> None:
    PICTURES.mkdir(exist_ok=True)
    album = Album(cluster.server, began, time.time())
    for name, dashboard in dashboards().items():
        album.draw(dashboard, PICTURES / f"{name}.png")


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="quire-pictures-") as folder:
        trio.run(tell_story, Path(folder), minutes)


if __name__ == "__main__":
    main()
