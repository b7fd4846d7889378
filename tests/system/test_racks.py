"""Copies stay on different racks: written, repaired after a loss, counted, and moved, for real."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from daemons import Daemon

import ledger_client
from bookie.commands.standalone import ClusterStarted
from ledger_client import Client

QUICK = ["--set", "lease_ttl_s=1", "--set", "lost_after_s=1", "--set", "open_grace_s=1"]
SMALL = ["memtable_size=10MiB", "journal_spares=0", "disk_reserve=0"]
DEADLINE_S = 90.0


def start(folder: Path, *words: str | int) -> Daemon:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    (folder / "cluster").mkdir(exist_ok=True)
    options: list[str | Path | int] = [
        "--data",
        folder / "cluster",
        "--port",
        0,
        "--bookies",
        6,
        "--json",
        *settings,
    ]
    return Daemon("standalone", *options, *words, log=folder / "log")


async def write(client: Client, count: int) -> list[int]:
    ids = []
    for _ in range(count):
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append_many([b"entry %d" % number for number in range(100)])
        ids.append(ledger.id)
    return ids


async def racks_of(client: Client, ledger_ids: list[int]) -> list[set[str]]:
    """Return the racks that the last ensemble of each ledger is on."""
    rack_of = {b.bookie_id: b.rack for b in (await client.cluster.status()).bookies}
    infos = [await client.ledgers.info(ledger_id) for ledger_id in ledger_ids]
    return [{rack_of[name] for name in info.bookies[-1][1]} for info in infos]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not await holds():  # noqa: ASYNC110 - processes set no event of ours
            await trio.sleep(0.2)


async def lose_a_bookie(ready: ClusterStarted) -> None:
    async with ledger_client.connect(ready.ready) as client:
        ledger_ids = await write(client, 8)
        everywhere = {"r1", "r2", "r3"}
        assert await racks_of(client, ledger_ids) == [everywhere] * 8
        os.kill(ready.bookies[1].process_id, signal.SIGKILL)

        async def repaired() -> bool:
            infos = [await client.ledgers.info(ledger_id) for ledger_id in ledger_ids]
            named = {name for info in infos for _, names in info.bookies for name in names}
            return "bookie-2" not in named and not (await client.cluster.status()).underreplicated

        await until(repaired)
        assert await racks_of(client, ledger_ids) == [everywhere] * 8


async def move_to_racks(ready: ClusterStarted, ledger_ids: list[int]) -> None:
    async with ledger_client.connect(ready.ready) as client:

        async def counted() -> bool:
            found = (await client.cluster.status()).racks
            return found is not None and found.violating > 0

        await until(counted)
        assert any(len(racks) < 2 for racks in await racks_of(client, ledger_ids))
        await client.cluster.rebalance()
        assert all(len(racks) == 2 for racks in await racks_of(client, ledger_ids))

        async def settled() -> bool:
            found = (await client.cluster.status()).racks
            return found is not None and found.violating == 0

        await until(settled)


async def written(ready: ClusterStarted) -> list[int]:
    """Write ledgers until one lies whole on what will be one of two racks, and return them all."""
    async with ledger_client.connect(ready.ready) as client:
        ledger_ids = await write(client, 4)
        rack_of = {bookie.bookie_id: at % 2 for at, bookie in enumerate(ready.bookies)}
        with trio.fail_after(DEADLINE_S):
            while True:
                info = await client.ledgers.info(ledger_ids[-1])
                if len({rack_of[name] for name in info.bookies[-1][1]}) == 1:
                    return ledger_ids
                ledger_ids += await write(client, 1)


@pytest.mark.slow
@pytest.mark.real_processes
def test_copies_are_on_different_racks_before_and_after_a_bookie_is_lost(tmp_path: Path) -> None:
    with start(tmp_path, "--racks", 3, "--no-restart", *QUICK) as daemon:
        trio.run(lose_a_bookie, daemon.ready(ClusterStarted))
        daemon.stop()


@pytest.mark.slow
def test_a_cluster_that_states_racks_later_is_moved_by_a_rebalance(tmp_path: Path) -> None:
    with start(tmp_path) as daemon:
        ledger_ids = trio.run(written, daemon.ready(ClusterStarted))
        daemon.stop()
    with start(tmp_path, "--racks", 2) as daemon:
        trio.run(move_to_racks, daemon.ready(ClusterStarted), ledger_ids)
        daemon.stop()
