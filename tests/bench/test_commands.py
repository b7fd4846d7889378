from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import is_silent, quire

from ledger_client.__main__ import quire as quire_command
from ledger_client.commands.outcome import conclude

SMALL: dict[str | float, list[str]] = {
    "disk": ["--bytes", "16MiB"],
    "append": ["--floor-bytes", "16MiB"],
    "read": ["--floor-bytes", "16MiB"],
    "failover": ["--entry-size", "100B"],
    "produce": ["--floor-bytes", "16MiB"],
    "consume": ["--floor-bytes", "16MiB"],
    "order": ["--message-size", "100B"],
}


def measured(tmp_path: Path, *words: str | float) -> dict[str, Any]:
    done = quire("bench", *words, *SMALL[words[0]], "--folder", tmp_path, "--json")
    assert (done.returncode, is_silent(done.stderr)) == (0, True), done.stderr
    assert list(tmp_path.iterdir()) == []
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_disk_is_measured(tmp_path: Path) -> None:
    floor = measured(tmp_path, "disk")
    assert floor["read_mb_per_s"] > 0
    assert floor["sync"]["group_size"] == 4096
    assert [group["group_size"] for group in floor["groups"]] == [1 << n for n in range(16, 25, 2)]


def test_appends_are_measured_beside_the_floor(tmp_path: Path) -> None:
    words = ("--bookies", 3, "--ack-quorum", 2, "--entries", 20_000, "--rate", 100_000)
    result = measured(tmp_path, "append", *words)
    figures = result["figures"]
    assert figures["entries"] >= 20_000
    assert 0 < figures["entries_per_s"] < 120_000
    at = figures["latency"]
    assert 0 < at["p50_ms"] <= at["p99_ms"] <= at["p999_ms"]
    assert figures["bookie_cpu_s"] > 0
    assert len(figures["bookie_rss_max_mib"]) == 3
    assert result["bandwidth_to_floor"] > 0


def test_many_ledgers_are_compared_with_one(tmp_path: Path) -> None:
    words = ("--ledgers", 20, "--entries", 10_000, "--entry-size", "100B")
    result = measured(tmp_path, "append", *words)
    assert result["figures"]["ledgers"] == 20
    assert result["cost_to_one_ledger"] > 0


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_cold_reads_are_measured(tmp_path: Path, order: str) -> None:
    result = measured(tmp_path, "read", "--order", order, "--bytes", "32MiB", "--reads", 500)
    assert result["entries"] == {"sequential": 32 * 1024, "random": 500}[order]
    assert 0 < result["disk_reads_per_entry"] <= 2
    assert result["entries_per_s"] > 0


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_writer_is_measured_while_a_bookie_is_killed(tmp_path: Path) -> None:
    result = measured(tmp_path, "failover", "--seconds", 0.3)
    phases = [result[name]["entries_per_s"] for name in ("before", "during", "after")]
    assert min(phases) > 0
    assert result["after_to_before"] == pytest.approx(phases[2] / phases[0], abs=0.001)


@pytest.mark.parametrize(
    "words",
    [["--partitions", "3"], pytest.param(["--compression", "zstd"], marks=pytest.mark.slow)],
)
def test_consuming_is_measured_in_every_way(tmp_path: Path, words: list[str]) -> None:
    """TB-69, TB-72: history there and back, and what is followed."""
    loads = ("--messages", 20_000, "--batch", 50, "--rate-seconds", 1)
    result = measured(tmp_path, "consume", "--bookies", 2, *loads, *words)
    ways = [result[name] for name in ("cold", "batches", "messages", "reverse")]
    assert {way["messages"] for way in ways} == {ways[0]["messages"]}
    assert min(way["messages_per_s"] for way in ways) > 0
    assert 0 < result["latency"]["p50_ms"] <= result["latency"]["p99_ms"]


