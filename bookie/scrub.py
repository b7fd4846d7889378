"""Scrubbing: reads closed entry logs to find damage before a reader does.

Logs are read one after the other, slowly, each at most once a day. The core checks every record and
reports damage to live entries; damage.py marks it for repair in every round until it is repaired.
After that, compaction takes up the log again, which it left alone while it was damaged.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import trio

from bookie.config import BookieConfig
from bookie.damage import PLACES_MAX, DamageLog, DamageWatch
from bookie.stopping import set_when_cancelled
from metadata.calls import DamagedPlace, ScrubReport
from native.store import LogUsage, Stop, Store

ROUND_S = 86_400.0
# After a start, replay and repair are more urgent.
FIRST_S = 300.0
_PAGE = 1000

_log = logging.getLogger(__name__)


class Scrubber:
    """Checks the entry logs of one bookie.

    Attributes:
        checked_size: bytes of records checked since the start.
        damaged: damaged records and index pages that scrubbing found.
        rounds: times that all logs were checked.
    """

    def __init__(
        self, store: Store, found: DamageLog, watch: DamageWatch, config: BookieConfig
    ) -> None:
        self._store = store
        self._found = found
        self._watch = watch
        self._rate = config.scrub_rate
        self._one_at_a_time = trio.Lock()
        self.checked_size = 0
        self.damaged = 0
        self.rounds = 0

    async def run(self) -> NoReturn:
        """Check all closed logs once a day until cancelled; never with a rate of 0.

        Raises:
            OSError: the disk failed.
        """
        if self._rate == 0:
            await trio.sleep_forever()
        await trio.sleep(FIRST_S)
        while True:
            started = trio.current_time()
            report = await self.check(self._rate, closed_only=True)
            _log.info("scrubbed %d bytes", report.checked_size)
            await trio.sleep_until(started + ROUND_S)

    async def check(self, bytes_per_s: int = 0, *, closed_only: bool = False) -> ScrubReport:
        """Check all closed logs, at *bytes_per_s* (0: unlimited).

        Returns:
            The damage found; it is marked for repair.

        Raises:
            OSError: the disk failed.
        """
        size, damaged, count = 0, list[DamagedPlace](), 0
        async with self._one_at_a_time:
            self._found.forget()
            for log in self._logs():
                if closed_only and log.open:
                    continue
                await self._watch.look()  # handles damage that reads found before this round
                before, met_before = self._found.count, self._store.stats().damaged
                size += await self._check_log(log.log_id, bytes_per_s)
                await self._watch.look()
                count += self._store.stats().damaged - met_before
                damaged = [*damaged, *self._found.met_since(before)][:PLACES_MAX]
            self.rounds += 1
        self.damaged += count
        return ScrubReport(size, damaged, count)

    async def _check_log(self, log_id: int, bytes_per_s: int) -> int:
        # A thread cannot be cancelled, so a cancellation asks it to end.
        stop = Stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_when_cancelled, stop)
            try:
                size = await trio.to_thread.run_sync(self._read_through, log_id, bytes_per_s, stop)
            finally:
                nursery.cancel_scope.cancel()
        self.checked_size += size
        return size

    def _read_through(self, log_id: int, bytes_per_s: int, stop: Stop) -> int:
        try:
            return self._store.check_log(log_id, bytes_per_s=bytes_per_s, stop=stop)
        except FileNotFoundError:
            return 0  # garbage collection deleted the log meanwhile

    def _logs(self) -> list[LogUsage]:
        logs: list[LogUsage] = []
        while page := self._store.logs(logs[-1].log_id if logs else -1, _PAGE):
            logs += page
        return logs
