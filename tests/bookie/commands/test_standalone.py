"""``bookie standalone`` as a process with processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import daemons
import pytest
import trio
from daemons import Daemon
from never_twice import never_twice

import ledger_client
from bookie.commands.standalone import ClusterStarted

HELD_UP = "the process was held up"
"""In what a bookie that leads logs on a busy machine."""
SMALL = ["--set", "memtable_size=12MiB", "--set", "disk_reserve=0", "--set", "lease_ttl_s=2"]


def start(folder: Path, *words: str | int) -> Daemon:
    (folder / "cluster").mkdir(exist_ok=True)
    return Daemon("standalone", "--data", folder / "cluster", *SMALL, *words, log=folder / "log")


def process_ids(ready: ClusterStarted) -> list[int]:
    return [each.process_id for each in ready.bookies]


async def write(url: str) -> int:
    async with ledger_client.connect(url) as client, client.ledgers.create() as ledger:
        await ledger.append_many([b"one", b"two"])
        return ledger.id


async def read(url: str, ledger_id: int) -> list[bytes]:
    async with ledger_client.connect(url) as client, client.ledgers.open(ledger_id) as reader:
        return [entry.payload for entry in await reader.read(0, reader.last_confirmed)]


def test_it_says_where_the_bookies_are_and_names_their_processes(tmp_path: Path) -> None:
    first = daemons.free_ports(3)
    with start(tmp_path, "--port", first) as daemon:
        addresses = [f"127.0.0.1:{port}" for port in range(first, first + 3)]
        assert daemon.line() == "ready bookie://" + ",".join(addresses)
        assert daemon.line().split() == ["bookie", "process", "address", "metrics", "folder"]
        rows = [daemon.line().split() for _ in range(3)]
        assert [row[0] for row in rows] == ["bookie-1", "bookie-2", "bookie-3"]
        assert [row[2] for row in rows] == addresses
        assert all(daemons.is_running(int(row[1])) for row in rows)
        assert [Path(row[4]).is_dir() for row in rows] == [True] * 3
        assert daemon.stop() == 0
        daemons.wait_until_gone([int(row[1]) for row in rows])
    lines = daemon.log.splitlines()
    assert [line for line in lines if HELD_UP not in line] == []


def test_ctrl_c_in_a_terminal_stops_all(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json") as daemon:
        ready = daemon.ready(ClusterStarted)
        os.killpg(daemon.process.pid, signal.SIGINT)
        assert daemon.process.wait(daemons.DEADLINE_S) == 0
        daemons.wait_until_gone(process_ids(ready))


@pytest.mark.slow
def test_started_again_over_the_same_folder_everything_is_there(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--bookies", 4, "--json") as daemon:
        first = daemon.ready(ClusterStarted)
        ledger_id = trio.run(write, first.ready)
        daemon.stop()
    with start(tmp_path, "--port", 0, "--json") as daemon:
        second = daemon.ready(ClusterStarted)
        assert trio.run(read, second.ready, ledger_id) == [b"one", b"two"]
        daemon.stop()
    names = [[each.bookie_id for each in ready.bookies] for ready in (first, second)]
    assert names[0] == names[1] == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]


@pytest.mark.real_processes
def test_no_bookie_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json") as daemon:
        ready = daemon.ready(ClusterStarted)
        daemon.stop(signal.SIGKILL)
        daemons.wait_until_gone(process_ids(ready))
    with start(tmp_path, "--port", 0, "--json") as daemon:
        daemon.ready(ClusterStarted)
        daemon.stop()


def test_it_stops_with_its_parent_when_asked_to(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json", "--stop-with-parent") as daemon:
        ready = daemon.ready(ClusterStarted)
        assert daemon.process.stdin is not None
        daemon.process.stdin.close()
        assert daemon.process.wait(daemons.DEADLINE_S) == 0
        daemons.wait_until_gone(process_ids(ready))


def test_a_port_in_use_stops_everything(tmp_path: Path) -> None:
    first = daemons.free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        with start(tmp_path, "--port", first) as daemon:
            assert daemon.line() == ""
            assert daemon.process.wait(daemons.DEADLINE_S) == 1
        last = daemon.log.splitlines()[-1]
        assert last.startswith("bookie: bookie-2 did not start: ")
        assert str(first + 1) in last
        assert "in use" in last
    assert list(running_in(tmp_path)) == []


def running_in(folder: Path) -> Iterator[str]:
    """Command lines of processes that name *folder*."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            yield line


