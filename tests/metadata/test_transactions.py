"""Changes that share a transaction: one sync for many, and an outcome for each."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import cast

import pytest
import trio

from metadata.errors import MetadataBroken, MetadataUnavailable, VersionConflict
from metadata.rows import get, put
from metadata.schema import open_connection
from metadata.store import ABSENT, Put
from metadata.transactions import TOGETHER_MAX, Transactions

Work = Callable[[sqlite3.Connection], int]


class Traced:
    """A connection that keeps what is executed, and fails when told to.

    *failing* maps statements to their error codes. *loses_commit*: the disk makes the next COMMIT
    and reports an error. *rollbacks_failing*: what the next calls of rollback() raise.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.real = connection
        self.executed: list[str] = []
        self.failing: dict[str, int] = {}
        self.loses_commit = False
        self.rollbacks_failing: list[BaseException] = []

    def execute(self, sql: str, values: Sequence[str | bytes | int] = ()) -> sqlite3.Cursor:
        self.executed.append(sql.split()[0])
        if sql == "COMMIT" and self.loses_commit:
            self.loses_commit = False
            self.real.execute(sql)
            raise failure(sql, sqlite3.SQLITE_IOERR)
        if sql in self.failing:
            raise failure(sql, self.failing[sql])
        return self.real.execute(sql, values)

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction

    def rollback(self) -> None:
        if self.rollbacks_failing:
            raise self.rollbacks_failing.pop(0)
        self.real.rollback()

    def close(self) -> None:
        self.real.close()


def failure(sql: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"{sql} was told to fail")
    error.sqlite_errorcode = code
    return error


class Store:
    """Transactions on a traced connection, and a gate that keeps the thread busy."""

    def __init__(self, path: Path, connection: Traced) -> None:
        self.path = path
        self.connection = connection
        self.changes = Transactions(path, cast(sqlite3.Connection, connection), timeout_s=30)
        self.gate = threading.Event()
        self.inside = threading.Event()

    async def block(self) -> None:
        """Make a change that stays in the thread until *gate* is set."""

        def work(connection: sqlite3.Connection) -> int:
            self.inside.set()
            assert self.gate.wait(30)
            return put(connection, Put("gate", b""))

        await self.changes.change(work)

    async def keys(self) -> set[str]:
        rows = await self.changes.read(lambda c: c.execute("SELECT key FROM keys").fetchall())
        return {key for (key,) in rows}


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    opened = Store(path, Traced(open_connection(path, timeout_s=10)))
    yield opened
    opened.gate.set()
    await opened.changes.aclose()


