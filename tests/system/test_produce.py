"""``quire produce``, against real bookies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from processes import cluster, last_word, quire

import ledger_client
from ledger_client.topics.messages import Message

Run = Callable[..., subprocess.CompletedProcess[bytes]]

# One cluster serves them all: in one process, which starts it once.
pytestmark = pytest.mark.xdist_group("produce")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


@pytest.fixture
def run(url: str) -> Run:
    return partial(quire, "produce", environment={"QUIRE_CLUSTER": url})


def read(url: str, topic: str) -> list[Message]:
    async def read_all() -> list[Message]:
        async with ledger_client.connect(url) as client, client.reader(topic) as reader:
            return [message async for message in reader]

    return trio.run(read_all)


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_lines_become_messages_of_a_topic_that_is_made(run: Run, url: str) -> None:
    """TD-10: lines, CSV and JSON lines end in the same log."""
    done = run("t/lines", "--create", "--json", stdin=b"one\ntwo\r\nthree")
    assert told(done) == {
        "topic": "t/lines",
        "messages": 3,
        "bytes": 11,
        "duplicates": 0,
        "complete": True,
    }
    more = run("t/lines", "--create", stdin=b"four\n")
    assert last_word(more.stderr) == "1 message, 4 bytes acknowledged in t/lines"
    assert [message.value for message in read(url, "t/lines")] == [
        b"one",
        b"two",
        b"three",
        b"four",
    ]


def test_any_bookie_of_the_address_will_do(url: str) -> None:
    """TB-33, TB-52: the first two hosts of the address are not there."""
    address = url.replace("bookie://", "bookie://127.0.0.1:1,127.0.0.1:2,")
    done = quire("produce", "t/any", "--create", "--cluster", address, "--json", stdin=b"x\n")
    assert told(done)["messages"] == 1
    assert [message.value for message in read(address, "t/any")] == [b"x"]


def test_the_form_follows_from_the_files_name(run: Run, url: str, tmp_path: Path) -> None:
    table, objects = tmp_path / "a.csv", tmp_path / "b.jsonl"
    table.write_text("who,at,n\nann,2024-05-01T00:00:00Z,1\nbob,,2\n")
    objects.write_text('{"who": "cid", "at": 5, "n": 3}\n')
    words = ("--key", "who", "--event-time", "at", "--value", "n", "--time-unit", "s")
    assert told(run("t/forms", table, "--create", *words, "--json"))["messages"] == 2
    assert told(run("t/forms", objects, *words, "--json"))["messages"] == 1
    assert [(m.key, m.event_time, m.value) for m in read(url, "t/forms")] == [
        (b"ann", 1_714_521_600_000_000_000, b"1"),
        (b"bob", None, b"2"),
        (b"cid", 5_000_000_000, b"3"),
    ]


def test_keys_and_headers_of_lines_come_back_as_a_template_shows_them(run: Run, url: str) -> None:
    words = ("--key-separator", ":", "--header", "from=shell", "--header", "n=1=2")
    assert told(run("t/keys", "--create", *words, "--json", stdin=b"ann:1\n:\nno key"))
    shown = quire("read", "t/keys", "--cluster", url, "--format", r"%k(%K) %v(%S) %t %h\n")
    assert shown.stdout.splitlines() == [
        b"ann(3) 1(1) t/keys from=shell,n=1=2",
        b"(0) (0) t/keys from=shell,n=1=2",
        b"NULL(-1) no key(6) t/keys from=shell,n=1=2",
    ]


def test_what_is_kept_already_is_not_sent_again(run: Run, url: str) -> None:
    """PS-39: the same input again, longer by a line."""
    words = ("t/again", "--create", "--producer-name", "loader", "--resume", "--json")
    assert told(run(*words, stdin=b"a\nb\n"))["messages"] == 2
    again = told(run(*words, stdin=b"a\nb\nc\n"))
    assert (again["messages"], again["duplicates"], again["bytes"]) == (1, 2, 1)
    assert [message.value for message in read(url, "t/again")] == [b"a", b"b", b"c"]


def test_a_name_that_sent_another_file_does_not_resume_this_one(run: Run, url: str) -> None:
    """The rows in place of the other file's would be taken as stored."""
    words = ("t/other", "--producer-name", "loader")
    assert told(run(*words, "--create", "--json", stdin=b"1\n2\n3\n"))
    refused = run(*words, "--resume", stdin=b"a\nb\nc\nd\n")
    assert refused.returncode == 1
    line = last_word(refused.stderr)
    assert "its message 1 is something else here. Send what is missing under another" in line
    assert [message.value for message in read(url, "t/other")] == [b"1", b"2", b"3"]


