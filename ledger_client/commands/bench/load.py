"""An append load: batches over one or many ledgers, with few or many under way.

    schedule ─► next batch ─► ledgers[batch mod n].append_many ─► latency

A batch's latency runs from the moment it was due to the acknowledgement of its
last entry. Without a rate it is due when a worker is free; with a rate it is due
by the clock, so that a stall counts against every batch that it held up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec
import trio

from ledger_client.commands.bench.samples import Percentiles, Samples
from ledger_client.writer import LedgerWriter

BATCH_BYTES = 1 << 20
BATCH_ENTRIES_MAX = 16384
OUTSTANDING = 16


class Load(msgspec.Struct, frozen=True):
    """What to append.

    Attributes:
        entry_size: bytes of each payload.
        entries: in all; rounded up to whole batches.
        batch: entries in one call; 1 uses append instead of append_many.
        outstanding: calls under way at once.
        rate: entries a second to offer; 0 for as many as possible.
        seconds: stop after this long even if entries are left; 0 for no limit.
    """

    entry_size: int
    entries: int
    batch: int
    outstanding: int = OUTSTANDING
    rate: float = 0.0
    seconds: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of a load."""

    entries: int
    seconds: float
    latency: Percentiles


def batch_for(entry_size: int) -> int:
    """Return how many entries of that size make a batch worth a call."""
    return max(1, min(BATCH_BYTES // max(entry_size, 1), BATCH_ENTRIES_MAX))


async def apply_load(ledgers: Sequence[LedgerWriter], load: Load) -> Outcome:
    """Append the load, round-robin over the *ledgers*.

    Raises:
        LedgerError: an append failed.
    """
    work = _Work(ledgers, load)
    async with trio.open_nursery() as nursery:
        for _ in range(load.outstanding):
            nursery.start_soon(work.run)
    return work.outcome()


class _Work:
    def __init__(self, ledgers: Sequence[LedgerWriter], load: Load) -> None:
        self._ledgers = ledgers
        self._load = load
        self._payloads = [os.urandom(load.entry_size) for _ in range(load.batch)]
        self._batches = -(-load.entries // load.batch)
        self._taken = 0
        self._done = 0
        self._samples = Samples()
        self._started = time.perf_counter()

    async def run(self) -> None:
        while self._taken < self._batches and not self._is_late():
            number = self._taken
            self._taken += 1
            due = await self._wait_until_due(number)
            ledger = self._ledgers[number % len(self._ledgers)]
            if self._load.batch == 1:
                await ledger.append(self._payloads[0])
            else:
                await ledger.append_many(self._payloads)
            self._samples.add(time.perf_counter() - due)
            self._done += 1

    def outcome(self) -> Outcome:
        return Outcome(
            entries=self._done * self._load.batch,
            seconds=time.perf_counter() - self._started,
            latency=self._samples.percentiles(),
        )

    def _is_late(self) -> bool:
        elapsed = time.perf_counter() - self._started
        return 0 < self._load.seconds < elapsed

    async def _wait_until_due(self, number: int) -> float:
        now = time.perf_counter()
        if not self._load.rate:
            return now
        due = self._started + number * self._load.batch / self._load.rate
        if due > now:
            await trio.sleep(due - now)
        return due
