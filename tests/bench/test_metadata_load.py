"""The model of a large cluster's metadata agrees with small clusters, counted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import trio
from daemons import Daemon
from metadata_costs import Cost, lanes_idle, registration
from metadata_load import HOUR_S, Plan, Units, check, count_units, draw_hour, predict, roles

import ledger_client
from bookie.commands.standalone import ClusterStarted

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("figures")]
SECONDS = 20.0


@pytest.fixture(scope="module")
def units() -> Units:
    """Counted once, which takes many seconds."""
    return count_units()


def test_small_clusters_cost_what_the_model_says(units: Units) -> None:
    for name, counted, modelled in check(units):
        for field, one, other in zip(Cost._fields, counted, modelled, strict=True):
            assert one == pytest.approx(other, rel=0.15, abs=0.1), (name, field)


def test_an_hour_is_the_same_for_a_seed_and_has_the_changes_that_are_predicted(
    units: Units,
) -> None:
    plan = Plan(bookies=100, lanes=10_000)
    hour = draw_hour(units, plan)
    assert hour == draw_hour(units, plan)
    parts = predict(units, plan)
    named = ["lanes held", "rolls", "expired ledgers", "registrations", "roles of bookies"]
    named += ["rebalance"]
    expected = sum(parts[name].changes for name in named)
    assert sum(hour) / HOUR_S == pytest.approx(expected, rel=0.1)


def test_real_bookies_and_a_real_client_change_no_more(tmp_path: Path, units: Units) -> None:
    """Three bookies, SQLite; changes as the store numbers them.

    They may be fewer, as an idle bookie's report does not change.
    """
    lanes = 100
    (tmp_path / "cluster").mkdir()
    words: list[str | Path | int] = ["--data", tmp_path / "cluster", "--port", 0, "--json"]
    words += ["--set", "disk_reserve=0"]
    with Daemon("standalone", *words, log=tmp_path / "log") as daemon:
        ready = daemon.ready(ClusterStarted)
        counted = trio.run(_changes, ready, tmp_path / "cluster" / "metadata.db", lanes)
        daemon.stop()
    modelled = lanes_idle(lanes).plus(registration().times(3)).plus(roles(units, 3)).changes
    assert counted <= modelled * 1.1 + 0.1


async def _changes(ready: ClusterStarted, path: Path, lanes: int) -> float:
    async with ledger_client.connect(ready.ready) as client:
        await client.topics.create("load/topic", lanes)
        async with client.producer("load/topic") as producer:
            for number in range(lanes):
                await producer.send(b"x", partition=number)
            await trio.sleep(10)
            before, began_at = _revision(path), trio.current_time()
            await trio.sleep(SECONDS)
            return (_revision(path) - before) / (trio.current_time() - began_at)


def _revision(path: Path) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        (newest,) = connection.execute("SELECT max(revision) FROM changes").fetchone()
    finally:
        connection.close()
    return int(newest)