@pytest.mark.slow
def test_a_group_is_measured_beside_readers(tmp_path: Path) -> None:
    loads = ("--messages", 12_000, "--rate", 50, "--rate-seconds", 0.5, "--idle-seconds", 0.5)
    group = ("--members", 3, "--group-partitions", 7, "--lanes", 2, "--rounds", 1)
    result = measured(tmp_path, "consume", "--group", "--bookies", 2, *loads, *group)
    for way in ("objects", "lists", "batches"):
        assert min(result[way].values()) > 0
    delay = result["delay"]
    assert 0 < delay["group"]["p50_ms"] <= delay["group"]["p99_ms"]
    assert delay["p99_to_reader"] == pytest.approx(
        delay["group"]["p99_ms"] / delay["reader"]["p99_ms"], abs=0.001
    )
    assert [(each["members"], each["at_once"]) for each in result["commits"]] == [
        (1, 1),
        (1, 64),
        (64, 1),
    ]
    assert min(each["per_s"] for each in result["commits"]) > 0
    assert result["acks_per_s"] > 0
    for change in ("join", "leave"):
        assert result[change]["partitions"] == 7
        assert 1 <= result[change]["moved"] <= 3
        assert result[change]["whole_s"] > 0
    assert (result["idle"]["members"], result["idle"]["lanes"]) == (3, 14)


@pytest.mark.parametrize("size", ["x", "10 apples", "-1", "1PB"])
def test_what_is_no_size_is_refused(size: str) -> None:
    done = quire("bench", "disk", "--bytes", size)
    assert done.returncode == 2
    assert b"is not a size" in done.stderr or b"No such option" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "bench append --entries -5 --ledgers 2",
        "bench append --entries 0",
        "bench append --ensemble 0",
        "bench append --write-quorum 0",
        "bench append --ack-quorum 0",
        "bench append --entry-size 0",
        "bench append --rate -50",
        "bench append --rate inf",
        "bench append --seconds -1",
        "bench append --seconds nan",
        "bench read --entry-size 0",
        "bench read --bytes 1KiB --entry-size 2KiB",
        "bench produce --rate-seconds nan",
        "bench produce --rate-seconds -3",
        "bench produce --rate nan",
        "bench consume --idle-seconds nan",
        "bench order --seconds nan",
        "bench failover --seconds nan",
        "tso bench --seconds nan",
    ],
)
def test_what_cannot_be_measured_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(quire_command, words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Invalid value for '--" in err


def test_more_than_fits_the_disk_is_refused_before_it_is_written(tmp_path: Path) -> None:
    done = quire("bench", "disk", "--bytes", "10000TB", "--folder", tmp_path)
    assert done.returncode == 1
    assert b"free; write fewer" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--partitions", "3"], ["--arrow", "--compression", "lz4"]], ids=" ".join
)
def test_producing_is_measured_in_every_way(tmp_path: Path, words: list[str]) -> None:
    loads = ("--messages", 20_000, "--sends", 2000, "--tasks", 50, "--rate-seconds", 1)
    result = measured(tmp_path, "produce", "--bookies", 2, *loads, *words)
    assert (result["replication"], result["ack_quorum"]) == (2, 2)
    assert result["many"]["messages"] >= 20_000
    assert result["tasks"]["messages"] == 2000
    assert result["steady"]["messages"] == result["rolling"]["messages"] == 1000
    assert 0 < result["steady"]["messages_per_s"] < 1100
    for load in ("many", "tasks", "steady", "rolling"):
        at = result[load]["latency"]
        assert 0 < at["p50_ms"] <= at["p99_ms"] <= at["p999_ms"]
        assert len(result[load]["bookie_rss_max_mib"]) == 2
    assert 100 < result["many"]["stored_size"] < 115
    assert result["bandwidth_to_floor"] > 0


@pytest.mark.slow
def test_one_order_is_measured_beside_none(tmp_path: Path) -> None:
    """A topic with timesync and one without, and readers by timestamp and of both orders."""
    loads = ("--messages", 12_000, "--producers", 3, "--seconds", 1, "--rate", 20)
    result = measured(tmp_path, "order", *loads, "--idle-partitions", 5, "--idle-seconds", 0.3)
    for way in ("sending", "objects", "batches"):
        assert min(result[way].values()) > 0
    lag = result["lag"]
    assert 0 < lag["messages"] <= 3 * 20
    assert 0 < lag["tick"]["p50_ms"] <= lag["tick"]["p99_ms"]
    assert lag["delay"]["p50_ms"] > 0
    assert result["idle"]["partitions"] == 5
