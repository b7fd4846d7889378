"""``quire bench spark``: what it says, and what it says when something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import quire

pytestmark = pytest.mark.xdist_group("spark")

WITHOUT_SPARK = """
import importlib.util, sys
sys.modules["pyspark"] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pyspark" else found(name, *more)
from ledger_client.__main__ import main
sys.argv = ["quire", "bench", "spark", "--messages", "10"]
main()
"""


def test_without_java_it_says_what_to_install_before_anything_is_written(tmp_path: Path) -> None:
    done = quire("bench", "spark", "--folder", tmp_path, environment={"JAVA_HOME": str(tmp_path)})
    assert done.returncode == 1
    told = done.stderr.decode()
    assert told.startswith(f"quire: JAVA_HOME is {tmp_path}, and there is no bin/java in it; ")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_pyspark_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "quire: PySpark is not installed: pip install '.[spark]' in a clone of quire\n"
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_processes
def test_a_topic_is_measured_beside_the_floor_of_the_same_rows(tmp_path: Path) -> None:
    words = ("--messages", "3000", "--message-size", "100", "--batch", "100", "--runs", "1")
    done = quire("bench", "spark", *words, "--folder", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["messages"] == 3000
    for what in ("count", "write"):
        assert all(found[what][name] > 0 for name in ("topic_s", "floor_s", "parquet_s"))
        assert found[what]["to_floor"] > 0
    assert found["worker_rss_max_mib"] > 10
    assert list(tmp_path.iterdir()) == []