def test_a_large_file_arrives_whole_and_in_order(run: Run, url: str, tmp_path: Path) -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 300)) for number in range(60_000)]
    source = tmp_path / "large"
    source.write_bytes(b"\n".join(lines))
    assert told(run("t/large", source, "--create", "--json"))["messages"] == 60_000
    assert [message.value for message in read(url, "t/large")] == lines


@pytest.mark.parametrize(
    ("words", "stdin", "code", "message"),
    [
        (
            ["t/none"],
            b"x\n",
            1,
            "`quire topic create t/none` makes it",
        ),
        (["none"], b"x\n", 2, "is not namespace/name"),
        (["t/x", "--key", "k"], b"x\n", 2, "lines have no fields"),
        (["t/x", "--resume"], b"x\n", 2, "--resume needs the --producer-name"),
        (["t/x", "--delimiter", ";;", "--format", "csv"], b"", 2, "one character"),
        (["t/x", "--key-separator", r"\q"], b"", 2, r"\\q is no escape"),
        (["t/x", "--key-separator", ":", "--format", "csv"], b"", 2, "for lines; .*use --key"),
        (["t/x", "--header", "x"], b"", 2, "'x' is not NAME=VALUE"),
        (["t/x", "--header", "x=1", "--header", "x=2"], b"", 2, "the same name"),
        (["t/x", "/nowhere/at/all"], b"", 1, "/nowhere/at/all: No such file"),
        (["t/x", "--create", "--format", "csv", "--key", "k"], b"a\n", 1, "no column 'k'"),
        (
            ["t/x", "--create", "--format", "json", "--key", "k"],
            b'{"k":1}\n?\n',
            1,
            "line 2 is not JSON: .*; 0 messages acknowledged",
        ),
        (["t/x", "--create"], b"a\n" + b"x" * 5_242_600, 1, "at most 52.* bytes fit"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(
    run: Run, words: list[str], stdin: bytes, code: int, message: str
) -> None:
    done = run(*words, stdin=stdin)
    assert done.returncode == code
    assert done.stdout == b""
    line = last_word(done.stderr)
    assert line.startswith("quire: ")
    assert re.search(message, line)


def test_ctrl_c_sends_what_was_read_and_says_so(url: str) -> None:
    command = [sys.executable, "-P", "-m", "ledger_client", "produce", "t/interrupted", "--create"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "QUIRE_CLUSTER": url},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nunfinished")
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not kept(url, "t/interrupted"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)  # its input is open all the while
        _, error = process.communicate()
    assert process.returncode == 130
    assert error == b"interrupted; 2 messages, 6 bytes acknowledged in t/interrupted\n"
    assert [message.value for message in read(url, "t/interrupted")] == [b"one", b"two"]


def test_after_a_kill_the_rest_of_the_input_is_sent(run: Run, url: str) -> None:
    """What the killed run left open is read, and compared with the input, too."""
    rows = [b"row %d" % number for number in range(5000)]
    topic = "t/killed"
    words = ["produce", topic, "--create", "--producer-name", "loader"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ledger_client", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "QUIRE_CLUSTER": url},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"\n".join(rows[:3000]) + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not kept(url, topic):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    resume = (*words[1:], "--resume", "--access", "wait", "--json")
    done = told(run(*resume, stdin=b"\n".join(rows)))
    assert isinstance(done["duplicates"], int)
    assert 0 < done["duplicates"] <= 3000
    values = [message.value for message in read(url, topic)]  # of two lanes
    assert sorted(filter(None, values)) == sorted(rows)


def kept(url: str, topic: str) -> bool:
    try:
        return bool(read(url, topic))
    except ledger_client.LedgerError:
        return False
