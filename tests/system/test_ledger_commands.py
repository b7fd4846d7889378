from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from processes import DEADLINE_S, cluster, last_word, quire

from ledger_client.commands.streams import join_framed

Run = Callable[..., subprocess.CompletedProcess[bytes]]

# One cluster serves them all: in one process, which starts it once.
pytestmark = pytest.mark.xdist_group("ledger_commands")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 3) as running:
        yield running


@pytest.fixture
def run(url: str) -> Run:
    return partial(quire, environment={"QUIRE_CLUSTER": url})


@pytest.fixture(scope="module")
def closed(url: str) -> int:
    """The id of a ledger with two entries."""
    return written(partial(quire, environment={"QUIRE_CLUSTER": url}), b"a\nb\n")


def written(run: Run, data: bytes, *words: str) -> int:
    done = run("ledger", "write", *words, stdin=data)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"one line",
        b"one\ntwo\n",
        b"dos\r\n\r\nunix\n\nno end",
        bytes(range(256)) * 40,
        b"x" * 3_000_000 + b"\n" + b"\n" * 70_000,
    ],
    ids=["nothing", "no end", "lines", "mixed endings", "every byte", "long and many"],
)
def test_what_is_written_is_read_back_byte_for_byte(run: Run, data: bytes) -> None:
    ledger_id = written(run, data)
    assert run("ledger", "read", ledger_id).stdout == data
    assert run("ledger", "follow", ledger_id).stdout == data


def test_framed_records_come_back_framed(run: Run) -> None:
    records = [b"", b"\n", b"a\nb", bytes(1000)]
    ledger_id = written(run, join_framed(records), "--framed")
    assert run("ledger", "read", ledger_id, "--framed").stdout == join_framed(records)
    assert run("ledger", "read", ledger_id).stdout == b"".join(records)


def test_a_range_of_entries_is_read(run: Run) -> None:
    ledger_id = written(run, b"0\n1\n2\n3\n4\n")
    assert run("ledger", "read", ledger_id, "--from", 1, "--to", 3).stdout == b"1\n2\n3\n"
    assert run("ledger", "read", ledger_id, "--from", 4).stdout == b"4\n"


def test_json_says_what_the_text_says(run: Run) -> None:
    done = json.loads(run("ledger", "write", "--json", stdin=b"a\nb\n").stdout)
    assert done == {"ledger_id": done["ledger_id"], "entries": 2, "bytes": 4, "complete": True}
    info = json.loads(run("ledger", "info", done["ledger_id"], "--json").stdout)
    assert (info["state"], info["last_entry"], info["length"]) == ("closed", 1, 4)
    assert (info["ensemble_size"], info["write_quorum"], info["ack_quorum"]) == (3, 3, 2)
    entries = run("ledger", "read", done["ledger_id"], "--json").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in entries] == ["YQo=", "Ygo="]
    listed = run("ledger", "list", "--json").stdout.splitlines()
    assert done["ledger_id"] in [json.loads(line)["ledger_id"] for line in listed]


def test_quorums_digest_and_password_are_those_asked_for(run: Run) -> None:
    words = ["--ensemble", "3", "--write-quorum", "2", "--ack-quorum", "1"]
    words += ["--digest", "hmac", "--password", "secret"]
    ledger_id = written(run, b"a\nb\nc\nd\n", *words)
    assert run("ledger", "read", ledger_id, "--password", "secret").stdout == b"a\nb\nc\nd\n"
    info = json.loads(run("ledger", "info", ledger_id, "--json").stdout)
    assert (info["write_quorum"], info["ack_quorum"], info["digest"]) == (2, 1, "hmac")


def test_a_deleted_ledger_is_gone(run: Run) -> None:
    ledger_id = written(run, b"a\n")
    assert run("ledger", "delete", ledger_id).returncode == 0
    gone = run("ledger", "read", ledger_id)
    assert gone.returncode == 1
    assert f"ledger {ledger_id}: no such ledger".encode() in gone.stderr


