"""Benchmarks of a cluster that stays: which one it is, and what is left there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.__main__ import quire
from ledger_client.commands.bench import append, produce
from ledger_client.commands.bench.append import AppendPlan
from ledger_client.commands.bench.load import Load
from ledger_client.commands.options import Quorums
from ledger_client.commands.outcome import conclude
from ledger_client.commands.tso import bench as tso_bench
from metadata.outcome import CommandFailed, Exit

COMMANDS = {"bench append": append, "bench produce": produce, "tso bench": tso_bench}


def asked_for(words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the cluster that this command line measures."""
    [module] = [module for name, module in COMMANDS.items() if name in words]
    asked: list[str] = []

    async def measure(plan: AppendPlan) -> None:
        asked.append(plan.cluster)
        raise CommandFailed("enough")

    monkeypatch.setattr(module, "_measure", measure)
    assert conclude(quire, words.split()) == Exit.FAILED
    [cluster] = asked
    return cluster


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set for other commands: a cluster, and a profile of another one."""
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[prod]\ncluster = "bookie://prod:1"\n')
    for name, value in {
        "QUIRE_CLUSTER": "bookie://ours:1",
        "QUIRE_PROFILE": "prod",
        "QUIRE_PROFILES": str(profiles),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_of_the_environment_gets_no_load(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked_for(command, monkeypatch) == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "cluster"),
    [
        ("{} --cluster bookie://h:1", "bookie://h:1"),
        ("--cluster bookie://h:1 {}", "bookie://h:1"),
        ("{} --profile prod", "bookie://prod:1"),
        ("--profile prod {}", "bookie://prod:1"),
    ],
)
def test_one_of_the_command_line_does(
    command: str, words: str, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked_for(words.format(command), monkeypatch) == cluster


def plan(folder: Path, *, entries: int, ledgers: int) -> AppendPlan:
    return AppendPlan(
        cluster="bookie://memory:1",
        bookies=1,
        quorums=Quorums(2, 2, 2),
        ledgers=ledgers,
        load=Load(entry_size=10, entries=entries, batch=10),
        folder=folder,
        floor_size=0,
    )


async def ledgers_of(client: Client) -> int:
    return len([info async for info in client.ledgers.list()])


@pytest.mark.parametrize("cut_short", [False, True])
async def test_no_ledger_of_a_benchmark_stays(
    cut_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the end nor after Ctrl-C, which cancels the benchmark."""
    entries = 1 << 40 if cut_short else 100
    async with memory_cluster(2) as cluster, cluster.client() as client:

        @asynccontextmanager
        async def connected(_cluster: str) -> AsyncIterator[Client]:
            yield client

        monkeypatch.setattr(append, "connect", connected)
        measured = plan(tmp_path, entries=entries, ledgers=7)
        async with client.ledgers.create(2, 2, 2), trio.open_nursery() as nursery:
            nursery.start_soon(partial(append._run, measured, "", [], ledgers=7))
            while cut_short and await ledgers_of(client) < 8:  # noqa: ASYNC110
                await trio.sleep(0.001)
            if cut_short:
                nursery.cancel_scope.cancel()
        assert await ledgers_of(client) == 1
