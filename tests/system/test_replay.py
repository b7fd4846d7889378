"""``quire replay``, against real bookies."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from never_twice import check_end, never_twice
from processes import cluster, last_word, quire
from run_seed import VARIABLE, run_seed

import ledger_client
from ledger_client import blocking
from ledger_client.__main__ import quire as quire_command
from ledger_client.commands.outcome import conclude
from metadata.replays import decode_replay, replay_key
from metadata.topics import Schema

Run = Callable[..., subprocess.CompletedProcess[bytes]]
COUNT = 3000
MANY = 600_000
KILLS = 3 if VARIABLE in os.environ else 1  # each is followed by the end of a session
TRIES = count()
"""Targets of a second try are its own."""
TOGETHER = 50_000
SECONDS = range(0, 100 * 10**9, 10**9)

# One cluster serves them all: in one process, which starts it once.
pytestmark = pytest.mark.xdist_group("replay")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 1) as running:
        trio.run(fill, running)
        yield running


async def fill(url: str) -> None:
    async with ledger_client.connect(url) as client:
        await client.topics.create("t/few", 2, replication=1)
        async with client.producer("t/few") as producer:
            values = [b"%d" % i for i in range(COUNT)]
            await producer.send_many(values, keys=values)
        await client.topics.create("t/text", 2, replication=1, schema=Schema(kind="string"))
        async with client.producer("t/text") as producer:
            await producer.send_many([*values[:-1], b"\xff"], keys=values)


@pytest.fixture
def run(url: str) -> Run:
    return partial(quire, "replay", environment={"QUIRE_CLUSTER": url})


def test_into_a_topic_with_its_definition(run: Run, url: str) -> None:
    """TD-02: and the same command again says that it was done, and looks whether it is there."""
    words = ("t/few", "--to", "t/copy", "--with-definition", "--verify")
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["messages"], told["verified"], len(told["parts"])) == (COUNT, True, 2)
    again = run(*words)
    assert (again.returncode, b"was done before" in again.stderr) == (0, True)
    assert b"t/copy, read back and compared; --restart" in again.stderr
    with blocking.connect(url) as client, client.reader("t/copy") as reader:
        assert len(list(reader)) == COUNT


def test_into_another_cluster_and_into_parquet(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with cluster(tmp_path / "other", 1) as other:
        words = ("t/few", "--to", "t/few", "--to-cluster", other, "--with-definition")
        done = run(*words, "--verify", "--order", "arrival")
        assert done.returncode == 0, done.stderr
        read = quire("read", "t/few", environment={"QUIRE_CLUSTER": other})
        assert sorted(map(int, read.stdout.split())) == list(range(COUNT))
    done = run("t/few", "--to-parquet", tmp_path / "files", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "files")
    assert sorted(map(int, table.column("value").to_pylist())) == list(range(COUNT))


def test_to_standard_output_as_quire_read_writes_it(run: Run) -> None:
    done = run("t/few")
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, done.stdout.split())) == list(range(COUNT))
    assert b"3,000 messages" in done.stderr
    objects = [json.loads(line) for line in run("t/few", "--format", "json").stdout.splitlines()]
    assert [each["value"] for each in objects] == done.stdout.decode().split()
    stream = pa.ipc.open_stream(io.BytesIO(run("t/few", "--format", "arrow").stdout))
    assert stream.read_all().num_rows == COUNT


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("t/none", "--to", "t/copy"), 1, "no such topic"),
        (("t/few", "--to", "t/none"), 1, "or let --with-definition make it like t/few"),
        (("t/few", "--to", "t/few"), 2, "into itself"),
        pytest.param(
            ("t/few", "--to", "t/x", "--cluster", "bookie://127.0.0.1:1"),
            3,
            "cannot be reached",
            marks=pytest.mark.slow,
        ),
        (
            ("t/few", "--to", "t/x", "--to-cluster", "bookie://127.0.0.1:1"),
            3,
            "cannot be reached",
        ),
        (("t/few", "--to", "t/x", "--order", "event-time"), 2, "not ordered by event time"),
        (("t/few", "--from", "999:0:0", "--to", "t/x"), 2, "no ledger 999"),
        (("t/few", "--from", "yesterday", "--to", "t/x"), 2, "is not a place"),
        (("t/few", "--to", "t/x", "--to-parquet", "p"), 2, "exclude each other"),
        (("t/few", "--keep-ids"), 2, "need --to"),
        (("t/few", "--verify"), 2, "cannot be resumed or verified"),
        (("t/few", "--to-parquet", "p", "--spark", "--speed", "1"), 2, "needs --no-spark"),
        (("t/few", "--master", "local[2]"), 2, "need --to or --to-parquet"),
        (("t/few", "--to", "t/x", "--spark", "--speed", "1"), 2, "needs --no-spark"),
        (("t/few", "--to-parquet", "p", "--spark", "--name", "n"), 2, "need --no-spark"),
        (("t/few", "--to", "t/x", "--speed", "-1"), 2, "--speed"),
    ],
)
def test_what_cannot_be_is_one_line(run: Run, words: tuple[str, ...], code: int, told: str) -> None:
    if words[-1] != "t/none":
        run("t/few", "--to", "t/x", "--with-definition", "--until", "earliest")
    done = run(*words)
    line = last_word(done.stderr)
    assert done.returncode == code, done.stderr
    assert told in line


@pytest.fixture(scope="module")
def slow(url: str) -> None:
    """A topic of a hundred entries, a second apart."""
    with blocking.connect(url) as client:
        client.topics.create("t/slow", replication=1, order="event-time")
        with client.producer("t/slow", batching=False) as producer:
            producer.send_many([b"%d" % i for i in range(100)], event_times=SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "restart"),
    [("topic t/cut", ()), ("folder {}", ()), ("folder {}", ("--restart",))],
)
def test_ctrl_c_tells_how_far_it_got_and_the_same_command_goes_on(
    run: Run, url: str, slow: None, tmp_path: Path, target: str, restart: tuple[str, ...]
) -> None:
    target = target.format(tmp_path / "files")
    kind, _, where = target.partition(" ")
    words = ["t/slow", *(("--to", where, "--with-definition") if kind == "topic" else ())]
    words += ["--to-parquet", where, "--file-size", "1"] if kind == "folder" else []
    words += ["--name", f"cut-{kind}{len(restart)}"]
    command = [sys.executable, "-P", "-m", "ledger_client", "replay", *words, *restart]
    with subprocess.Popen(
        [*command, "--speed", "20"],
        env=os.environ | {"QUIRE_CLUSTER": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until_something_is_kept(process, url, words[-1])  # of the five seconds that it takes
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    same = "the same command without --restart" if restart else "the same command"
    has = f"{target} has at least (\\d+) messages of the replay"
    line = f"interrupted; {has}, and {same} resumes after them"
    told = re.fullmatch(line, last_word(said))
    assert told, said
    assert (process.returncode, out) == (130, b"")
    report = json.loads(run(*words, "--json", "--verify").stdout)
    assert (report["messages"], report["verified"]) == (100, True)
    # The last save may have failed, on a slow disk; the topic knows what it has even so.
    assert int(told[1]) <= report["resumed"] + report["repeated"]
    assert 0 < report["resumed"] < 100


@pytest.mark.parametrize("words", [(), ("--to", "t/never", "--restart"), ("--to", "t/never")])
def test_ctrl_c_before_anything_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """Of a stream nothing is kept, and nothing is told."""

    def interrupt(*_: object) -> None:
        raise click.Abort

    monkeypatch.setattr("trio.run", interrupt)
    assert conclude(quire_command, ["replay", "t/few", *words]) == 130
    told = "starts over" if "--restart" in words else "resumes"
    lines = [f"interrupted before anything more was stored; the same command {told}"]
    assert capsys.readouterr().err.splitlines() == (lines if words else [])


def kill_until_done(words: list[str], url: str, chance: random.Random) -> int:
    """Start a replay again and again, and kill it KILLS times; return how often it was killed."""
    command = [sys.executable, "-P", "-m", "ledger_client", "replay", *words]
    for kills in range(KILLS + 1):
        with subprocess.Popen(
            command,
            env=os.environ | {"QUIRE_CLUSTER": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                if kills < KILLS:
                    wait_until_it_runs(process, url)
                    # The first as soon as it runs: a fast machine is done in no time.
                    time.sleep(chance.random() * 0.7 if kills else 0)
                    if process.poll() is None:
                        continue
                _, said = process.communicate(timeout=120)
                check_done(process.returncode, said)
                return kills
            finally:
                process.kill()
    raise AssertionError


def check_done(code: int, said: bytes) -> None:
    """It ended well, and found again what it had sent."""
    check_end(code, said.decode())
    with never_twice():
        assert b"were read back, and" not in said, said
    assert code == 0, said


def wait_until_it_runs(process: subprocess.Popen[bytes], url: str) -> None:
    """Return once the replay holds its lease, which whoever was killed left for some seconds."""
    with blocking.connect(url) as client:

        async def running() -> bool:
            leases = await client._inner._context.store.leases("replays/")
            return any(f"/{process.pid}/" in lease.owner for lease in leases)

        while process.poll() is None and not client._portal.call(running):
            time.sleep(0.05)


def wait_until_something_is_kept(process: subprocess.Popen[bytes], url: str, name: str) -> None:
    """Return once the record of the replay *name* says so."""
    key = replay_key(name)
    with blocking.connect(url) as client:

        async def kept() -> bool:
            found = await client._inner._context.store.get(key)
            return found is not None and any(
                each.count > 0 for each in decode_replay(key, found.value).sent
            )

        while process.poll() is None and not client._portal.call(kept):
            time.sleep(0.05)


@pytest.fixture(scope="module")
def many(url: str) -> list[bytes]:
    """A topic of many messages in two partitions, and their values."""
    values = [b"%07d" % i for i in range(MANY)]
    with blocking.connect(url) as client:
        client.topics.create("t/many", partitions=2, replication=1)
        with client.producer("t/many") as producer:
            for start in range(0, MANY, TOGETHER):
                part = values[start : start + TOGETHER]
                producer.send_many(part, keys=[value[-2:] for value in part])
    return values


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_any_moment_it_goes_on_and_each_message_is_there_once(
    url: str, many: list[bytes], seed: int
) -> None:
    """TD-08: in the order of the lane."""
    target = f"t/many-{seed}-{next(TRIES)}"
    words = ["t/many", "--to", target, "--with-definition", "--verify"]
    assert kill_until_done(words, url, random.Random(run_seed() + seed)) > 0
    with blocking.connect(url) as client:
        for partition in range(2):
            found: dict[str, list[bytes]] = {}
            for name in ("t/many", target):
                with client.reader(name, partitions=[partition]) as reader:
                    batches = reader.read_batches()
                    found[name] = [v for b in batches for v in b.column("value").to_pylist()]
            with never_twice():
                assert found[target] == found["t/many"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
def test_killed_at_any_moment_its_files_have_each_message_once(
    url: str, many: list[bytes], tmp_path: Path
) -> None:
    words = ["t/many", "--to-parquet", str(tmp_path / "files"), "--verify", "--file-size", "1MiB"]
    assert kill_until_done(words, url, random.Random(run_seed() + 7)) > 0
    values = pq.read_table(tmp_path / "files", columns=["value"]).column("value").to_pylist()
    with never_twice():
        assert sorted(values) == many


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.xdist_group("spark")
def test_spark_writes_the_same_messages(
    run: Run, url: str, tmp_path: Path, own_spark: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sum of their hashes, and the rows, also of values that are not what the schema says."""
    folders = {"spark": tmp_path / "spark", "here": tmp_path / "here"}
    sums: dict[str, str] = {}
    for name, words in (("here", ()), ("spark", ("--master", "local[2]"))):
        command = ["replay", "t/text", "--to-parquet", str(folders[name]), "--verify", "--json"]
        code = conclude(quire_command, [*command, "--cluster", url, *words])
        out, said = capsys.readouterr()
        assert code == 0, said
        told = json.loads(out)
        with never_twice():
            assert (told["messages"], told["verified"]) == (COUNT, True)
        sums[name] = told["checksum"]
    with never_twice():
        assert sums["here"].partition(":")[0] == sums["spark"]
    columns = ["message_id", "version", "publish_time", "key", "value", "producer"]
    tables = [pq.read_table(folder, columns=columns) for folder in folders.values()]
    rows = [sorted(table.to_pylist(), key=lambda row: row["message_id"]) for table in tables]
    with never_twice():
        assert rows[0] == rows[1]
    again = run("t/text", "--to-parquet", folders["spark"], "--spark")
    assert (again.returncode, "an empty folder" in last_word(again.stderr)) == (1, True)
