"""Announcements between processes that share a file, by the real inotify."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from metadata import announcements
from metadata.announcements import PAUSE_S, Announcements

LONG_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store-shm").touch()
    return tmp_path / "store"


async def waiting(path: Path) -> Announcements:
    """Return announcements whose first wait, which only begins to listen, is over."""
    news = Announcements(path)
    await news.wait(LONG_S)
    return news


async def test_an_announcement_wakes_those_who_wait(path: Path) -> None:
    one, other = await waiting(path), await waiting(path)
    with trio.fail_after(LONG_S / 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.wait, LONG_S)
            nursery.start_soon(other.wait, LONG_S)
            await trio.testing.wait_all_tasks_blocked()
            Announcements(path).announce()
    one.close()
    other.close()


async def test_an_announcement_before_the_wait_is_not_missed(path: Path) -> None:
    news = await waiting(path)
    Announcements(path).announce()
    with trio.fail_after(LONG_S / 2):
        await news.wait(LONG_S)
    news.close()


async def test_without_an_announcement_a_wait_ends_at_its_limit(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    news = await waiting(path)
    started = trio.current_time()
    await news.wait(7.0)
    assert trio.current_time() == started + 7.0
    news.close()


async def test_many_announcements_wake_no_more_often_than_a_poll(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    news = await waiting(path)
    started = trio.current_time()
    for _ in range(10):
        Announcements(path).announce()
        await news.wait(LONG_S)
    assert trio.current_time() >= started + 9.9 * PAUSE_S
    news.close()


async def test_where_nothing_is_reported_the_wait_is_a_pause(
    path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_IN_ATTRIB", 0x100)  # IN_CREATE: a file has none
    news = Announcements(path)
    started = trio.current_time()
    for _ in range(5):
        await news.wait(LONG_S)
    assert trio.current_time() == pytest.approx(started + 5 * PAUSE_S)
    news.close()


async def test_a_missing_file_makes_the_wait_a_pause(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    news = Announcements(tmp_path / "missing")
    started = trio.current_time()
    for _ in range(5):
        await news.wait(LONG_S)
    assert trio.current_time() == pytest.approx(started + 5 * PAUSE_S)
    news.announce()
    news.close()


async def test_a_removed_file_is_noticed(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    news = await waiting(path)
    await trio.Path(f"{path}-shm").unlink()
    await news.wait(LONG_S)
    started = trio.current_time()
    for _ in range(3):
        await news.wait(LONG_S)
    assert trio.current_time() == pytest.approx(started + 3 * PAUSE_S)
    news.close()


async def test_closing_ends_a_wait(path: Path) -> None:
    news = await waiting(path)
    with trio.fail_after(LONG_S / 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(news.wait, LONG_S)
            await trio.testing.wait_all_tasks_blocked()
            news.close()
