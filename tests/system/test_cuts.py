"""Cuts by their commands, against real bookies; a process that makes them is killed. D-02."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from never_twice import never_twice
from processes import cluster, quire
from run_seed import run_seed

import ledger_client
from ledger_client import Client
from metadata.cuts import read_kept

pytestmark = pytest.mark.slow

ORDERS, PAYMENTS = "shop/orders", "shop/payments"
ROUNDS = 3
SEED = 1 + run_seed()
MAKER = """
import sys, trio, ledger_client
async def main(url, first):
    async with ledger_client.connect(url) as client:
        for number in range(int(first), 10**6):
            await client.cuts.create(f"cut-{number}", ["shop/orders", "shop/payments"])
            print(number, flush=True)
trio.run(main, *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cuts"), 2) as started:
        for topic in (ORDERS, PAYMENTS):
            done = run(started, "topic", "create", topic, "--partitions", "2", "--timesync")
            assert done.returncode == 0, done.stderr
        yield started


def run(url: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return quire(*words, stdin=stdin, environment={"QUIRE_CLUSTER": url})


def output(url: str, *words: str, stdin: bytes = b"") -> bytes:
    done = run(url, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cut_from_its_making_to_its_deletion(url: str, tmp_path: Path) -> None:
    """D-02: each step by its command."""
    output(url, "produce", ORDERS, stdin=b"o1\no2\n")
    output(url, "produce", PAYMENTS, stdin=b"p1\n")
    made = json.loads(output(url, "cut", "create", "noon", ORDERS, PAYMENTS, "--json"))
    assert made["timestamp"] > 1 << 58
    assert [topic["name"] for topic in made["topics"]] == [ORDERS, PAYMENTS]
    text = output(url, "cut", "create", "again", ORDERS, "--at", str(made["timestamp"]))
    assert text.startswith(b"cut again of 1 topic at 2")
    output(url, "produce", ORDERS, stdin=b"o3\n")
    for _ in range(2):
        found = output(url, "read", ORDERS, PAYMENTS, "--ending-cut", "noon").split()
        assert sorted(found) == [b"o1", b"o2", b"p1"]
        assert output(url, "read", ORDERS, "--starting-cut", "noon") == b"o3\n"
        again = output(url, "read", ORDERS, "--ending-cut", "again", "--order", "timestamp")
        assert again == b"o1\no2\n"
        copied = output(url, "replay", ORDERS, "--starting-cut", "noon")
        assert copied == b"o3\n"
    into = str(tmp_path / "noon")
    words = ("replay", ORDERS, PAYMENTS, "--ending-cut", "noon", "--to-parquet", into, "--json")
    assert json.loads(output(url, *words))["messages"] == 3
    listed = json.loads(output(url, "cut", "list", "--json"))
    assert [(cut["name"], cut["topics"]) for cut in listed] == [
        ("again", [ORDERS]),
        ("noon", [ORDERS, PAYMENTS]),
    ]
    assert b"noon" in output(url, "cut", "list")
    assert json.loads(output(url, "cut", "describe", "noon", "--json")) == made
    assert b"payments" in output(url, "cut", "describe", "noon")
    assert b"needed by cut noon" in output(url, "topic", "explain", PAYMENTS)
    assert b"kept by cuts    noon\n" in output(url, "topic", "describe", PAYMENTS)
    refused = run(url, "topic", "delete", PAYMENTS, "--yes")
    assert refused.returncode == 1
    assert b"cut noon keeps it: quire cut delete noon" in refused.stderr
    refusals: list[tuple[tuple[str, ...], int, bytes]] = [
        (("cut", "create", "noon", ORDERS), 1, b"already"),
        (("cut", "describe", "none"), 1, b"cut none: there is none"),
        (("cut", "create", "x", ORDERS, "--at", "2100-01-01"), 1, b"future"),
        (("cut", "create", "x"), 2, b"TOPIC"),
        (("read", ORDERS, "--ending-cut", "noon", "--to", "latest"), 2, b"exclude"),
        (("cut", "delete", "none", "--yes"), 1, b"none"),
    ]
    for command, code, reason in refusals:
        done = run(url, *command)
        assert (done.returncode, reason in done.stderr) == (code, True), done.stderr
    for name in ("noon", "again"):
        assert output(url, "cut", "delete", name, "--yes") == b""
    assert json.loads(output(url, "cut", "list", "--json")) == []


@pytest.mark.real_processes
def test_a_process_that_makes_cuts_and_is_killed_leaves_whole_ones(url: str) -> None:
    """D-02: at moments that a seed chooses."""
    chance, first = random.Random(SEED), 0
    for _ in range(ROUNDS):
        output(url, "produce", ORDERS, stdin=b"more\n")
        made = [*_killed(url, first, chance)]
        first = trio.run(_check, url, made)
    assert first >= ROUNDS


def _killed(url: str, first: int, chance: random.Random) -> Iterator[int]:
    """Make cuts in a process until it is killed; yield the numbers of those that it has made."""
    maker = subprocess.Popen(
        [sys.executable, "-P", "-c", MAKER, url, str(first)], stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    with maker.stdout:
        try:
            for _ in range(chance.randint(1, 3)):
                yield int(maker.stdout.readline())
            time.sleep(chance.random() * 0.4)
        finally:
            maker.kill()
            maker.wait()
        yield from map(int, maker.stdout.read().split())


async def _check(url: str, made: list[int]) -> int:
    """Check that all cuts are whole; return the number of the next one."""
    async with ledger_client.connect(url) as client:
        cuts = await client.cuts.list()
        names = {cut.name for cut in cuts}
        with never_twice():
            assert {f"cut-{number}" for number in made} <= names
            for topic in (ORDERS, PAYMENTS):
                uid = (await client.topics.info(topic)).uid
                kept = await read_kept(client._context.store, uid)
                assert {cut.name for cut in kept.cuts} == names
            for cut in cuts:
                for topic in (ORDERS, PAYMENTS):
                    found = await _read(client, topic)
                    expected = [each for each in found if each <= cut.timestamp]
                    assert await _read(client, topic, ending_cut=cut.name) == expected
        await client.cuts.create("after", [ORDERS, PAYMENTS])
        await client.cuts.delete("after")
        return 1 + max(int(name.removeprefix("cut-")) for name in names)


async def _read(client: Client, topic: str, *, ending_cut: str = "") -> list[int]:
    async with client.reader(topic, ending_cut=ending_cut) as reader:
        return sorted([message.timestamp async for message in reader])
