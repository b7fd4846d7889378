"""Benchmarks of a cluster that stays: which one it is, and what is left there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client, NotEnoughBookies
from ledger_client.__main__ import quire
from ledger_client.commands.bench import append, produce
from ledger_client.commands.bench.append import AppendPlan, Measured
from ledger_client.commands.bench.disk import Floor, GroupFloor
from ledger_client.commands.bench.load import Load, Percentiles
from ledger_client.commands.bench.produce import ProducePlan
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


GROUP = GroupFloor(4096, 1.0, Percentiles(1.0, 1.0, 1.0))
FLOOR = Floor(GROUP, [GROUP], 1.0, direct=True, folder="/scratch", in_memory=False)


async def known_floor(_folder: Path, _size: int) -> Floor:
    return FLOOR


@asynccontextmanager
async def connected(
    monkeypatch: pytest.MonkeyPatch, bookies: int
) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    """A cluster in memory that benchmarks connect to, on a disk that is known."""
    async with memory_cluster(bookies) as cluster, cluster.client() as client:

        @asynccontextmanager
        async def connect(_cluster: str) -> AsyncIterator[Client]:
            async with cluster.client() as another:
                yield another

        for module in (append, produce):
            monkeypatch.setattr(module, "connect", connect)
            monkeypatch.setattr(module, "floor_of", known_floor)
        yield cluster, client


def append_plan(folder: Path, *, entries: int = 100, ledgers: int = 1) -> AppendPlan:
    return AppendPlan(
        cluster="bookie://memory:1",
        bookies=1,
        ensemble=None,
        write_quorum=None,
        ack_quorum=None,
        ledgers=ledgers,
        load=Load(entry_size=10, entries=entries, batch=10),
        folder=folder,
        floor_size=0,
    )


def produce_plan(folder: Path) -> ProducePlan:
    return ProducePlan(
        cluster="bookie://memory:1",
        bookies=1,
        replication=None,
        ack_quorum=None,
        partitions=0,
        message_size=10,
        messages=10,
        arrow=False,
        compression="none",
        tasks=2,
        sends=10,
        rate=100.0,
        rate_s=0.1,
        folder=folder,
        floor_size=0,
        metrics_port=0,
    )


async def ledgers_of(client: Client) -> int:
    return len([info async for info in client.ledgers.list()])


@pytest.mark.parametrize("cut_short", [False, True])
async def test_no_ledger_of_a_benchmark_stays(
    cut_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the end nor after Ctrl-C, which cancels the benchmark."""
    entries = 1 << 40 if cut_short else 100
    measured = Measured("bookie://memory:1", [], Quorums(2, 2, 2))
    async with connected(monkeypatch, 2) as (_, client), client.ledgers.create(2, 2, 2):
        async with trio.open_nursery() as nursery:
            plan = append_plan(tmp_path, entries=entries)
            nursery.start_soon(partial(append._run, plan, measured, ledgers=7))
            while cut_short and await ledgers_of(client) < 8:  # noqa: ASYNC110
                await trio.sleep(0.001)
            if cut_short:
                nursery.cancel_scope.cancel()
        assert await ledgers_of(client) == 1


async def test_entries_go_to_all_bookies_that_take_them_and_figures_are_those_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, 3) as (cluster, _):
        cluster.add_bookie(4, read_only=True)
        result = await append._measure(append_plan(tmp_path))
    assert result.quorums == Quorums(3, 3, 2)
    figures = result.figures
    ours = (figures.memtable_turns, figures.bookie_cpu_s, figures.bookie_rss_max_mib)
    assert ours == (None, None, None)
    told = append._describe(result)
    for word in ("memtable", "RSS", ", bookies"):
        assert word not in told
    assert "the disk is that of /scratch on this host" in told


async def test_messages_do_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, 3) as (cluster, _):
        cluster.add_bookie(4, read_only=True)
        result = await produce._measure(produce_plan(tmp_path))
    assert (result.replication, result.ack_quorum) == (3, 2)
    assert (result.many.bookie_cpu_s, result.rolling.bookie_rss_max_mib) == (None, None)
    told = produce._describe(result)
    assert "bookies ?" not in told
    assert "CPU of client: " in told
    assert "the disk is that of /scratch on this host" in told


@pytest.mark.parametrize("command", ["append", "produce"])
def test_a_cluster_that_cannot_be_reached_is_named_before_the_disk_is_measured(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def floor_of(_folder: Path, _size: int) -> Floor:
        raise CommandFailed("the disk was measured")

    monkeypatch.setattr(COMMANDS[f"bench {command}"], "floor_of", floor_of)
    words = ["bench", command, "--cluster", "bookie://127.0.0.1:1"]
    assert conclude(quire, words) == Exit.UNREACHABLE
    assert "127.0.0.1:1" in capsys.readouterr().err


async def test_a_cluster_with_too_few_bookies_is_refused_before_the_disk_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, 2):
        monkeypatch.setattr(append, "floor_of", None)
        plan = msgspec.structs.replace(append_plan(tmp_path), ensemble=3)
        with pytest.raises(NotEnoughBookies):
            await append._measure(plan)
