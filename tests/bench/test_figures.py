"""What speed is promised, as a part of what the disk does in the same run.

Absolute figures are those of a machine and stand in README. These bounds are wide
enough for a busy one; they catch a change that makes something several times slower.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import quire

RSS_MAX_MIB = 600

pytestmark = pytest.mark.slow


def bench(folder: Path, *words: str | int) -> dict[str, Any]:
    done = quire("bench", *words, "--folder", folder, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("entry_size", "part_of_floor"), [("100B", 0.02), ("1KiB", 0.05), ("64KiB", 0.08)]
)
def test_one_bookie_keeps_up_over_ten_turns_of_the_memtable(
    tmp_path: Path, entry_size: str, part_of_floor: float
) -> None:
    result = bench(tmp_path, "append", "--entry-size", entry_size)
    figures = result["figures"]
    assert figures["memtable_turns"] >= 10
    assert result["bandwidth_to_floor"] > part_of_floor
    assert max(figures["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_three_bookies_answer_in_time_at_half_of_their_rate(tmp_path: Path) -> None:
    three = ("append", "--bookies", 3, "--ack-quorum", 2)
    most = bench(tmp_path, *three)["figures"]
    half = bench(tmp_path, *three, "--rate", int(most["entries_per_s"] / 2))["figures"]
    assert half["latency"]["p50_ms"] < most["latency"]["p50_ms"]
    assert max(half["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_a_synchronous_append_costs_little_more_than_its_sync(tmp_path: Path) -> None:
    assert bench(tmp_path, "append", "--synchronous")["latency_to_floor"] < 50


def test_a_thousand_ledgers_cost_hardly_more_than_one(tmp_path: Path) -> None:
    result = bench(tmp_path, "append", "--ledgers", 1000)
    assert result["cost_to_one_ledger"] < 2
    assert max(result["figures"]["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_a_single_read_costs_at_most_two_reads_of_the_disk(tmp_path: Path) -> None:
    result = bench(tmp_path, "read", "--order", "random", "--bytes", "1GiB")
    assert result["disk_reads_per_entry"] <= 2
    assert max(result["bookie_rss_max_mib"]) < RSS_MAX_MIB


def test_reading_in_order_asks_the_disk_for_many_entries_at_once(tmp_path: Path) -> None:
    result = bench(tmp_path, "read", "--bytes", "1GiB")
    assert result["disk_reads_per_entry"] < 0.1
    assert result["bandwidth_to_floor"] > 0.02
    assert max(result["bookie_rss_max_mib"]) < RSS_MAX_MIB
