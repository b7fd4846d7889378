"""A load on ledgers that take everything at once, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from ledger_client.commands.bench import load
from ledger_client.commands.bench.load import Load, apply_load
from ledger_client.ledgers.writer import LedgerWriter


class Sink:
    """A ledger that notes when it got how many entries."""

    def __init__(self, call_s: float = 0.0) -> None:
        self.got: list[tuple[float, int]] = []
        self._call_s = call_s
        self._started = trio.current_time()

    async def append_many(self, payloads: Sequence[bytes]) -> None:
        self.got.append((round(trio.current_time() - self._started, 3), len(payloads)))
        await trio.sleep(self._call_s)


async def applied(sink: Sink, what: Load) -> float:
    """Apply the load; return how long that took."""
    started = trio.current_time()
    await apply_load([cast("LedgerWriter", sink)], what)
    return trio.current_time() - started


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=trio.current_time))


async def test_a_load_by_the_clock_ends_in_its_time(autojump_clock: MockClock) -> None:
    """No batch waits for a moment after the end."""
    sink = Sink()
    took_s = await applied(sink, Load(1, 1 << 62, batch=1000, rate=1000, seconds=2.5))
    assert sink.got == [(0.0, 1000), (1.0, 1000), (2.0, 1000)]
    assert took_s <= 2.5


async def test_a_load_as_fast_as_can_be_begins_no_call_after_its_time(
    autojump_clock: MockClock,
) -> None:
    sink = Sink(call_s=1.0)
    took_s = await applied(sink, Load(1, 1 << 62, batch=10, outstanding=1, seconds=2.5))
    assert sink.got == [(0.0, 10), (1.0, 10), (2.0, 10)]
    assert took_s == pytest.approx(3)


async def test_without_a_time_all_entries_are_sent(autojump_clock: MockClock) -> None:
    sink = Sink()
    took_s = await applied(sink, Load(1, 30, batch=10, rate=10))
    assert [count for _, count in sink.got] == [10, 10, 10]
    assert took_s == pytest.approx(2)


async def test_in_no_time_one_batch_is_sent(autojump_clock: MockClock) -> None:
    sink = Sink(call_s=1.0)
    await applied(sink, Load(1, 1 << 62, batch=10, outstanding=1, seconds=1e-9))
    assert len(sink.got) == 1