@asynccontextmanager
async def busy(store: Store) -> AsyncIterator[trio.Nursery]:
    """The thread is busy until the block ends; then what waits goes on."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.block)
            await trio.to_thread.run_sync(store.inside.wait)
            store.connection.executed.clear()
            yield nursery
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()


def writing(key: str, *, expected: int | None = None, size: int = 1) -> Work:
    return lambda connection: put(connection, Put(key, bytes(size), expected))


async def test_changes_that_wait_together_share_one_commit(store: Store) -> None:
    versions: list[int] = []

    async def change(number: int) -> None:
        versions.append(await store.changes.change(writing(f"k{number}")))

    async with busy(store) as nursery:
        for number in range(TOGETHER_MAX):
            nursery.start_soon(change, number)
    assert store.connection.executed.count("COMMIT") == 2  # with the one that was under way
    assert len(set(versions)) == TOGETHER_MAX
    assert len(await store.keys()) == TOGETHER_MAX + 1


async def test_more_changes_than_one_transaction_takes_need_another(store: Store) -> None:
    async with busy(store) as nursery:
        for number in range(TOGETHER_MAX + 1):
            nursery.start_soon(store.changes.change, writing(f"k{number}"))
    assert store.connection.executed.count("COMMIT") == 3
    assert len(await store.keys()) == TOGETHER_MAX + 2


async def test_changes_are_made_in_the_order_in_which_they_came(store: Store) -> None:
    made: list[int] = []

    def work(number: int) -> Work:
        def make(_connection: sqlite3.Connection) -> int:
            made.append(number)
            return number

        return make

    async with busy(store) as nursery:
        for number in range(50):
            nursery.start_soon(store.changes.change, work(number))
            await trio.testing.wait_all_tasks_blocked()
    assert made == list(range(50))


async def test_the_refusal_of_one_change_undoes_that_one_alone(store: Store) -> None:
    refused: list[str] = []

    async def change(key: str, expected: int | None) -> None:
        def work(connection: sqlite3.Connection) -> int:
            put(connection, Put(f"{key} before", b""))
            return put(connection, Put(key, b"", expected))

        try:
            await store.changes.change(work)
        except VersionConflict as conflict:
            refused.append(conflict.key)

    async with busy(store) as nursery:
        for number in range(9):
            nursery.start_soon(change, f"k{number}", 12345 if number % 3 == 1 else ABSENT)
    assert sorted(refused) == ["k1", "k4", "k7"]
    kept = {f"k{number}" for number in (0, 2, 3, 5, 6, 8)}
    assert await store.keys() == {"gate", *kept, *(f"{key} before" for key in kept)}


async def test_a_change_sees_what_the_changes_before_it_made(store: Store) -> None:
    outcomes: list[bool] = []

    async def create() -> None:
        try:
            await store.changes.change(writing("once", expected=ABSENT))
        except VersionConflict:
            outcomes.append(False)
        else:
            outcomes.append(True)

    async with busy(store) as nursery:
        for _ in range(5):
            nursery.start_soon(create)
    assert sorted(outcomes) == [False] * 4 + [True]


async def test_a_value_that_does_not_fit_the_disk_takes_no_other_change_with_it(
    store: Store,
) -> None:
    pages = store.connection.real.execute("PRAGMA page_count").fetchone()[0]
    store.connection.real.execute(f"PRAGMA max_page_count = {pages}")
    refused: list[str] = []

    async def change(key: str, size: int) -> None:
        try:
            await store.changes.change(writing(key, size=size))
        except MetadataUnavailable as failure:
            assert not failure.outcome_unknown
            refused.append(key)

    async with busy(store) as nursery:
        for number in range(6):
            nursery.start_soon(change, f"k{number}", 8 << 20 if number == 2 else 1)
    assert refused == ["k2"]
    assert await store.keys() == {"gate", "k0", "k1", "k3", "k4", "k5"}


async def test_a_commit_that_fails_for_the_disk_leaves_all_outcomes_unknown(store: Store) -> None:
    unknown = 0

    def lose_the_commit(_connection: sqlite3.Connection) -> int:
        store.connection.loses_commit = True
        return 0

    async def change(work: Work) -> None:
        nonlocal unknown
        with pytest.raises(MetadataUnavailable) as caught:
            await store.changes.change(work)
        unknown += caught.value.outcome_unknown

    async with busy(store) as nursery:
        for work in (lose_the_commit, writing("a"), writing("b")):
            nursery.start_soon(change, work)
    assert unknown == 3
    assert store.connection.executed.count("COMMIT") == 2  # with the one that was under way


async def test_a_store_that_cannot_begin_refuses_each_change(store: Store) -> None:
    refused = 0

    async def change(number: int) -> None:
        nonlocal refused
        with pytest.raises(MetadataUnavailable, match="told to fail") as caught:
            await store.changes.change(writing(f"k{number}"))
        refused += not caught.value.outcome_unknown

    async with busy(store) as nursery:
        store.connection.failing["BEGIN IMMEDIATE"] = sqlite3.SQLITE_CANTOPEN
        for number in range(4):
            nursery.start_soon(change, number)
    assert refused == 4


class EndOfProgram(BaseException):
    """What ends a program, such as KeyboardInterrupt, but not pytest."""


async def outcomes_of(store: Store, works: Sequence[Work]) -> list[BaseException | None]:
    """Make changes that wait together; return what each raised, in their order."""
    outcomes: dict[int, BaseException | None] = {}

    async def change(number: int, work: Work) -> None:
        try:
            await store.changes.change(work)
        except (Exception, EndOfProgram) as error:  # noqa: BLE001 - it is the outcome
            outcomes[number] = error
        else:
            outcomes[number] = None

    async with busy(store) as nursery:
        for number, work in enumerate(works):
            nursery.start_soon(change, number, work)
            await trio.testing.wait_all_tasks_blocked()
    return [outcomes[number] for number in range(len(works))]


def refuse(_connection: sqlite3.Connection) -> int:
    raise failure("the second change", sqlite3.SQLITE_IOERR)


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), failure("ROLLBACK", sqlite3.SQLITE_IOERR), EndOfProgram()]
)
async def test_changes_have_an_outcome_when_they_cannot_be_rolled_back(
    store: Store, error: BaseException
) -> None:
    store.connection.rollbacks_failing.append(error)
    outcomes = await outcomes_of(store, [writing("a"), refuse, *map(writing, "bcdefgh")])
    for outcome in outcomes:
        assert outcome is not None
        assert error in (outcome, outcome.__cause__)
    await store.changes.change(writing("later"))
    assert await store.keys() == {"gate", "later"}


async def test_work_that_ends_the_program_settles_all_changes_of_its_transaction(
    store: Store,
) -> None:
    def end(_connection: sqlite3.Connection) -> int:
        raise EndOfProgram

    outcomes = await outcomes_of(store, [writing("a"), end, writing("b"), writing("c")])
    assert [type(outcome) for outcome in outcomes] == [EndOfProgram] * 4
    assert await store.keys() == {"gate"}


async def test_reads_have_an_outcome_after_work_that_ends_the_program(store: Store) -> None:
    ended = 0

    def end(_connection: sqlite3.Connection) -> int:
        raise EndOfProgram

    async def read() -> None:
        nonlocal ended
        with pytest.raises(EndOfProgram):
            await store.changes.read(end)
        ended += 1

    async with busy(store) as nursery:
        for _ in range(3):
            nursery.start_soon(read)
    assert ended == 3


@pytest.mark.parametrize("count", [1, 3])
async def test_a_lost_commit_that_cannot_be_rolled_back_has_an_unknown_outcome(
    store: Store, count: int
) -> None:
    store.connection.rollbacks_failing.append(failure("ROLLBACK", sqlite3.SQLITE_FULL))

    def fail_the_commit(_connection: sqlite3.Connection) -> int:
        store.connection.failing["COMMIT"] = sqlite3.SQLITE_IOERR
        return 0

    works = [fail_the_commit, writing("a"), writing("b")][:count]
    for outcome in await outcomes_of(store, works):
        assert isinstance(outcome, MetadataUnavailable)
        assert outcome.outcome_unknown
    store.connection.failing.clear()
    await store.changes.change(writing("later"))
    assert await store.keys() == {"gate", "later"}


# --- cancellation ----------------------------------------------------------------------


async def test_a_cancelled_leader_leaves_the_others_their_outcomes(store: Store) -> None:
    done: list[str] = []

    async def change(key: str) -> None:
        await store.changes.change(writing(key))
        done.append(key)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            leader = await nursery.start(_cancellable, store.block)
            await trio.to_thread.run_sync(store.inside.wait)
            for key in ("a", "b", "c"):
                nursery.start_soon(change, key)
            await trio.testing.wait_all_tasks_blocked()
            leader.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            store.gate.set()
    assert sorted(done) == ["a", "b", "c"]
    assert await store.keys() == {"gate", "a", "b", "c"}


async def test_a_batch_whose_leader_is_cancelled_settles_for_all_others(store: Store) -> None:
    """The leader's own change is in the same transaction as theirs."""
    second, inside = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(connection: sqlite3.Connection) -> int:
        inside.set()
        assert second.wait(30)
        return put(connection, Put("slow", b""))

    async def change(key: str) -> None:
        await store.changes.change(writing(key))
        done.append(key)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.block)
            await trio.to_thread.run_sync(store.inside.wait)
            leader = await nursery.start(_cancellable, store.changes.change, slow)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(change, "a")
            nursery.start_soon(change, "b")
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()
            await trio.to_thread.run_sync(inside.wait)
            leader.cancel()
            await trio.testing.wait_all_tasks_blocked()
            second.set()
    assert sorted(done) == ["a", "b"]
    assert await store.keys() == {"gate", "slow", "a", "b"}


