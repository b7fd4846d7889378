"""``quire read``, against real bookies."""

from __future__ import annotations

import io
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

import pyarrow as pa
import pytest
import trio
from processes import cluster, is_silent, last_word, quire

import ledger_client

Run = Callable[..., subprocess.CompletedProcess[bytes]]
NOON_NS = 1_714_564_800_000_000_000  # 2024-05-01T12:00Z
MINUTE_NS = 60_000_000_000
COUNT = 3000

# One cluster serves them all: in one process, which starts it once.
pytestmark = pytest.mark.xdist_group("read_topic")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        trio.run(fill, running)
        yield running


async def fill(url: str) -> None:
    """A topic of messages a minute apart, and one of every kind of message."""
    async with ledger_client.connect(url) as client:
        await client.topics.create("t/times", order="event-time")
        async with client.producer("t/times") as producer:
            await producer.send_many(
                [b"%d" % i for i in range(COUNT)],
                event_times=[NOON_NS + i * MINUTE_NS for i in range(COUNT)],
            )
        await client.topics.create("t/kinds", 2)
        async with client.producer("t/kinds", producer_name="p") as producer:
            await producer.send("ü".encode(), headers={"a": b"1", "b": b"\xfe"})
        await client.topics.create("t/stock", 2, timesync=True)
        async with client.producer("t/stock") as producer:
            for key, value in ((b"A1", b"one"), (b"A2", b"two"), (b"A1", b"")):
                await producer.send(value, key=key)
        await client.topics.create("t/compacted")
        async with client.producer("t/compacted") as producer:
            values: list[bytes | None] = [b"a1", b"b1", b"a2", None, b"c1"]
            await producer.send_many(values, keys=[b"a", b"b", b"a", b"b", b"c"])
        await client.topics.compact("t/compacted")
        async with client.producer("t/compacted") as producer:
            await producer.send(b"a3", key=b"a")


@pytest.fixture
def run(url: str) -> Run:
    return partial(quire, "read", environment={"QUIRE_CLUSTER": url})


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def test_values_are_lines(run: Run) -> None:
    assert lines(run("t/times")) == [str(i) for i in range(COUNT)]
    assert lines(run("t/times", "--reverse", "--limit", "3")) == ["2999", "2998", "2997"]


def test_a_topic_is_shown_as_it_was_at_a_moment(run: Run) -> None:
    """MV-04, MV-46: by its timestamp or time, with all messages or only the latest of each key."""
    messages = [
        json.loads(line) for line in lines(run("t/stock", "--order", "timestamp", "--json"))
    ]
    moments = [str(message["timestamp"]) for message in messages]
    seen = [lines(run("t/stock", "--latest", "--as-of", moment)) for moment in moments]
    assert seen == [["one"], ["one", "two"], ["two"]]
    assert lines(run("t/stock", "--as-of", moments[1])) == ["one", "two"]
    assert lines(run("t/stock", "--as-of", "1h")) == []
    for level in ("strong", "bounded", "session", "eventual"):
        words = ["--consistency", level, *(["--staleness", "1s"] if level == "bounded" else [])]
        (shown,) = lines(run("t/stock", "--latest", "--json", *words))
        assert json.loads(shown) == messages[1]
    refused = run("t/times", "--latest")
    assert refused.returncode == 2
    assert b"without timesync" in refused.stderr
    assert run("t/stock", "--latest", "--format", "arrow").returncode == 2


def test_of_a_compacted_topic_the_latest_of_each_key_is_read_when_asked_for(run: Run) -> None:
    """PS-37."""
    assert lines(run("t/compacted")) == ["a1", "b1", "a2", "", "c1", "a3"]
    assert lines(run("t/compacted", "--compacted")) == ["a2", "c1", "a3"]
    assert lines(run("t/compacted", "--compacted", "--reverse")) == ["a3", "c1", "a2"]
    raw = [json.loads(line) for line in lines(run("t/compacted", "--json"))]
    found = [json.loads(line) for line in lines(run("t/compacted", "--json", "--compacted"))]
    assert found == [raw[2], raw[4], raw[5]]


