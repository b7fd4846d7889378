"""README's promises that a test can try: its example, its commands, its paths."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import pytest
from processes import cluster

from ledger_client import blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FIRST_OF_MAY_NS = 1_714_521_600 * 10**9
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run_as_they_stand(tmp_path: Path) -> None:
    topics, ledgers, _ = EXAMPLES
    head, _, tail = re.split(r"(?<= as client:\n)(.*?)(?=\n\n\n)", topics, flags=re.DOTALL)
    with cluster(tmp_path, 3) as url:
        found = [re.fullmatch(r"\d+:\d+:[0-3]:\d+ (.*)", line) for line in run(topics, url)]
        assert [line and line[1] for line in found] == [
            *("b'k' b'one'", "b'k' b'two'", "b'k' b'three'")
        ]
        assert run(head + indent(ledgers, " " * 8) + tail, url) == [
            *("0 b'one'", "1 b'two'", "2 b'three'"),
            *("b'one'", "b'two'", "b'three'"),
        ]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_example_in_spark_runs_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as url, blocking.connect(url) as client:
        for name in ("shop/orders", "shop/copy"):
            client.create_topic(name)
        with client.producer("shop/orders") as producer:
            old, new = FIRST_OF_MAY_NS - 1, FIRST_OF_MAY_NS
            producer.send_many([b"one", b"two"], keys=[b"k", b"k"], event_times=[old, new])
        names: dict[str, Any] = {"session": spark}
        exec(EXAMPLES[2].replace("bookie://host:3181", url), names)
        assert [(bytes(row.key), bytes(row.value)) for row in names["frame"].collect()] == [
            (b"k", b"two")
        ]
        assert names["stream"].isStreaming
        with client.topic_reader("shop/copy") as reader:
            assert [message.value for message in reader] == [b"two"]


def run(program: str, url: str) -> list[str]:
    """The lines that a program of the README prints."""
    program = program.replace("bookie://127.0.0.1:3181", url)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(
        r"`((?:bookie|grafana|ledger_client|metadata|native|tests)/[\w/.]*)`", README
    )
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_test_command_is_the_one_that_the_check_script_runs() -> None:
    command = "pip install -e '.[dev]' && pytest"
    assert command in README
    assert command in (ROOT / ".ci/run").read_text()