async def test_a_change_that_is_cancelled_while_it_waits_is_not_made(store: Store) -> None:
    async with busy(store) as nursery:
        scope = await nursery.start(_cancellable, store.changes.change, writing("never"))
        nursery.start_soon(store.changes.change, writing("kept"))
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert await store.keys() == {"gate", "kept"}


async def _cancellable(
    work: Callable[..., object], *args: object, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await work(*args)  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(5))
async def test_no_order_of_cancellations_leaves_a_task_waiting(store: Store, seed: int) -> None:
    random = Random(seed)
    finished: set[int] = set()
    kept: set[int] = set()

    async def change(number: int) -> None:
        is_kept = random.random() < 0.5
        with trio.move_on_after(9e9 if is_kept else random.random() * 0.02):
            await trio.sleep(random.random() * 0.05)
            await store.changes.change(writing(f"k{number}"))
            finished.add(number)
        if is_kept:
            kept.add(number)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(change, number)
    assert kept <= finished
    assert {f"k{number}" for number in finished} <= await store.keys()


async def test_changes_of_a_closed_store_are_refused(path: Path) -> None:
    changes = await Transactions.open(path, timeout_s=10)
    await changes.aclose()
    refused = 0

    async def change() -> None:
        nonlocal refused
        with pytest.raises(MetadataUnavailable, match="closed"):
            await changes.change(lambda connection: get(connection, "a"))
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(change)
    assert refused == 3


