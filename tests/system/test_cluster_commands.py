"""The commands that look after a cluster, against bookies that are killed and lose disks."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import trio
from fleet import Fleet
from never_twice import never_twice
from peer import Peer
from processes import is_silent, last_word, quire

from bookie.commands.decommission import Decommissioned
from ledger_client import LedgerInfo
from ledger_client.commands.cluster.rebalance import Rebalanced
from ledger_client.commands.cluster.status import ClusterStatus
from ledger_client.commands.ledger.entries import LedgerWritten
from ledger_client.commands.ledger.verify import Verified
from metadata.calls import FlushNow, JournalState
from metadata.records import LedgerState

QUICK = ("disk_reserve=0", "lease_ttl_s=1", "lost_after_s=1", "open_grace_s=1")
DEADLINE_S = 90.0
T = TypeVar("T")
LINES = b"".join(b"line %d of a ledger\n" % number for number in range(5000))


def run(fleet: Fleet, *words: str | int, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return quire(*words, stdin=stdin, environment={"QUIRE_CLUSTER": fleet.cluster})


def bookie(fleet: Fleet, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "bookie", *map(str, words)],
        capture_output=True,
        env={"QUIRE_CLUSTER": fleet.cluster, "PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        check=False,
    )


def told(done: subprocess.CompletedProcess[bytes], kind: type[T]) -> T:
    """What a command that went well printed with --json."""
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=kind)


def write(fleet: Fleet, *words: str, lines: bytes = LINES) -> int:
    return told(
        run(fleet, "ledger", "write", "--json", *words, stdin=lines), LedgerWritten
    ).ledger_id


def bookies_of(fleet: Fleet, ledger_id: int) -> set[str]:
    found = told(run(fleet, "ledger", "info", ledger_id, "--json"), LedgerInfo)
    return {name for _, names in found.bookies for name in names}


def verified(fleet: Fleet, ledger_id: int, *words: str) -> Verified:
    return told(run(fleet, "ledger", "verify", ledger_id, "--json", *words), Verified)


def check_copies(fleet: Fleet, ledgers: list[int]) -> None:
    """Each ledger has three copies, all of them whole."""
    for ledger_id in ledgers:
        done = run(fleet, "ledger", "verify", ledger_id, "--json")
        assert done.stdout, done.stderr
        found = msgspec.json.decode(done.stdout, type=Verified)
        with never_twice():
            wrong = [each for each in found.copies if each.missing + each.damaged + each.different]
            assert wrong == []
        assert (found.whole, len(found.copies)) == (True, 3)


def status(fleet: Fleet) -> ClusterStatus:
    return told(run(fleet, "cluster", "status", "--json"), ClusterStatus)


def wait_for(fleet: Fleet, happened: Callable[[ClusterStatus], bool]) -> ClusterStatus:
    """Return the first status in which it has happened."""
    deadline = time.monotonic() + DEADLINE_S
    while not happened(seen := status(fleet)):
        assert time.monotonic() < deadline, seen
    return seen


def wait_until_ended(fleet: Fleet, number: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while fleet.runs(number):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    fleet.kill(number)  # closes its pipes


def states(seen: ClusterStatus) -> dict[str, str]:
    return {each.bookie_id: each.state for each in seen.bookies}


@contextmanager
def started(fleet: Fleet, *numbers: int) -> Iterator[Fleet]:
    """Run these bookies, and end all that run at the end."""
    try:
        for number in numbers:
            fleet.start(number)
        for number in numbers:
            fleet.wait_until_served(number)
        yield fleet
    finally:
        fleet.__exit__(None, None, None)


def flush(fleet: Fleet, number: int) -> None:
    async def ask() -> None:
        async with Peer.open(fleet.address(number)) as peer:
            await peer.call(FlushNow(), JournalState)

    trio.run(ask)


def flip(folder: Path, payload: bytes) -> None:
    """Change one bit of *payload* in the entry log that holds it."""
    for path in (folder / "ledgers").glob("*.log"):
        at = path.read_bytes().find(payload)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([payload[0] ^ 1]))
            return
    raise AssertionError("the payload is in no entry log")


@pytest.mark.slow
def test_a_byte_flipped_on_disk_is_found_and_mended(tmp_path: Path) -> None:
    """TB-11: replicas are compared entry by entry, and one that differs is mended."""
    with Fleet(tmp_path, 3, (*QUICK, "autorecovery=false")) as fleet:
        ledger_id = write(fleet, "--ack-quorum", "3")
        assert run(fleet, "ledger", "verify", ledger_id).returncode == 0
        flush(fleet, 1)
        flip(tmp_path / "bookie-1", b"line 4321 of a ledger\n")
        found = run(fleet, "ledger", "verify", ledger_id)
        assert found.returncode == 1
        assert b"entry 4321: damaged on bookie-1" in found.stdout
        line = last_word(found.stderr)
        assert "--repair replaces bad copies by good ones" in line
        mended = verified(fleet, ledger_id, "--repair")
        assert (mended.whole, mended.mended) == (True, 1)
        assert run(fleet, "ledger", "verify", ledger_id).returncode == 0
        assert run(fleet, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_ledger_whose_writer_was_killed_is_read_and_recovered(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, QUICK) as fleet:
        writer = subprocess.Popen(
            [sys.executable, "-P", "-m", "ledger_client", "ledger", "write"],
            env={"QUIRE_CLUSTER": fleet.cluster, "PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            ledger_id = int(writer.stdout.readline())
            writer.stdin.write(b"one\ntwo\n")
            writer.stdin.flush()
            deadline = time.monotonic() + DEADLINE_S
            while (seen := run(fleet, "ledger", "read", ledger_id)).stdout != b"one\ntwo\n":
                assert time.monotonic() < deadline
            assert f"`quire ledger recover {ledger_id}`".encode() in seen.stderr
            refused = run(fleet, "ledger", "verify", ledger_id)
            assert (refused.returncode, refused.stdout) == (1, b"")
            writer.kill()
        done = run(fleet, "ledger", "recover", ledger_id)
        with never_twice():
            kept = f"ledger {ledger_id} is closed with 2 entries, 8 bytes\n"
            assert done.stdout == kept.encode(), done.stderr
            again = told(run(fleet, "ledger", "recover", ledger_id, "--json"), LedgerInfo)
            assert (again.state, again.last_entry) == (LedgerState.CLOSED, 1)
        assert is_silent(run(fleet, "ledger", "read", ledger_id).stderr)


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_killed_bookie_is_shown_healed_around_and_decommissioned(tmp_path: Path) -> None:
    """BK-21, TB-44: all blocks end on as many bookies as they should, without the lost one."""
    with Fleet(tmp_path, 4, QUICK) as fleet:
        ledgers = [write(fleet) for _ in range(4)]
        first = wait_for(fleet, lambda seen: seen.leader is not None)
        assert set(states(first).values()) == {"writable"}
        victim = fleet.number(min(bookies_of(fleet, ledgers[0])))
        another = fleet.number(max(bookies_of(fleet, ledgers[0])))
        fleet.kill(victim)
        fleet.kill(another)  # with two bookies left, nothing can be whole
        seen = wait_for(fleet, lambda seen: len(seen.underreplicated) == len(ledgers))
        assert states(seen)[fleet.name(victim)] == "lost"
        assert seen.underreplicated_size > 0
        fleet.start(another)
        wait_for(
            fleet,
            lambda seen: (
                not seen.underreplicated
                and all(fleet.name(victim) not in bookies_of(fleet, each) for each in ledgers)
            ),
        )
        check_copies(fleet, ledgers)
        told(bookie(fleet, "decommission", fleet.name(victim), "--json"), Decommissioned)
        assert fleet.name(victim) not in states(status(fleet))
        fleet.start(victim)
        wait_until_ended(fleet, victim)
        assert "the metadata does not know this bookie" in fleet.log(victim)


@pytest.mark.slow
def test_a_living_bookie_is_emptied_and_forgotten(tmp_path: Path) -> None:
    with Fleet(tmp_path, 4, QUICK) as fleet:
        ledgers = [write(fleet) for _ in range(4)]
        leaving = min(bookies_of(fleet, ledgers[0]))
        wide = write(fleet, "--ensemble", "4")
        refused = bookie(fleet, "decommission", leaving)
        assert refused.returncode == 1
        assert f"ledger {wide} needs 4".encode() in refused.stderr
        assert run(fleet, "ledger", "delete", wide).returncode == 0
        done = told(bookie(fleet, "decommission", leaving, "--json"), Decommissioned)
        assert done.ledgers >= 1
        check_copies(fleet, ledgers)
        for ledger_id in ledgers:
            assert leaving not in bookies_of(fleet, ledger_id)
        time.sleep(1.0)  # it renews its registration, and must not take entries again
        assert states(status(fleet))[leaving] == "decommissioned"
        assert leaving not in bookies_of(fleet, write(fleet))


@pytest.mark.slow
def test_an_interrupted_decommission_goes_on_or_is_taken_back(tmp_path: Path) -> None:
    with Fleet(tmp_path, 4, (*QUICK, "autorecovery=false")) as fleet:
        leaving = min(bookies_of(fleet, write(fleet)))
        words = [sys.executable, "-P", "-m", "bookie", "decommission", leaving]
        with subprocess.Popen(
            [*words, "--cluster", fleet.cluster], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            assert re.match(rb"1 ledger, .* to move", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert b"goes on draining" in process.stderr.read()
        wait_for(fleet, lambda seen: states(seen)[leaving] == "draining")
        done = bookie(fleet, "decommission", leaving, "--cancel")
        assert done.returncode == 0, done.stderr
        wait_for(fleet, lambda seen: states(seen)[leaving] == "writable")


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_bookie_that_lost_its_disks_is_replaced_and_refilled(tmp_path: Path) -> None:
    """BK-11: the successor is in limbo, denying nothing, until it holds all that it should."""
    with Fleet(tmp_path, 3, QUICK) as fleet:
        ledgers = [write(fleet) for _ in range(3)]
        fleet.kill(1)
        shutil.rmtree(tmp_path / "bookie-1")
        fleet.start(1)
        wait_until_ended(fleet, 1)
        assert "bookie replace" in fleet.log(1)
        words = ["replace", "--data", str(tmp_path / "bookie-1"), "--metadata", fleet.metadata]
        deadline = time.monotonic() + DEADLINE_S
        while b"serves at" in (done := bookie(fleet, *words, "--bookie-id", "bookie-1")).stderr:
            assert time.monotonic() < deadline  # until the registration runs out
        assert done.returncode == 0, done.stderr
        fleet.start(1)
        fleet.wait_until_served(1)
        wait_for(
            fleet,
            lambda seen: not seen.underreplicated and set(states(seen).values()) == {"writable"},
        )
        check_copies(fleet, ledgers)


def interrupted_rebalance(fleet: Fleet) -> int:
    """Interrupt a slow run in a move; return how many it made before."""
    words = ["cluster", "rebalance", "--json", "--rate", "0.1", "--cluster", fleet.cluster]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ledger_client", *words], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        wait_for(fleet, lambda seen: bool(seen.repairs))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        done = msgspec.json.decode(process.stdout.read(), type=Rebalanced)
    assert not done.complete
    return done.moved


@pytest.mark.slow
def test_a_new_bookie_gets_its_part_of_the_old_ledgers(tmp_path: Path) -> None:
    """TB-09, TB-25: whole ledgers move, and no two copies of one lie on one bookie."""
    with started(Fleet(tmp_path, 4, QUICK), 0, 1, 2) as fleet:
        ledgers = [write(fleet) for _ in range(8)]
        fleet.start(3)
        fleet.wait_until_served(3)
        planned = told(run(fleet, "cluster", "rebalance", "--dry-run", "--json"), Rebalanced)
        assert max(planned.before.values()) > 0
        assert planned.before["bookie-3"] == 0
        assert planned.after.keys() == planned.before.keys()
        assert planned.spread <= 0.1
        assert {move.target for move in planned.planned} == {"bookie-3"}
        moved = interrupted_rebalance(fleet)
        assert status(fleet).repairs == []
        done = told(run(fleet, "cluster", "rebalance", "--json"), Rebalanced)
        assert done.complete
        assert done.spread <= 0.1
        assert moved + done.moved == len(planned.planned) == 6
        check_copies(fleet, ledgers)
        again = run(fleet, "cluster", "rebalance")
        assert again.stdout.decode().splitlines()[-1].startswith("0 ledgers, 0 B moved;")