def test_an_empty_ledger_is_made_and_read(run: Run) -> None:
    ledger_id = int(run("ledger", "create").stdout)
    assert run("ledger", "read", ledger_id).stdout == b""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("read", 999), 1, "ledger 999: no such ledger"),
        (("info", 999), 1, "ledger 999: no such ledger"),
        (("delete", 999), 1, "ledger 999: no such ledger"),
        (("read", "CLOSED", "--from", 5), 1, "no entry 5 (last confirmed: 1)"),
        (("read", "CLOSED", "--to", 2), 1, "no entry 2 (last confirmed: 1)"),
        (("read", "CLOSED", "--password", "guess"), 1, "wrong password"),
        (("write", "--id", "CLOSED"), 1, "exists already"),
        (("write", "--ack-quorum", 3, "--write-quorum", 2), 1, "ack quorum 3"),
        (("write", "--write-quorum", 4), 1, "write quorum 4"),
        (("write", "--ensemble", 4), 1, "3 healthy, writable bookies, 4 needed"),
        (("write", "--ensemble", 0), 1, "ensemble size 0"),
        (("write", "--framed"), 1, "the input ends within record 1"),
        (("write", "/no/such/file"), 1, "/no/such/file: No such file"),
        (("write", "--digest", "md5"), 2, "md5"),
        (("read", "seven"), 2, "seven"),
        (("red", 7), 2, "No such command"),
        pytest.param(
            ("list", "--cluster", "bookie://127.0.0.1:9"), 3, "127.0.0.1:9", marks=pytest.mark.slow
        ),
        (("list", "--cluster", "http://127.0.0.1"), 2, "bookie://"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    run: Run, closed: int, words: tuple[str | int, ...], code: int, message: str
) -> None:
    said = [closed if word == "CLOSED" else word for word in words]
    done = run("ledger", *said, stdin=b"abc")
    assert done.returncode == code
    line = last_word(done.stderr)
    assert line.startswith("quire: ")
    assert message in line


def test_a_line_too_long_for_an_entry_is_refused_and_what_came_before_is_kept(run: Run) -> None:
    done = run("ledger", "write", stdin=b"fits\n" + b"x" * 6_000_000)
    assert done.returncode == 1
    assert b"line 2 is larger than an entry can be" in done.stderr
    ledger_id = int(done.stdout)
    assert run("ledger", "info", ledger_id, "--json").returncode == 0


def start(url: str, *words: str | int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ledger_client", "ledger", *map(str, words), "--cluster", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_write_keeps_what_was_acknowledged(
    run: Run, url: str, number: signal.Signals
) -> None:
    with start(url, "write") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        ledger_id = int(process.stdout.readline())
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()
        with start(url, "follow", ledger_id) as follower:
            assert follower.stdout is not None
            seen = b""
            while seen != b"one\ntwo\n":  # acknowledged by then
                more = os.read(follower.stdout.fileno(), 100)
                assert more
                seen += more
            process.send_signal(number)
            assert process.wait(DEADLINE_S) == 130
            told = process.stderr.read()
            assert b"interrupted; 2 entries, 8 bytes acknowledged" in told
            assert follower.wait(DEADLINE_S) == 0  # the ledger was closed
    assert run("ledger", "read", ledger_id).stdout == b"one\ntwo\n"


def test_a_follower_sees_lines_as_they_are_written(url: str) -> None:
    with start(url, "write") as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        ledger_id = int(writer.stdout.readline())
        with start(url, "follow", ledger_id) as follower:
            assert follower.stdout is not None
            for line in (b"first\n", b"second\n"):
                writer.stdin.write(line)
                writer.stdin.flush()
                assert follower.stdout.readline() == line
            writer.stdin.close()
            assert follower.stdout.readline() == b""
            assert follower.wait(DEADLINE_S) == 0
        assert writer.wait(DEADLINE_S) == 0


def test_ctrl_c_ends_a_follower_without_a_word(url: str) -> None:
    with start(url, "write") as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        ledger_id = int(writer.stdout.readline())
        writer.stdin.write(b"a sign that it waits for more\n")
        writer.stdin.flush()
        with start(url, "follow", ledger_id) as follower:
            assert follower.stdout is not None
            assert follower.stderr is not None
            assert follower.stdout.readline() == b"a sign that it waits for more\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(DEADLINE_S) == 130
            assert follower.stderr.read() == b""


def test_a_reader_that_goes_away_is_no_error(run: Run, url: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"some line\n" * 500_000)
    ledger_id = int(run("ledger", "write", file).stdout)
    with start(url, "read", ledger_id) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"some line\n"
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(DEADLINE_S) == 0