async def test_reads_that_wait_together_take_the_thread_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking a thread takes longer than a read, and so does a transaction of its own."""
    visits, drain = 0, Transactions._drain

    def counted(self: Transactions) -> None:
        nonlocal visits
        visits += 1
        drain(self)

    monkeypatch.setattr(Transactions, "_drain", counted)
    found: list[int] = []

    async def read(number: int) -> None:
        found.append(await store.changes.read(lambda _: number))

    async with busy(store) as nursery:
        for number in range(100):
            nursery.start_soon(read, number)
    assert sorted(found) == list(range(100))
    assert visits == 2  # with the change that was under way
    assert store.connection.executed.count("BEGIN") == 1


async def test_a_read_that_fails_fails_alone(store: Store) -> None:
    found: list[int] = []

    async def read(number: int) -> None:
        await store.changes.read(lambda connection: connection.execute(f"SELECT {number}"))
        found.append(number)

    async def fail() -> None:
        with pytest.raises(sqlite3.OperationalError):
            await store.changes.read(lambda connection: connection.execute("SELECT no_column"))

    async with busy(store) as nursery:
        for number in range(10):
            nursery.start_soon(read, number)
            nursery.start_soon(fail)
    assert sorted(found) == list(range(10))


async def test_a_read_that_finds_damage_fails_alone(store: Store) -> None:
    """Its error is not SQLite's, and the others are not made again."""
    seen: list[int] = []

    async def read(number: int) -> None:
        def look(_connection: sqlite3.Connection) -> None:
            seen.append(number)
            if number == 3:
                raise MetadataBroken("damaged")

        await store.changes.read(look)

    async def fail() -> None:
        with pytest.raises(MetadataBroken, match="damaged"):
            await read(3)

    async with busy(store) as nursery:
        for number in range(3):
            nursery.start_soon(read, number)
        nursery.start_soon(fail)
    assert sorted(seen) == [0, 1, 2, 3]


async def test_reads_and_changes_that_wait_together_keep_their_outcomes(store: Store) -> None:
    found: list[set[str]] = []

    async def read() -> None:
        found.append(await store.keys())

    async def change(number: int) -> None:
        await store.changes.change(writing(f"k{number}"))

    async with busy(store) as nursery:
        for number in range(10):
            nursery.start_soon(change, number)
            nursery.start_soon(read)
    assert await store.keys() == {"gate", *(f"k{number}" for number in range(10))}
    assert len(found) == 10
