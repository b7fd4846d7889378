"""``quire compact`` as a process, against real bookies; it is interrupted and killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec
import pytest
import trio
from never_twice import never_twice
from processes import WAITS, cluster, last_word, quire

import ledger_client
from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.commands.compact import Dropped
from ledger_client.commands.topic.describe import Described
from ledger_client.jobs.compaction.job import Compaction
from ledger_client.topics.retention.holdings import read_holdings, read_set
from metadata.jobs import STAGED
from metadata.store import items_under
from metadata.topics import RollPolicy

# One cluster serves those that need no Spark.
WITHOUT_SPARK = pytest.mark.xdist_group("compact")
TOPIC = "shop/keyed"
DEADLINE_S = 120.0
KEYS = 4000
TRIES = count()
"""Topics of a second try are its own."""
SPARK = ("--master", "local[2]")
BY_SPARK = [pytest.mark.real_processes, pytest.mark.xdist_group("spark")]
Dictionary = dict[bytes | None, bytes | None]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


@pytest.fixture
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        yield connected


def produce(client: BlockingClient, name: str, messages: int, seed: int) -> None:
    chance = random.Random(seed)
    with client.producer(name) as producer:
        for _ in range(0, messages, 10_000):
            keys = [b"%d" % chance.randrange(KEYS) for _ in range(min(messages, 10_000))]
            producer.send_many([chance.randbytes(60) for _ in keys], keys=keys)


def read(client: BlockingClient, name: str, *, compacted: bool) -> Dictionary:
    with client.reader(name, compacted=compacted) as reader:
        return {message.key: message.value for message in reader}


@never_twice()
def check_compacted(client: BlockingClient, name: str) -> None:
    """What is compacted has the last value of each key."""
    assert read(client, name, compacted=True) == read(client, name, compacted=False)


def run(
    url: str, *words: str, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    done = quire(*words, environment={"QUIRE_CLUSTER": url, **environment})
    assert done.returncode == code, done.stderr
    return done


@WITHOUT_SPARK
def test_a_topic_is_compacted_described_and_dropped(url: str, client: BlockingClient) -> None:
    """PS-37, PS-38: what was done is kept in metadata and told."""
    client.topics.create(TOPIC, partitions=2)
    produce(client, TOPIC, 20_000, 1)
    told = run(url, "compact", TOPIC, "--no-spark", "--dry-run").stdout.decode()
    assert told.startswith("would read ")
    done = msgspec.json.decode(
        run(url, "compact", TOPIC, "--no-spark", "--json").stdout, type=Compaction
    )
    assert done.report is not None
    assert (done.published, done.generation, done.report.messages_in) == (True, 1, 20_000)
    check_compacted(client, TOPIC)
    again = run(url, "compact", TOPIC, "--no-spark").stdout.decode()
    assert again == "nothing to compact: no ledger was closed since the last time\n"
    found = msgspec.json.decode(
        run(url, "topic", "describe", TOPIC, "--json").stdout, type=Described
    )
    assert found.compacted is not None
    assert found.compacted.report == done.report
    assert "generation 1" in run(url, "topic", "describe", TOPIC).stdout.decode()
    dropped = msgspec.json.decode(
        run(url, "compact", TOPIC, "--drop", "--json").stdout, type=Dropped
    )
    assert (dropped.dropped, dropped.messages) == (True, done.report.messages_out)
    assert run(url, "compact", TOPIC, "--drop").stdout == b"there is no compacted set\n"


@WITHOUT_SPARK
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["shop/nothing", "--no-spark"], 1, "quire: topic shop/nothing: no such topic"),
        (["shop"], 2, "quire: "),
        ([TOPIC, "--drop", "--dry-run"], 2, "quire: --drop excludes"),
        (["shop/x", "--no-spark", "--cluster", "bookie://127.0.0.1:1"], 3, "quire: "),
    ],
)
def test_what_cannot_be_is_one_line(url: str, words: list[str], code: int, line: str) -> None:
    done = run(url, "compact", *words, code=code)
    assert last_word(done.stderr).startswith(line)


@WITHOUT_SPARK
def test_without_java_the_line_says_so(url: str, client: BlockingClient, tmp_path: Path) -> None:
    client.topics.create("shop/java")
    produce(client, "shop/java", 10, 1)
    done = run(url, "compact", "shop/java", code=1, JAVA_HOME=str(tmp_path), PATH=str(tmp_path))
    told = last_word(done.stderr)
    assert "Java" in told
    assert "; or run it without Spark: --no-spark" in told


# --- interrupted and killed -----------------------------------------------------------


def begin(url: str, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "ledger_client", "compact", name, "--cluster", url]
    return subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


async def staged_count(url: str) -> int:
    async with ledger_client.connect(url) as client:
        return len(await items_under(client._context.store, STAGED))


def wait_for_staged(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until something is staged, or all is done."""
    ends_at = time.monotonic() + DEADLINE_S
    while process.poll() is None and trio.run(staged_count, url) == 0:
        assert time.monotonic() < ends_at


