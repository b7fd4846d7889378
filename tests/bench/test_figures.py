"""Load over ten turns of the memtable: what must hold at any speed, and the figures.

The speed itself is printed, as a part of what the disk did in the same run (see it with
`pytest -m slow -s tests/bench`), and never asserted: a machine may be busy. Asserted is
what does not depend on that: memory, turns of the memtable, reads of the disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import quire

RSS_MAX_MIB = 600

# One after the other: each has gigabytes to write, and a memory to measure.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.real_processes,
    pytest.mark.xdist_group("figures"),
]


def bench(folder: Path, *words: str | int) -> dict[str, Any]:
    done = quire("bench", *words, "--folder", folder, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def report(what: str, **ratios: float) -> None:
    """Print the figures of one load on a line of its own."""
    told = ", ".join(f"{name} {value:.3g}" for name, value in ratios.items())
    sys.stdout.write(f"\n{what}: {told}\n")


@pytest.mark.parametrize("entry_size", ["1KiB", "100B", "64KiB"])
def test_one_bookie_keeps_its_memory_over_ten_turns_of_the_memtable(
    tmp_path: Path, entry_size: str
) -> None:
    result = bench(tmp_path, "append", "--entry-size", entry_size)
    figures = result["figures"]
    report(
        f"append, one bookie, {entry_size}",
        entries_per_s=figures["entries_per_s"],
        bandwidth_to_floor=result["bandwidth_to_floor"],
    )
    assert figures["memtable_turns"] >= 10
    assert max(figures["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_three_bookies_keep_their_memory_at_full_and_at_half_rate(tmp_path: Path) -> None:
    three = ("append", "--bookies", 3, "--ack-quorum", 2)
    most = bench(tmp_path, *three)["figures"]
    half = bench(tmp_path, *three, "--rate", int(most["entries_per_s"] / 2))["figures"]
    report(
        "append, three bookies, 1KiB",
        entries_per_s=most["entries_per_s"],
        p99_ms_at_half_rate=half["latency"]["p99_ms"],
    )
    assert max(half["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_a_synchronous_append_waits_for_its_own_sync_alone(tmp_path: Path) -> None:
    result = bench(tmp_path, "append", "--synchronous")
    report(
        "append, synchronous, 1KiB",
        p50_ms=result["figures"]["latency"]["p50_ms"],
        latency_to_floor=result["latency_to_floor"],
    )
    assert result["figures"]["batch"] == 1


def test_a_thousand_ledgers_keep_the_memory_of_a_bookie(tmp_path: Path) -> None:
    result = bench(tmp_path, "append", "--ledgers", 1000)
    report("append, 1000 ledgers, 1KiB", cost_to_one_ledger=result["cost_to_one_ledger"])
    assert max(result["figures"]["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_a_single_read_costs_at_most_two_reads_of_the_disk(tmp_path: Path) -> None:
    result = bench(tmp_path, "read", "--order", "random", "--bytes", "1GiB")
    report("read, random, 1KiB", disk_reads_per_entry=result["disk_reads_per_entry"])
    assert result["disk_reads_per_entry"] <= 2
    assert max(result["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_reading_in_order_asks_the_disk_for_many_entries_at_once(tmp_path: Path) -> None:
    result = bench(tmp_path, "read", "--bytes", "1GiB")
    report(
        "read, in order, 1KiB",
        entries_per_s=result["entries_per_s"],
        bandwidth_to_floor=result["bandwidth_to_floor"],
    )
    assert result["disk_reads_per_entry"] < 0.1
    assert max(result["bookie_rss_max_mib"]) < RSS_MAX_MIB


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2)])
def test_a_writer_goes_on_when_one_of_four_bookies_is_lost(
    tmp_path: Path, quorums: tuple[int, int, int]
) -> None:
    ensemble, write, ack = quorums
    words = ("--ensemble", ensemble, "--write-quorum", write, "--ack-quorum", ack)
    result = bench(tmp_path, "failover", "--bookies", 4, "--seconds", "1.5", *words)
    report(
        f"one of four bookies lost, {ensemble}/{write}/{ack}, 1KiB",
        before_entries_per_s=result["before"]["entries_per_s"],
        during_to_before=result["during_to_before"],
        after_to_before=result["after_to_before"],
        stall_s=result["during"]["stall_s"],
    )
    assert result["after"]["entries_per_s"] > 0
