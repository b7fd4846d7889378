from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import quire


def processes_below(folder: Path) -> list[str]:
    """The command lines of processes that name *folder*."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # ended meanwhile
    return [line for line in lines if str(folder) in line]


def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    file = tmp_path / "some.log"
    file.write_bytes(b"".join(b"line %d\r\n" % number for number in range(30_000)) + b"no end")
    done = quire("demo", file, "--json", environment={"TMPDIR": str(scratch)})
    assert (done.returncode, done.stderr) == (0, b"")
    report = json.loads(done.stdout)
    assert report["intact"]
    assert report["lines"] == report["lines_read"] == 30_001
    assert report["each_once_in_order"]
    assert len(report["ledgers"]) > 1
    assert report["sha256_read"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert report["killed_process"] != report["restarted_process"]
    assert 0 < report["kept"] <= report["entries"]
    assert list(report["copies"].values()) == [report["entries"]] * 3
    assert list(scratch.iterdir()) == []
    assert processes_below(scratch) == []


def test_without_a_file_the_demo_finds_or_makes_one(tmp_path: Path) -> None:
    done = quire("demo", environment={"TMPDIR": str(tmp_path)})
    text = done.stdout.decode()
    assert done.returncode == 0
    for word in (
        "file",
        "started",
        "killed",
        "wrote",
        "restarted",
        "read",
        "healed",
        "verified",
        "Try next",
    ):
        assert word in text
    assert (
        "Every line that was written was read back once and in order, byte for byte, and all "
        "copies are whole." in text
    )


def test_the_demo_keeps_its_folder_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "one.log"
    file.write_bytes(b"a single line\n")
    done = quire("demo", file, "--keep", "--json", environment={"TMPDIR": str(tmp_path)})
    kept = Path(json.loads(done.stdout)["kept_folder"])
    assert kept.parent == tmp_path
    assert (kept / "metadata.db").exists()


def test_an_empty_file_is_no_story(tmp_path: Path) -> None:
    file = tmp_path / "empty.log"
    file.touch()
    done = quire("demo", file, environment={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        f"quire: {file} is empty; name a file with at least one line"
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [["demo"], ["bench", "append", "--floor-bytes", "16MiB"]])
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