async def unknown_ledgers(url: str, names: Sequence[str]) -> set[int]:
    """Return ledgers of these topics that none of them knows."""
    async with ledger_client.connect(url) as client:
        known: set[int] = set()
        for name in names:
            topic = await client.topics.info(name)
            lanes = await read_holdings(client._context.store, topic)
            known |= {held.row.ledger_id for lane in lanes for held in lane.ledgers}
            found = await read_set(client._context.store, topic.uid)
            if found is not None:
                known |= {each.ledger_id for each in found.set.ledgers}
                known |= {each.ledger_id for each in found.set.retired}
        return {
            info.ledger_id
            async for info in client.ledgers.list()
            if info.custom.get("topic") in names and info.ledger_id not in known
        }


def filled(client: BlockingClient, name: str) -> None:
    client.topics.create(name, partitions=2, roll=RollPolicy(size=3_000_000))
    produce(client, name, 100_000, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--no-spark",), pytest.param(SPARK, marks=BY_SPARK)], ids=["one", "spark"]
)
def test_ctrl_c_leaves_nothing_behind(
    url: str, client: BlockingClient, words: tuple[str, ...]
) -> None:
    """Nothing is staged, and no process of Spark runs."""
    name = f"shop/interrupted-{next(TRIES)}"
    filled(client, name)
    process = begin(url, name, *words)
    wait_for_staged(url, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in {0, 130}, told
    assert trio.run(staged_count, url) == 0
    assert trio.run(unknown_ledgers, url, [name]) == set()
    ends_at = time.monotonic() + DEADLINE_S
    while running_in(process.pid):
        assert time.monotonic() < ends_at
        time.sleep(0.2)


def running_in(session: int) -> list[int]:
    """Return the processes of a session."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize(
    ("words", "seed", "turns", "start_s"),
    [
        pytest.param(("--no-spark",), 1, 4, 0.0, marks=WITHOUT_SPARK),
        pytest.param(("--no-spark",), 2, 4, 0.0, marks=WITHOUT_SPARK),
        pytest.param(
            *(SPARK, 3, 2, 4.0), marks=[pytest.mark.xdist_group("spark"), pytest.mark.long]
        ),
    ],
    ids=["1", "2", "spark"],
)
def test_a_driver_that_is_killed_leaves_one_generation_whole(
    url: str, client: BlockingClient, words: tuple[str, ...], seed: int, turns: int, start_s: float
) -> None:
    """PS-37: and nothing that nobody knows, once the housekeeper was there."""
    name = f"shop/killed-{seed}-{next(TRIES)}"
    chance = random.Random(seed)
    filled(client, name)
    for turn in range(turns):
        process = begin(url, name, *words)
        if turn % 2:
            wait_for_staged(url, process)
        else:
            time.sleep(start_s)
        time.sleep(chance.uniform(0, 0.8))
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        check_compacted(client, name)
        produce(client, name, 10_000, turn)
    told = run(url, "compact", name, *words).stderr.decode().splitlines()
    assert words == SPARK or all(each.startswith(WAITS) for each in told)
    check_compacted(client, name)
    ends_at = time.monotonic() + DEADLINE_S
    while trio.run(unknown_ledgers, url, [name]):
        assert time.monotonic() < ends_at
        time.sleep(1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.xdist_group("spark")
def test_an_executor_that_is_killed_is_tried_again(url: str, client: BlockingClient) -> None:
    """PS-37: what the first attempt staged is given up."""
    name = f"shop/executor-{next(TRIES)}"
    filled(client, name)
    process = begin(url, name, "--master", "local[2,4]", "--json")
    wait_for_staged(url, process)
    assert killed_workers(process.pid) or process.poll() is not None
    out, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, told
    assert msgspec.json.decode(out, type=Compaction).published
    check_compacted(client, name)
    assert trio.run(staged_count, url) == 0
    assert trio.run(unknown_ledgers, url, [name]) == set()


def killed_workers(session: int) -> int:
    """Kill the Python workers of Spark in a session; return how many."""
    killed = 0
    for process in running_in(session):
        with suppress(OSError):
            folder = Path("/proc") / str(process)
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes() and parent_is_daemon(folder):
                os.kill(process, signal.SIGKILL)
                killed += 1
    return killed


def parent_is_daemon(folder: Path) -> bool:
    """Whether a process was forked by Spark's daemon, and is not the daemon itself."""
    status = (folder / "status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
    return b"pyspark.daemon" in (Path("/proc") / parent / "cmdline").read_bytes()
