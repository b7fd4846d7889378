"""Reports of a client's open lanes to the leader, which makes ticks of them.

Every 200 ms one message goes out with all lanes of topics with timesync that the client's producers
have open; without any, nothing. A lane's report says up to which timestamp all its messages
are acknowledged, for good (metadata/time/calls.py):

    a batch has timestamps, and no acknowledgement      below its first timestamp
    a question for timestamps is under way              not above what was known before it
    neither                                             a timestamp taken just before the look

The order matters: whatever gets a timestamp after the look gets a greater one than that which was
taken before. After a batch whose outcome is unknown a lane says nothing more, until it is opened
anew and so has another epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ledger_client.errors import LedgerError
from ledger_client.ledgers.leader_calls import LeaderCalls
from metadata.time.calls import REPORTS_MAX, LaneReport, LanesNoted, ReportLanes

REPORT_S = 0.2
TIMEOUT_S = 3.0
_log = logging.getLogger(__name__)


class TimedLane(Protocol):
    """A partition of a producer whose lane may be open."""

    def report(self, fresh: int) -> LaneReport | None:
        """Return the lane's report, None if there is nothing to say.

        *fresh* is greater than all timestamps that anybody had when it was asked for. Waits for
        nothing.
        """


class LaneReports:
    """Reports the lanes of one client."""

    def __init__(
        self,
        leader: LeaderCalls,
        allocate: Callable[[], Awaitable[int]],
        nursery: trio.Nursery,
    ) -> None:
        """*allocate* returns a fresh timestamp."""
        self._leader = leader
        self._allocate = allocate
        self._nursery = nursery
        self._lanes: dict[int, TimedLane] = {}
        self._is_running = False

    def add(self, lane: TimedLane) -> None:
        """Report this lane from now on, whenever it is open."""
        self._lanes[id(lane)] = lane
        if not self._is_running:
            self._is_running = True
            self._nursery.start_soon(self._run)

    def discard(self, lane: TimedLane) -> None:
        """Report the lane no more."""
        self._lanes.pop(id(lane), None)

    async def _run(self) -> None:
        while self._lanes:
            try:
                await self._report()
            except LedgerError as failure:
                _log.info("lanes are reported again soon: %s", failure)
            await trio.sleep(REPORT_S)
        self._is_running = False

    async def _report(self) -> None:
        fresh = await self._allocate()
        found = [lane.report(fresh) for lane in self._lanes.values()]
        reports = [report for report in found if report is not None]
        for start in range(0, len(reports), REPORTS_MAX):
            request = ReportLanes(reports[start : start + REPORTS_MAX])
            await self._leader.ask(request, LanesNoted, timeout_s=TIMEOUT_S)