def test_a_second_cluster_over_one_folder_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--bookies", 1, "--json") as daemon:
        daemon.ready(ClusterStarted)
        (tmp_path / "log").rename(tmp_path / "first.log")
        with start(tmp_path, "--port", 0) as other:
            assert other.process.wait(daemons.DEADLINE_S) == 1
            assert "in use by another process" in other.log
        assert daemon.stop() == 0


def test_ports_beyond_the_last_are_refused(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 65534) as daemon:
        assert daemon.process.wait(daemons.DEADLINE_S) == 1
    assert daemon.log == "bookie: there are no 3 ports from 65534 on\n"


@pytest.mark.real_processes
def test_a_bookie_that_was_killed_is_started_again_at_its_address(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json", "--log-level", "info") as daemon:
        ready = daemon.ready(ClusterStarted)
        ledger_id = trio.run(write, ready.ready)
        os.kill(ready.bookies[1].process_id, signal.SIGKILL)
        daemon.wait_for_log("bookie-2 was killed by SIGKILL; starting it again in 1 s")
        daemon.wait_for_log("bookie-2 | ", count=3)
        daemon.wait_for_log("daemon: state: ready", count=4)
        daemon.wait_for_log("bookie-2 serves again, process ")
        address = ready.bookies[1].address
        with never_twice():
            assert trio.run(read, f"bookie://{address}", ledger_id) == [b"one", b"two"]
        assert daemon.stop() == 0


@pytest.mark.real_processes
def test_without_restart_the_others_go_on(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json", "--no-restart") as daemon:
        ready = daemon.ready(ClusterStarted)
        os.kill(ready.bookies[0].process_id, signal.SIGKILL)
        daemon.wait_for_log("bookie-1 was killed by SIGKILL; the others go on")
        assert all(daemons.is_running(process_id) for process_id in process_ids(ready)[1:])
        assert daemon.stop() == 0


def test_it_goes_on_when_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    words = ["standalone", "--data", str(tmp_path / "cluster"), "--port", "0", "--bookies", "1"]
    command = [sys.executable, "-m", "bookie", *words, "--log-level", "info", *SMALL]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end
    ) as process:
        os.close(write_end)
        with os.fdopen(read_end, "rb") as output:
            assert output.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.terminate()
        assert process.wait(daemons.DEADLINE_S) == 0


@pytest.mark.real_processes
def test_without_any_bookie_left_it_fails(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--bookies", 1, "--json", "--no-restart") as daemon:
        os.kill(process_ids(daemon.ready(ClusterStarted))[0], signal.SIGKILL)
        assert daemon.process.wait(daemons.DEADLINE_S) == 1
    assert daemon.log.splitlines()[-1] == "bookie: no bookie is left"


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_bookie_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "--port", 0, "--json", "--set", "stop_timeout_s=0.5") as daemon:
        ready = daemon.ready(ClusterStarted)
        os.kill(ready.bookies[0].process_id, signal.SIGSTOP)
        assert daemon.stop() == 0
        daemons.wait_until_gone(process_ids(ready))
    assert "not all bookies stopped in time" in daemon.log


def test_prometheus_is_told_where_the_metrics_of_the_bookies_are(tmp_path: Path) -> None:
    with start(tmp_path, "--bookies", 2, "--port", 0, "--metrics-port", -1, "--json") as daemon:
        ready = daemon.ready(ClusterStarted)
        told = json.loads((tmp_path / "cluster" / "targets.json").read_text())
        assert told == [
            {"targets": [f"127.0.0.1:{each.metrics_port}"], "labels": {"bookie": each.bookie_id}}
            for each in ready.bookies
        ]
