from __future__ import annotations

import trio
from trio.testing import MockClock

from ledger_client.quarantine import Quarantine


async def test_a_bookie_that_failed_stays_out_for_a_while(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    assert "b1" not in quarantine
    quarantine.failed("b1")
    mock_clock.jump(4.9)
    assert "b1" in quarantine and "b2" not in quarantine
    mock_clock.jump(0.2)
    assert "b1" not in quarantine


async def test_who_fails_again_soon_stays_twice_as_long(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    lengths = []
    for _ in range(6):
        quarantine.failed("b1")
        start = trio.current_time()
        while "b1" in quarantine:
            mock_clock.jump(1)
        lengths.append(trio.current_time() - start)
        mock_clock.jump(10)
    assert lengths == [5, 10, 20, 40, 60, 60]


async def test_what_all_writers_report_at_once_is_one_failure(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    for _ in range(100):
        quarantine.failed("b1")
        mock_clock.jump(0.01)
    mock_clock.jump(4.01)
    assert "b1" not in quarantine


async def test_a_quiet_time_is_forgiveness(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    quarantine.failed("b1")
    mock_clock.jump(5 + 61)
    quarantine.failed("b1")
    mock_clock.jump(5.1)
    assert "b1" not in quarantine
