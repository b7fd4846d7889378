"""Logs whose files could not be deleted: what a bookie remembers until they are gone."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from engines import Bookie
from wire import KEY, add, add_responses

from native import frame
from native.faults import clear_fault, plan_fault
from native.frame import Code

OLD, NEW = 0x0123456789ABCDEF, 0x1EDCBA9876543210
LEDGER = 7
FOR_EVER = 1000
LATER_MS = 1 << 40  # when no tombstone is kept for its age


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    clear_fault()
    bookie.close()


def put(bookie: Bookie, ledger_id: int, incarnation: int, *entries: int, payload: bytes) -> None:
    bookie.send(frame.incarnation(ledger_id, incarnation))
    bookie.send(b"".join(add(ledger_id, i, payload, key=KEY) for i in entries))
    while bookie.engine.commit():
        pass
    codes = [each.code for each in add_responses(bookie.connection.take())]
    assert codes == [Code.OK] * len(entries)


def small_logs(bookie: Bookie) -> None:
    """Close logs 1 to 4, each with a ledger that stays; the former ledger is in the first."""
    for number in range(1, 5):
        put(bookie, 10 + number, number, 0, 1, payload=b"another")
        if number == 1:
            put(bookie, LEDGER, OLD, *range(5), payload=b"old")
        bookie.checkpoint()
        bookie.roll()
    assert [log.log_id for log in bookie.engine.store.logs()] == [1, 2, 3, 4]


def deleted(bookie: Bookie) -> None:
    bookie.engine.delete_ledger(LEDGER, 1000, OLD)
    bookie.checkpoint()


def fail(work: Callable[[], object], nth: int = 1, count: int = FOR_EVER) -> None:
    """Let the deletion of logs fail from its *nth* step on."""
    plan_fault("log_erase", nth, errno.EMFILE, count)
    with pytest.raises(OSError) as failed:
        work()
    clear_fault()
    assert failed.value.errno == errno.EMFILE


def join(bookie: Bookie) -> None:
    bookie.engine.store.compact(1, 2, 3, 4)


def files(bookie: Bookie) -> set[str]:
    return {path.name for path in bookie.ledger_folder.glob("*.*") if path.suffix != ".table"}


def cut_power(bookie: Bookie) -> None:
    """What was not synced did not happen."""
    for path in bookie.ledger_folder.glob("*.dead"):
        path.rename(path.with_suffix(".log"))
    bookie.crash()


def drop_dead_logs(bookie: Bookie) -> None:
    for log in bookie.engine.store.logs():
        if not log.live and not log.open:
            bookie.engine.store.delete_log(log.log_id)


def renewed(bookie: Bookie) -> None:
    assert bookie.engine.renew_ledger(LEDGER, OLD, NEW)
    put(bookie, LEDGER, NEW, 0, payload=b"new")


def assert_new(bookie: Bookie) -> None:
    assert bookie.payload(LEDGER, 0) == b"new"
    assert [bookie.read(LEDGER, i)[0] for i in range(1, 6)] == [Code.NO_ENTRY] * 5
    assert bookie.engine.runs(LEDGER) == [(0, 0)]
    for number in range(1, 5):
        assert [bookie.payload(10 + number, i) for i in (0, 1)] == [b"another"] * 2


def assert_tombstone(bookie: Bookie) -> None:
    bookie.engine.forget_tombstones(LATER_MS)
    state = bookie.engine.ledger(LEDGER)
    assert state is not None
    assert state.deleted


RESTARTS = [None, Bookie.crash, cut_power]
STEPS = range(1, 3)  # the renaming, and the sync that makes it last


@pytest.mark.parametrize("nth", STEPS)
@pytest.mark.parametrize("before", RESTARTS)
@pytest.mark.parametrize("after", [Bookie.crash, cut_power])
def test_an_id_used_again_shows_nothing_of_joined_logs_that_stayed(
    bookie: Bookie,
    nth: int,
    before: Callable[[Bookie], None] | None,
    after: Callable[[Bookie], None],
) -> None:
    small_logs(bookie)
    deleted(bookie)
    fail(lambda: join(bookie), nth)
    if before is not None:
        before(bookie)
    renewed(bookie)
    bookie.checkpoint()
    for _ in range(2):
        after(bookie)
        assert_new(bookie)
    drop_dead_logs(bookie)
    after(bookie)
    assert_new(bookie)


@pytest.mark.parametrize("nth", STEPS)
@pytest.mark.parametrize("before", RESTARTS)
def test_an_id_used_again_shows_nothing_of_a_dead_log_that_stayed(
    bookie: Bookie, nth: int, before: Callable[[Bookie], None] | None
) -> None:
    put(bookie, LEDGER, OLD, *range(5), payload=b"old")
    bookie.checkpoint()
    bookie.roll()
    deleted(bookie)
    fail(lambda: drop_dead_logs(bookie), nth)
    if before is not None:
        before(bookie)
    renewed(bookie)
    bookie.checkpoint()
    cut_power(bookie)
    assert bookie.engine.runs(LEDGER) == [(0, 0)]


@pytest.mark.parametrize("nth", STEPS)
@pytest.mark.parametrize("before", RESTARTS)
def test_a_tombstone_stays_as_long_as_the_logs_of_its_ledger(
    bookie: Bookie, nth: int, before: Callable[[Bookie], None] | None
) -> None:
    small_logs(bookie)
    deleted(bookie)
    fail(lambda: join(bookie), nth)
    if before is not None:
        before(bookie)
    if nth == 1:
        assert_tombstone(bookie)
        bookie.checkpoint()
        cut_power(bookie)
        assert_tombstone(bookie)
    for log in bookie.engine.store.logs():  # after a restart, not all of them are dead
        bookie.engine.store.compact(log.log_id)
    bookie.engine.forget_tombstones(LATER_MS)
    assert bookie.engine.ledger(LEDGER) is None


def test_an_id_shows_nothing_of_what_was_copied_from_logs_that_stayed(bookie: Bookie) -> None:
    small_logs(bookie)
    fail(lambda: join(bookie))
    for ledger_id, incarnation in [(LEDGER, OLD), *((10 + n, n) for n in range(1, 5))]:
        bookie.engine.delete_ledger(ledger_id, 1000, incarnation)
    bookie.checkpoint()
    bookie.engine.store.delete_log(5)
    assert_tombstone(bookie)
    renewed(bookie)
    bookie.checkpoint()
    cut_power(bookie)
    assert bookie.engine.runs(LEDGER) == [(0, 0)]


def test_a_log_that_stayed_is_listed_until_it_is_deleted(bookie: Bookie) -> None:
    small_logs(bookie)
    fail(lambda: join(bookie), 2, count=1)
    store = bookie.engine.store
    assert files(bookie) == {"00000001.dead", "00000001.index", "00000005.log", "00000005.index"}
    assert [(log.log_id, log.extents) for log in store.logs() if not log.live] == [(1, 0)]
    assert store.check_log(1) == 0
    assert store.take_damage() == []
    fail(lambda: store.delete_log(1))
    assert store.delete_log(1) > 0
    assert files(bookie) == {"00000005.log", "00000005.index"}
    assert [log.log_id for log in store.logs()] == [5]


def test_logs_that_stayed_keep_no_others_from_being_joined(bookie: Bookie) -> None:
    small_logs(bookie)
    fail(lambda: join(bookie))
    put(bookie, LEDGER, OLD, 5, payload=b"old")
    bookie.checkpoint()
    bookie.roll()
    bookie.engine.store.compact(5, 6)
    assert [log.log_id for log in bookie.engine.store.logs() if log.live] == [7]
    cut_power(bookie)
    assert [bookie.payload(LEDGER, i) for i in range(6)] == [b"old"] * 6


def test_an_id_shows_nothing_of_a_copy_that_failed_and_stayed(bookie: Bookie) -> None:
    """Without memory for its extents, of a log that says it is closed."""
    small_logs(bookie)
    store = bookie.engine.store
    in_the_way = [bookie.ledger_folder / f"{log_id:08x}.dead" for log_id in range(5, 50)]
    for path in in_the_way:
        path.mkdir()
    nth = 0
    while store.logs()[0].log_id == 1:
        plan_fault("array", nth := nth + 1)
        with suppress(OSError):
            join(bookie)
        clear_fault()
    for path in in_the_way:
        path.rmdir()
    *failed, made = store.logs()
    assert len(failed) >= 5
    assert [log.live for log in failed] == [0] * len(failed)
    for ledger_id, incarnation in [(LEDGER, OLD), *((10 + n, n) for n in range(1, 5))]:
        bookie.engine.delete_ledger(ledger_id, 1000, incarnation)
    bookie.checkpoint()
    store.delete_log(made.log_id)
    assert_tombstone(bookie)
    renewed(bookie)
    bookie.checkpoint()
    bookie.crash()
    assert bookie.engine.runs(LEDGER) == [(0, 0)]
    drop_dead_logs(bookie)
    assert [log.log_id for log in bookie.engine.store.logs() if not log.open] == []
