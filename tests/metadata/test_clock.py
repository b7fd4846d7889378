"""The store's time: what hosts' clocks do to it, and how well a process estimates it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings, strategies as st
from lease_clock import LeaseClock
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata import clock, clock_rows
from metadata.clock import RENEW_S, StoreClock
from metadata.clock_rows import SPAN_MS, Moment
from metadata.errors import LeaseLost, MetadataUnavailable
from metadata.sqlite import SqliteStore
from metadata.store import CheckLease, MetadataStore, Put

HOUR_S = 3600
WALL_MS = 1_700_000_000_000


async def test_the_store_has_a_time_that_goes_on(store: MetadataStore, clock: LeaseClock) -> None:
    before = await store.now_ms()
    assert before > 1_000_000_000_000
    assert await store.now_ms() == before
    clock.advance(0.25)
    assert await store.now_ms() == before + 250


@pytest.mark.parametrize("step_s", [8 * HOUR_S, -8 * HOUR_S])
async def test_setting_the_wall_clock_moves_the_stores_time_little(
    sqlite_store: SqliteStore, clock: LeaseClock, wall: LeaseClock, step_s: float
) -> None:
    """And setting it back lets it go on as before."""
    before = await sqlite_store.now_ms()
    wall.advance(step_s)
    assert await sqlite_store.now_ms() == before
    for _ in range(60):
        clock.advance(60)
        wall.advance(60)
        await sqlite_store.now_ms()
    ahead_ms = await sqlite_store.now_ms() - before - HOUR_S * 1000
    assert 0 < abs(ahead_ms) <= HOUR_S * 100
    assert (ahead_ms > 0) == (step_s > 0)
    wall.advance(-step_s)
    for _ in range(75):
        clock.advance(60)
        wall.advance(60)
        await sqlite_store.now_ms()
    assert await sqlite_store.now_ms() == before + (HOUR_S + 75 * 60) * 1000


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_setting_the_wall_clock_ends_no_lease(
    sqlite_store: SqliteStore, clock: LeaseClock, wall: LeaseClock, step_s: float
) -> None:
    session = await sqlite_store.open_session("me", ttl_s=10)
    lease = await sqlite_store.grant("l", session)
    wall.advance(step_s)
    clock.advance(9)
    await sqlite_store.keep_session(session)
    clock.advance(9)
    await sqlite_store.transact([CheckLease.of(lease), Put("a", b"")])
    clock.advance(1.1)
    with pytest.raises(LeaseLost):
        await sqlite_store.transact([CheckLease.of(lease), Put("a", b"")])


async def test_a_host_that_was_down_goes_on_with_its_wall_clock_and_never_back(
    path: Path, clock: LeaseClock, wall: LeaseClock
) -> None:
    async def started(boot: str) -> SqliteStore:
        return await SqliteStore.open(path, clock_ms=clock, wall_ms=wall, boot=boot)

    first = await started("1")
    before = await first.now_ms()
    clock.advance(59)
    assert await first.now_ms() == before + 59_000
    await first.aclose()
    clock.now_ms = 5000
    wall.advance(3 * HOUR_S)
    second = await started("2")
    assert await second.now_ms() == before + 3 * HOUR_S * 1000
    clock.advance(59)
    newest = await second.now_ms()
    await second.aclose()
    clock.now_ms = 60_000_000  # nobody can say by this clock that it is another start
    wall.advance(-8 * HOUR_S)
    third = await started("3")
    assert newest <= await third.now_ms() <= newest + SPAN_MS
    await third.aclose()


async def test_a_store_of_before_there_was_a_clock_gets_one(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.put("a", b"1")
    await store.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE clock")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    store = await SqliteStore.open(path)
    assert await store.now_ms() > WALL_MS
    assert await store.get("a") is not None
    await store.aclose()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 200_000)),
        st.tuples(st.just("set"), st.integers(-(10**8), 10**8)),
        st.tuples(st.just("restart"), st.integers(0, 10**7)),
        st.tuples(st.just("late"), st.integers(0, 1000)),
    ),
    max_size=40,
)


@given(steps)
@settings(deadline=None)
def test_it_never_goes_back_and_runs_at_most_a_tenth_too_fast(todo: list[tuple[str, int]]) -> None:
    """*late*: a process that looked at its clock, and was paused before it asked."""
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE clock (id INTEGER PRIMARY KEY, boot, boot_ms, store_ms, slew_ms)"
    )
    boot, boot_ms, wall_ms = 0, 1000, WALL_MS
    newest = _ask(connection, Moment("0", boot_ms, wall_ms))
    for what, number in todo:
        passed = 0
        if what == "pass":
            passed, boot_ms, wall_ms = number, boot_ms + number, wall_ms + number
        elif what == "set":
            wall_ms += number
        elif what == "late":
            _ask(connection, Moment(str(boot), max(0, boot_ms - number), wall_ms))
        else:
            boot, boot_ms, wall_ms = boot + 1, number, wall_ms + number
        found = _ask(connection, Moment(str(boot), boot_ms, wall_ms))
        assert found >= newest
        if what != "restart":
            assert abs(found - newest - passed) <= passed // 10 + 1
        newest = found
    connection.close()


def _ask(connection: sqlite3.Connection, now: Moment) -> int:
    found = clock_rows.read(connection, now)
    return clock_rows.advance(connection, now) if found is None else found


# --- the estimate -----------------------------------------------------------------------


async def test_a_process_estimates_the_stores_time_whatever_its_own_clock_says(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore(wall_ms=lambda: WALL_MS + round(trio.current_time() * 1000))
    estimate = StoreClock(store)
    await estimate.refresh()
    await trio.sleep(RENEW_S / 2)
    assert abs(estimate.now_ms() - await store.now_ms()) <= 1
    store.available = False
    await estimate.refresh()  # it was asked lately
    await trio.sleep(RENEW_S)
    with pytest.raises(MetadataUnavailable):
        await estimate.refresh()
    assert abs(estimate.now_ms() - WALL_MS - round(trio.current_time() * 1000)) <= 1


async def test_an_estimate_that_was_ahead_waits_and_does_not_go_back(
    autojump_clock: MockClock,
) -> None:
    times = [WALL_MS, WALL_MS - 5000]
    estimate = StoreClock(MemoryStore(wall_ms=lambda: times.pop(0)))
    await estimate.read_ms()
    before = estimate.now_ms()
    await estimate.read_ms()
    assert estimate.now_ms() == before
    await trio.sleep(6)
    assert before < estimate.now_ms() < before + 2000


async def test_a_host_that_slept_closes_nothing_hours_ago(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monotonic clock stood still: what it stamps then would be old at once."""
    slept_s = 0.0
    monkeypatch.setattr(clock, "asleep_s", lambda: slept_s)
    store = MemoryStore(wall_ms=lambda: WALL_MS + round((trio.current_time() + slept_s) * 1000))
    estimate = StoreClock(store)
    await estimate.refresh()
    slept_s = 8 * HOUR_S
    assert abs(estimate.now_ms() - await store.now_ms()) <= 1
    slept_s += 1
    await estimate.refresh()
    assert abs(estimate.now_ms() - await store.now_ms()) <= 1
