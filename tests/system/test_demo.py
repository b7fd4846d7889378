from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from never_twice import never_twice
from processes import is_silent, quire


def processes_below(folder: Path) -> list[str]:
    """The command lines of processes that name *folder*."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # ended meanwhile
    return [line for line in lines if str(folder) in line]


def told(file: Path, scratch: Path, *words: str) -> dict[str, Any]:
    """What the demonstration reports of *file*."""
    done = quire("demo", file, "--json", *words, environment={"TMPDIR": str(scratch)})
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    with never_twice():
        assert report["intact"]
    assert (done.returncode, is_silent(done.stderr)) == (0, True), done.stderr
    return report


@never_twice()
def check_rows(report: dict[str, Any], lines: list[bytes]) -> None:
    """All that was sent was read, in every way that the demonstration reads it."""
    rows = {row["what"]: row for row in report["table"]}
    assert all(row["agrees"] for row in rows.values())
    everything = len(lines), sum(len(line.rstrip(b"\r\n")) for line in lines)
    for what, row in rows.items():
        expected = 501 if what in ("compacted", "the last line of each key") else everything[0]
        assert row["messages"] == expected, what
    assert rows["read again"]["bytes"] == everything[1]
    assert len(rows) == (7 if report["spark"] else 6)
    assert report["bytes"] == sum(map(len, lines))
    assert report["each_once_in_order"]
    assert sum(report["copies"].values()) == 3 * report["entries"]


@pytest.mark.real_processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--no-spark"],
        # .ci/run has the demo with Spark as a stage of its own
        pytest.param([], marks=[pytest.mark.xdist_group("spark"), pytest.mark.long]),
    ],
    ids=["in one process", "with Spark"],
)
def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path, words: list[str]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    file = tmp_path / "some.log"
    lines = [b"line %d %d\r\n" % (number, number % 500) for number in range(30_000)] + [b"no end"]
    file.write_bytes(b"".join(lines))
    report = told(file, scratch, *words)
    check_rows(report, lines)
    assert report["killed_process"] != report["replaced_process"]
    assert len(report["ledgers"]) > 6
    assert list(scratch.iterdir()) == []
    assert processes_below(scratch) == []


@pytest.mark.slow
@pytest.mark.real_processes
def test_the_demo_ends_with_a_table_in_which_all_agrees(tmp_path: Path) -> None:
    """Asked to keep its folder, it does."""
    done = quire("demo", "--keep", "--no-spark", environment={"TMPDIR": str(tmp_path)})
    text = done.stdout.decode()
    with never_twice():
        assert b"differ" not in done.stderr
    assert (done.returncode, is_silent(done.stderr)) == (0, True), done.stderr
    for word in ("started", "killed", "replaced", "wrote", "read", "healed", "verified"):
        assert f"{word}  " in text
    for word in ("compacted  ", "replayed  ", "checksum", "Try next"):
        assert word in text
    assert "Every count and every checksum agrees, and all copies are whole." in text
    (kept,) = tmp_path.iterdir()
    assert str(kept) in text
    assert (kept / "metadata.db").exists()


def test_without_java_the_demo_names_what_is_missing_and_the_way_around(tmp_path: Path) -> None:
    done = quire("demo", environment={"TMPDIR": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "Java" in line
    assert "quire demo --no-spark" in line
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_story(tmp_path: Path) -> None:
    file = tmp_path / "empty.log"
    file.touch()
    done = quire("demo", file, "--no-spark", environment={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        f"quire: {file} is empty; pass a file with at least one line"
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--no-spark"],
        pytest.param(["bench", "append", "--floor-bytes", "16MiB"], marks=pytest.mark.slow),
    ],
)
def test_a_command_with_bookies_of_its_own_leaves_nothing_when_interrupted(
    tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ledger_client", *words],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stderr is not None
        while len(processes_below(tmp_path)) < 2:  # standalone and its first bookie
            assert command.poll() is None
            time.sleep(0.01)
        command.send_signal(number)
        assert command.wait(30) == 130
        assert command.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []
