from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import quire


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_processes
@pytest.mark.xdist_group("spark")
def test_compaction_is_measured_beside_plain_spark(tmp_path: Path) -> None:
    """PS-37."""
    words = ("--messages", 5000, "--keys", 100, "--rounds", 1, "--folder", tmp_path, "--json")
    done = quire("bench", "compact", *words)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    result = json.loads(done.stdout)
    assert result["messages_kept"] == 100
    best = min(result["spark_two_passes_s"], result["spark_max_by_s"])
    assert result["ratio_spark"] == pytest.approx(result["compact_spark_s"] / best, rel=0.02)
