"""``bookie run`` as a process."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import daemons
import pytest
import trio
from daemons import Daemon

import ledger_client
from bookie.commands.run import BookieStarted
from metadata.outcome import Exit
from metadata.records import COOKIES
from metadata.store import items_under
from metadata.urls import open_store

SMALL = ["--set", "memtable_size=12MiB", "--set", "disk_reserve=0"]


def start(folder: Path, *words: str | int) -> Daemon:
    return Daemon("run", "--data", folder / "data", "--port", 0, *SMALL, *words, log=folder / "log")


def start_to_fail(folder: Path, *words: str | int, code: int = 1) -> str:
    """The one line that a refusal to start comes with."""
    with start(folder, "--log-level", "error", *words) as daemon:
        assert daemon.line() == ""
        assert daemon.process.wait(daemons.DEADLINE_S) == code
        assert daemon.log.count("\n") == 1
        return daemon.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bookie_says_when_it_serves_and_stops_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path) as daemon:
        assert daemon.line().startswith("ready bookie://127.0.0.1:")
        assert daemon.stop(number) == 0
        assert "Traceback" not in daemon.log


def test_a_bookie_keeps_its_name_and_entries_over_a_restart(tmp_path: Path) -> None:
    with start(tmp_path, "--json") as daemon:
        first = daemon.ready(BookieStarted)
        ledger_id = trio.run(write, first.ready)
        assert daemon.stop() == 0
    with start(tmp_path, "--json") as daemon:
        second = daemon.ready(BookieStarted)
        assert second.bookie_id == first.bookie_id
        assert trio.run(read, second.ready, ledger_id) == [b"one", b"two"]
        assert daemon.stop() == 0


async def write(url: str) -> int:
    async with (
        ledger_client.connect(url) as client,
        client.ledgers.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger,
    ):
        await ledger.append_many([b"one", b"two"])
        return ledger.id


async def read(url: str, ledger_id: int) -> list[bytes]:
    async with ledger_client.connect(url) as client, client.ledgers.open(ledger_id) as reader:
        return [entry.payload for entry in await reader.read(0, reader.last_confirmed)]


def test_what_a_bookie_writes_is_for_its_own_user_alone(tmp_path: Path) -> None:
    with start(tmp_path, "--json") as daemon:
        trio.run(write, daemon.ready(BookieStarted).ready)
        assert daemon.stop() == 0  # what was in memory is in logs and index now
    data = tmp_path / "data"
    found = list(data.rglob("*"))
    names = {path.suffix or path.name for path in found}
    assert {".db", ".log", ".index", "journal", "ledgers", "lock"} <= names
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_second_process_over_one_folder_is_refused(tmp_path: Path) -> None:
    with start(tmp_path) as daemon:
        daemon.line()
        (tmp_path / "second").mkdir()
        second = ["run", "--data", str(tmp_path / "data"), "--port", "0", "--log-level", "error"]
        with Daemon(*second, log=tmp_path / "second/log") as other:
            assert other.process.wait(daemons.DEADLINE_S) == 1
            assert "in use by another process" in other.log
        assert daemon.stop() == 0


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with start(tmp_path, "--json") as daemon:
        port = daemon.ready(BookieStarted).address.rpartition(":")[2]
        (tmp_path / "other").mkdir()
        told = start_to_fail(tmp_path / "other", "--port", port)
    assert f":{port}" in told
    assert "in use" in told
    assert not (tmp_path / "other/data/metadata.db").exists(), "its cluster knows no such bookie"


def test_a_new_bookie_with_the_address_of_another_is_none_of_its_cluster(tmp_path: Path) -> None:
    """As on two hosts that both have the default address."""
    store = ["--metadata", f"sqlite://{tmp_path}/metadata.db", "--set", "lease_ttl_s=3"]
    with start(tmp_path, "--json", *store) as daemon:
        first = daemon.ready(BookieStarted)
        (tmp_path / "other").mkdir()
        same = ["--set", f"advertised_address={first.address}"]
        told = start_to_fail(tmp_path / "other", *store, *same, code=Exit.USAGE)
        assert f"the bookie {first.bookie_id} is registered at {first.address} too" in told
        assert trio.run(known_bookies, store[1]) == [first.bookie_id]


async def known_bookies(url: str) -> list[str]:
    async with open_store(url) as store:
        return [key.removeprefix(COOKIES) for key, _ in await items_under(store, COOKIES)]


def test_a_new_bookie_that_others_could_not_reach_is_none_of_its_cluster(tmp_path: Path) -> None:
    told = start_to_fail(tmp_path, "--host", "0.0.0.0", code=Exit.USAGE)
    assert "others cannot connect" in told
    assert not (tmp_path / "data/metadata.db").exists()


def test_an_emptied_folder_is_refused(tmp_path: Path) -> None:
    words = ["--metadata", f"sqlite://{tmp_path}/metadata.db", "--bookie-id", "b1"]
    with start(tmp_path, *words) as daemon:
        daemon.line()
        daemon.stop()
    (tmp_path / "data/ledgers").rename(tmp_path / "gone")
    (tmp_path / "log").unlink()
    told = start_to_fail(tmp_path, *words)
    assert told.startswith("bookie: ")
    assert "data/ledgers" in told


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nosuch://x", "nosuch://"),
        ("bookie://127.0.0.1:3181", "names bookies, and not the store"),
        ("sqlite://metadata.db", "absolute path"),
        ("zk:///quire", "has no address"),
    ],
)
def test_a_wrong_metadata_address_is_told_and_leaves_nothing(
    tmp_path: Path, url: str, why: str
) -> None:
    assert why in start_to_fail(tmp_path, "--metadata", url, code=Exit.USAGE)
    assert not (tmp_path / "data").exists()


def test_a_bookie_goes_on_when_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    with start(tmp_path, "--metrics-port", 0, "--log-level", "info") as daemon:
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()
        daemon.wait_for_log("bookie.daemon: state: ready")
        assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def test_a_bookie_stops_with_its_parent_when_told_to(tmp_path: Path) -> None:
    with start(tmp_path, "--stop-with-parent") as daemon:
        daemon.line()
        assert daemon.process.stdin is not None
        daemon.process.stdin.close()
        assert daemon.process.wait(daemons.DEADLINE_S) == 0


def test_a_terminal_or_nothing_on_standard_input_is_no_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bookie", "run", "--data", str(tmp_path / "data")]
    command += ["--port", "0", "--stop-with-parent", *SMALL]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        assert process.wait(daemons.DEADLINE_S) == 0
