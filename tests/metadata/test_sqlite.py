"""The SQLite driver among several processes, and with a file that is not as it should be."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import metadata_worker
import pytest
import trio
import trio.testing
from lease_clock import LeaseClock
from leases import grant

from metadata import rows
from metadata.announcements import Announcements
from metadata.errors import LeaseHeld, LeaseLost, MetadataBroken, MetadataUnavailable
from metadata.schema import APPLICATION_ID, SCHEMA_VERSION
from metadata.sqlite import LOOK_S, SqliteStore
from metadata.store import Changes, CheckLease, Put
from metadata.transactions import Transactions
from metadata.watch import WAIT_S

Worker = subprocess.Popen[str]


def start(path: Path, *job: str) -> Worker:
    return subprocess.Popen(
        [sys.executable, metadata_worker.__file__, str(path), *job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@contextmanager
def worker(path: Path, *job: str) -> Iterator[Worker]:
    with start(path, *job) as process:
        try:
            yield process
        finally:
            process.kill()


async def line(process: Worker) -> str:
    assert process.stdout is not None
    return (await trio.to_thread.run_sync(process.stdout.readline)).strip()


async def all_output(process: Worker) -> str:
    return (await trio.to_thread.run_sync(process.communicate))[0]


async def tell(process: Worker) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


async def number_at(store: SqliteStore, key: str) -> int:
    found = await store.get(key)
    return -1 if found is None else int(found.value.rstrip(b"\0"))


# --- several processes -----------------------------------------------------------------


async def test_two_processes_lose_no_update_and_share_no_id(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.put("number", b"0")
    with worker(path, "count", "60") as one, worker(path, "count", "60") as two:
        outputs = [await all_output(process) for process in (one, two)]
        assert (one.returncode, two.returncode) == (0, 0)
    ids = [int(word) for output in outputs for word in output.split()]
    assert sorted(ids) == list(range(1, 121))
    assert await number_at(store, "number") == 120
    await store.aclose()


async def test_processes_that_start_at_once_make_one_store(path: Path) -> None:
    with worker(path, "put_when_told", "a") as one, worker(path, "put_when_told", "b") as two:
        for process in (one, two):
            assert await line(process) == "ready"
            await tell(process)
        assert [await trio.to_thread.run_sync(process.wait) for process in (one, two)] == [0, 0]
    store = await SqliteStore.open(path)
    assert [key for key, _ in await store.list("")] == ["a", "b"]
    await store.aclose()


async def test_a_watch_wakes_within_half_a_second_of_another_process(path: Path) -> None:
    store = await SqliteStore.open(path)
    with worker(path, "put_when_told", "w/a") as other:
        assert await line(other) == "ready"
        async with store.watch("w/") as hints:
            await tell(other)
            with trio.fail_after(0.5):
                assert await hints.receive() == "w/a"
    await store.aclose()


async def test_a_watched_store_rests_while_nobody_changes_it(
    path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def version(transactions: Transactions) -> int:
        looks.append(await real_version(transactions))
        return looks[-1]

    def drain(transactions: Transactions) -> None:
        visits.append(transactions)
        real_drain(transactions)

    real_version, real_drain = Transactions.version, Transactions._drain
    visits: list[Transactions] = []
    store = await SqliteStore.open(path)
    async with store.watch("key") as watch:
        with trio.move_on_after(2):
            await watch.receive()
        monkeypatch.setattr(Transactions, "version", version)
        monkeypatch.setattr(Transactions, "_drain", drain)
        with trio.move_on_after(60):
            await watch.receive()
    # One visit to the thread for each question of the watch, which lasts WAIT_S.
    assert len(looks) <= 60 / LOOK_S + 1
    assert len(visits) <= 60 / WAIT_S + 2
    await store.aclose()


async def test_keeping_a_session_wakes_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[Announcements] = []
    monkeypatch.setattr(Announcements, "announce", lambda news: announced.append(news))
    store = await SqliteStore.open(path)
    session = await store.open_session("o", ttl_s=10)
    assert len(announced) == 1
    for _ in range(3):
        await store.keep_session(session)
    assert len(announced) == 1
    await store.put("k", b"v")
    assert len(announced) == 2
    await store.aclose()


async def test_a_killed_writer_leaves_whole_transactions(path: Path) -> None:
    store = await SqliteStore.open(path)
    told = -1
    for _ in range(4):
        with worker(path, "put_pairs", str(told + 1)) as writer:
            for _ in range(5):
                told = int(await line(writer))
            writer.kill()
        left, right = await number_at(store, "left"), await number_at(store, "right")
        assert left == right
        assert left >= told
        told = left
    await store.aclose()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


async def test_a_process_killed_inside_a_transaction_changes_and_locks_nothing(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.put("a", b"whole")
    with worker(path, "stall") as writer:
        assert await line(writer) == "inside"
        found = await store.get("a")
        assert found is not None and found.value == b"whole"
        writer.kill()
    found = await store.get("a")
    assert found is not None and found.value == b"whole"
    await store.put("a", b"again", expected=found.version)
    await store.aclose()


async def test_the_lease_of_a_killed_process_can_be_taken_when_it_runs_out(path: Path) -> None:
    store = await SqliteStore.open(path)
    with worker(path, "hold", "0.5") as holder:
        epoch = int(await line(holder))
        holder.kill()
    with pytest.raises(LeaseHeld) as caught:
        await grant(store, "leader", "the next", ttl_s=30)
    await trio.sleep(caught.value.expires_in_s)
    lease = await grant(store, "leader", "the next", ttl_s=30)
    assert lease.epoch > epoch
    await store.aclose()


async def test_a_disk_without_room_refuses_changes_and_serves_reads(path: Path) -> None:
    with worker(path, "fill", "1000000") as filler:
        error, last_told, stored = [await line(filler) for _ in range(3)]
        assert await trio.to_thread.run_sync(filler.wait) == 0
    assert str(path) in error
    assert int(stored) >= int(last_told) > 0


# --- locks and deadlines ---------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As another process that holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def test_a_locked_store_refuses_changes_in_time_and_serves_reads(path: Path) -> None:
    store = await SqliteStore.open(path, timeout_s=0.3)
    await store.put("a", b"1")
    with locked(path):
        started = time.monotonic()
        with pytest.raises(MetadataUnavailable, match="locked") as caught:
            await store.put("a", b"2")
        assert 0.2 < time.monotonic() - started < 2
        assert not caught.value.outcome_unknown
        assert await number_at(store, "a") == 1
    await store.put("a", b"3")
    await store.aclose()


async def test_a_store_locked_by_a_paused_process_says_which_one(path: Path) -> None:
    store = await SqliteStore.open(path, timeout_s=0.3)
    with worker(path, "stall") as paused:
        assert await line(paused) == "inside"
        paused.send_signal(signal.SIGSTOP)
        await trio.to_thread.run_sync(os.waitid, os.P_PID, paused.pid, os.WSTOPPED)
        with pytest.raises(MetadataUnavailable, match=f"process {paused.pid} .*stopped") as caught:
            await store.put("a", b"2")
        assert f"kill -CONT {paused.pid}" in caught.value.message
        paused.kill()
    await store.put("a", b"3")
    await store.aclose()


async def test_all_who_wait_for_a_locked_store_are_refused_in_time(path: Path) -> None:
    store = await SqliteStore.open(path, timeout_s=0.3)
    refused = 0

    async def put() -> None:
        nonlocal refused
        with pytest.raises(MetadataUnavailable):
            await store.put("a", b"")
        refused += 1

    with locked(path), trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(200):  # a minute, if each waited in its turn
                nursery.start_soon(put)
    assert refused == 200
    await store.aclose()


async def test_a_caller_that_is_cancelled_does_not_wait_for_the_lock(path: Path) -> None:
    store = await SqliteStore.open(path, timeout_s=60)
    with locked(path):
        with trio.fail_after(30), trio.move_on_after(0.05) as scope:
            await store.put("a", b"")
        assert scope.cancelled_caught
    await store.put("b", b"")
    await store.aclose()


async def test_opening_a_store_that_stays_locked_is_refused_in_time(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with trio.fail_after(2), pytest.raises(MetadataUnavailable):
        await SqliteStore.open(path, timeout_s=0.2)
    connection.close()


# --- files -----------------------------------------------------------------------------


async def test_a_store_is_as_it_was_when_opened_again(path: Path) -> None:
    store = await SqliteStore.open(path)
    version = await store.put("a", b"1")
    await store.next_id("ids", 5)
    await store.aclose()
    store = await SqliteStore.open(path)
    found = await store.get("a")
    assert found is not None and found.version == version
    assert await store.next_id("ids") == 6
    assert await store.put("a", b"2", expected=version) > version
    await store.aclose()


async def test_versions_rise_even_over_a_deletion(path: Path) -> None:
    store = await SqliteStore.open(path)
    old = await store.put("a", b"1")
    await store.delete("a")
    assert await store.put("a", b"1") > old
    await store.aclose()


async def test_only_the_owner_may_read_a_store(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.put("a", b"1")
    files = await trio.to_thread.run_sync(lambda: list(path.parent.iterdir()))
    assert {file.name for file in files} == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await store.aclose()


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    await trio.Path(path).touch()
    store = await SqliteStore.open(path)
    await store.put("a", b"1")
    await store.aclose()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="nowhere"):
        await SqliteStore.open(tmp_path / "nowhere" / "metadata.db")


async def test_bytes_that_are_no_database_are_refused(path: Path) -> None:
    await trio.Path(path).write_bytes(b"not a database at all" * 100)
    with pytest.raises(MetadataBroken) as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    assert await trio.Path(path).read_bytes() == b"not a database at all" * 100


async def test_a_database_of_another_program_is_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    before = await trio.Path(path).read_bytes()
    with pytest.raises(MetadataBroken, match="another program"):
        await SqliteStore.open(path)
    assert await trio.Path(path).read_bytes() == before


async def test_a_newer_schema_is_refused_and_named(path: Path) -> None:
    await (await SqliteStore.open(path)).aclose()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(MetadataBroken, match=f"version {SCHEMA_VERSION + 1}"):
        await SqliteStore.open(path)


async def test_a_store_without_its_tables_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE keys (key TEXT)")
    connection.close()
    with pytest.raises(MetadataBroken, match="lacks tables"):
        await SqliteStore.open(path)


async def test_damage_is_told_as_such_and_never_as_absence(path: Path) -> None:
    store = await SqliteStore.open(path)
    for number in range(50):
        await store.put(f"k{number}", bytes(3000))
    await store.aclose()
    whole = await trio.Path(path).read_bytes()
    await trio.Path(path).write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(MetadataBroken) as caught:
        store = await SqliteStore.open(path)
        try:
            for number in range(50):
                assert await store.get(f"k{number}") is not None
        finally:
            await store.aclose()
    assert str(path) in str(caught.value)


# --- the clock and the log of changes --------------------------------------------------


async def test_a_lease_from_before_the_host_started_is_over(
    sqlite_store: SqliteStore, clock: LeaseClock
) -> None:
    old = await grant(sqlite_store, "leader", "one", ttl_s=3600)
    clock.now_ms = 5
    assert await sqlite_store.leases("") == []
    new = await grant(sqlite_store, "leader", "two", ttl_s=3600)
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost):
        await sqlite_store.transact([CheckLease.of(old), Put("a", b"")])


async def test_a_lease_never_lasts_longer_than_its_time_after_the_clock_went_back(
    sqlite_store: SqliteStore, clock: LeaseClock
) -> None:
    await grant(sqlite_store, "leader", "one", ttl_s=10)
    clock.advance(5)
    clock.advance(-4)
    (lease,) = await sqlite_store.leases("")
    assert lease.expires_in_s <= 10
    clock.advance(9)
    assert await sqlite_store.leases("") == []


async def test_a_watch_that_fell_behind_is_told_to_look_everywhere(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHANGES_MAX", 10)
    async with sqlite_store.watch("w/") as hints:
        for number in range(20):
            await sqlite_store.put(f"w/{number}", b"")
        with trio.fail_after(30):
            assert await hints.receive() == "w/"
            await sqlite_store.put("w/a", b"")
            assert await hints.receive() == "w/a"


async def test_questions_that_wait_cost_a_change_elsewhere_one_read_for_all_of_them(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    changes = rows.changes

    def counted(connection: sqlite3.Connection, prefix: str, since: int | None) -> Changes:
        reads.append(prefix)
        return changes(connection, prefix, since)

    monkeypatch.setattr(rows, "changes", counted)
    revision = await sqlite_store.put("elsewhere", b"")
    found: list[Changes] = []
    heard = trio.Event()

    async def ask(number: int) -> None:
        found.append(await sqlite_store.changes(f"w/{number}/", since=revision, wait_s=60))
        heard.set()

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        await sqlite_store.get("behind them")
        await trio.testing.wait_all_tasks_blocked()
        assert len(reads) == 300
        reads.clear()
        for _ in range(10):
            await sqlite_store.put("elsewhere", b"")
        await sqlite_store.put("w/7/a", b"")
        with trio.fail_after(60):
            await heard.wait()
        assert [each.keys for each in found] == [["w/7/a"]]
        assert reads.count("w/7/") == 1
        assert len(reads) <= 12
        nursery.cancel_scope.cancel()
