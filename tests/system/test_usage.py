"""``quire cluster usage``, against the disks of real bookies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio
from fleet import Fleet
from peer import Peer
from processes import quire

import ledger_client
from ledger_client.commands.cluster.usage import Used
from metadata.calls import FlushNow, JournalState

PAYLOAD = bytes(10_000)
SETTINGS = ("disk_reserve=0", "memtable_size=10MiB", "log_size_max=64MiB", "lost_after_s=600")
TOLERANCE = 0.01


def use(fleet: Fleet, *words: str) -> Used:
    done = quire("cluster", "usage", "--json", *words, "--cluster", fleet.cluster)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Used)


def reasons(fleet: Fleet) -> dict[str | None, int]:
    return {row.reason: row.size for row in use(fleet, "--by", "reason").rows}


def on_disk(folder: Path) -> int:
    """What du says of a folder, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in (folder, *folder.rglob("*")))


def check_against_disks(fleet: Fleet, folder: Path) -> None:
    rows = use(fleet, "--by", "bookie").rows
    assert len(rows) == len(fleet.numbers)
    for row in rows:
        assert row.size == pytest.approx(on_disk(folder / str(row.bookie_id)), rel=TOLERANCE)
        assert sum(row.reasons.values()) == row.size
    assert "unsettled" not in reasons(fleet)


def collect(fleet: Fleet) -> None:
    command = [sys.executable, "-P", "-m", "bookie", "gc", "--major"]
    done = subprocess.run([*command, "--cluster", fleet.cluster], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


async def flush(fleet: Fleet) -> None:
    for number in fleet.numbers:
        async with Peer.open(fleet.address(number)) as peer:
            await peer.call(FlushNow(), JournalState)


async def fill(fleet: Fleet) -> tuple[int, int]:
    """A topic, a ledger that stays and one that goes; return the two."""
    async with ledger_client.connect(fleet.cluster) as client:
        await client.topics.create("shop/orders", replication=3)
        async with client.producer("shop/orders") as producer:
            await producer.send_many([PAYLOAD] * 300)
        numbers: list[int] = []
        for _ in range(2):
            async with client.ledgers.create(3, 3, 3) as ledger:
                await ledger.append_many([PAYLOAD] * 500)
            numbers.append(ledger.id)
    await flush(fleet)
    return numbers[0], numbers[1]


@pytest.mark.slow
def test_the_bytes_of_all_reasons_are_what_the_disks_hold(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, SETTINGS) as fleet:
        kept, deleted = trio.run(fill, fleet)
        check_against_disks(fleet, tmp_path)
        by_ledger = {row.ledger_id: row for row in use(fleet, "--by", "ledger").rows}
        assert by_ledger[kept].copies == 3
        assert by_ledger[kept].live == pytest.approx(3 * 500 * len(PAYLOAD), rel=TOLERANCE)
        (orders,) = use(fleet, "--topic", "shop/orders").rows
        assert orders.live == pytest.approx(3 * 300 * len(PAYLOAD), rel=TOLERANCE)

        before = reasons(fleet)
        quire("ledger", "delete", deleted, "--cluster", fleet.cluster)
        after = reasons(fleet)
        assert after["live"] + after["unwanted"] == before["live"]
        assert after["unwanted"] == by_ledger[deleted].live
        check_against_disks(fleet, tmp_path)

        collect(fleet)
        left = reasons(fleet)
        assert (left["live"], left.get("unwanted", 0)) == (after["live"], 0)
        check_against_disks(fleet, tmp_path)


@pytest.mark.real_processes
def test_a_bookie_that_is_away_is_named_and_an_unknown_topic_refused(tmp_path: Path) -> None:
    with Fleet(tmp_path, 2, SETTINGS) as fleet:
        unknown = quire("cluster", "usage", "--topic", "a/b", "--cluster", fleet.cluster)
        assert (unknown.returncode, b"no such topic" in unknown.stderr) == (1, True)
        shown = quire("cluster", "usage", "--cluster", fleet.cluster)
        assert (shown.returncode, b"(journal)" in shown.stdout) == (0, True)
        fleet.kill(1)
        away = quire("cluster", "usage", "--by", "bookie", "--cluster", fleet.cluster)
        assert away.returncode == 1
        assert b"1 bookie did not answer: bookie-1" in away.stderr
        assert b"bookie-0" in away.stdout