def test_a_range_of_event_times_or_ids(run: Run) -> None:
    """PS-34, TB-63: the same place by time and by id."""
    words = ("--from", "2024-05-01T12:10", "--before", "2024-05-01T12:15Z")
    assert lines(run("t/times", *words)) == ["10", "11", "12", "13", "14"]
    words = ("--after", "2024-05-01T12:10", "--to", str(NOON_NS + 12 * MINUTE_NS))
    objects = [json.loads(line) for line in lines(run("t/times", *words, "--format", "json"))]
    assert [each["value"] for each in objects] == ["11", "12"]
    assert objects[0]["event_time"] == NOON_NS + 11 * MINUTE_NS
    start, end = (each["id"] for each in objects)
    assert lines(run("t/times", "--from", start, "--to", end)) == ["11", "12"]
    assert lines(run("t/times", "--after", start, "--to", end)) == ["12"]
    assert lines(run("t/times", "--by", "publish-time", "--from", "1h")) == [
        str(i) for i in range(COUNT)
    ]
    assert lines(run("t/times", "--by", "publish-time", "--to", "1h")) == []


def test_objects_tell_everything(run: Run) -> None:
    (told,) = [json.loads(line) for line in lines(run("t/kinds", "--format", "json"))]
    assert re.fullmatch(r"\d+:\d+:[01](:\d+)?", told.pop("id"))
    assert abs(told.pop("publish_time") / 1000 - time.time()) < 600
    assert told == {
        "topic": "t/kinds",
        "key": None,
        "value": "ü",
        "event_time": None,
        "timestamp": None,
        "producer": "p",
        "sequence": 0,
        "lane": 1,
        "headers": {"a": "1", "b_base64": "/g=="},
    }
    assert run("t/kinds", "--json").stdout == run("t/kinds", "--format", "json").stdout


def test_an_arrow_stream_is_whole(run: Run) -> None:
    done = run("t/times", "--format", "arrow", "--limit", "2500")
    assert done.returncode == 0, done.stderr
    table = pa.ipc.open_stream(io.BytesIO(done.stdout)).read_all()
    assert table.column("value").to_pylist() == [b"%d" % i for i in range(2500)]
    assert table.column("event_time").to_pylist()[-1] == NOON_NS + 2499 * MINUTE_NS


@pytest.mark.parametrize(
    ("words", "told"), [("read t/times | head -n 2", b"0\n1\n"), ("topic explain t/times | :", b"")]
)
def test_a_closed_pipe_ends_it_without_a_word(url: str, words: str, told: bytes) -> None:
    command = f"{sys.executable} -P -m ledger_client {words}"
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", command],
        env=os.environ | {"QUIRE_CLUSTER": url},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, told), done.stderr
    assert is_silent(done.stderr), done.stderr


@pytest.mark.parametrize("form", ["text", "arrow"])
def test_a_follower_writes_what_comes_and_ends_with_ctrl_c(
    url: str, form: str, tmp_path: Path
) -> None:
    """TB-69: it waits where the topic ends."""
    command = [sys.executable, "-P", "-m", "ledger_client", "read", "t/times", "--follow"]
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen(
            [*command, "--after", "2024-05-01T12:00", "--format", form],
            env=os.environ | {"QUIRE_CLUSTER": url},
            stdout=file,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        wait_until_quiet(out)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")
    if form == "text":
        assert out.read_text().splitlines() == [str(i) for i in range(1, COUNT)]
    else:
        assert pa.ipc.open_stream(out.read_bytes()).read_all().num_rows == COUNT - 1


def wait_until_quiet(out: Path) -> None:
    """Wait until the file grew, and did not for a second."""
    deadline, size = time.monotonic() + 30, 0
    while time.monotonic() < deadline:
        time.sleep(1)
        before, size = size, out.stat().st_size
        if size == before > 0:
            return
    pytest.fail("nothing was written")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["t/none"], 1, "no such topic"),
        (["none"], 2, "is not namespace/name"),
        (["t/times", "--from", "soon"], 2, "'soon' is not a place; write earliest"),
        (["t/times", "--from", "1:1:-1", "--after", "1:1:-1"], 2, "exclude each other"),
        (["t/times", "--from", "999999:1:-1"], 2, "no ledger 999999"),
        (["t/times", "--partition", "4"], 2, "no partition 4"),
        (["t/times", "--json", "--format", "arrow"], 2, "exclude each other"),
        (["t/times", "--reverse", "--follow"], 2, "followed in reverse"),
        (["t/kinds", "--order", "event-time"], 2, "not ordered by event time"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    run: Run, words: list[str], code: int, message: str
) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, b""), done.stderr
    line = last_word(done.stderr)
    assert line.startswith("quire: ")
    assert message in line
