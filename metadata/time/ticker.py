"""Which tick a topic gets next, without I/O: reports and lanes in, ticks out.

A round of the service (ledger_client/cluster/ticking.py) takes a fresh timestamp, the *moment*;
then it makes sure which lanes are open; then it calls decide():

    moment ─────────────────────┐
    reports of open lanes ──────┼──► the lowest of them: T ──► stored, idle, or held back
    ends of closed lanes ───────┘

    a lane opens later     its messages get timestamps later, so they are greater than the moment
    a lane is closed       all that it has lies before its end
    a lane is open         its writer says so (metadata/time/calls.py), for the epoch that it has
    the topic is changed   the change gets a timestamp above its hold (metadata/time/tick_holds.py)

So a tick T says the truth whoever reads it, and whenever. A report of another epoch than the
lane's, or none, holds ticks back: nobody knows what that writer has under way.

A tick is stored if it covers more than the stored one before. What it covers may hold messages
above T, because lanes are not equally far. So one more tick is stored once T has reached a moment
that was taken after the covers last changed: until then a message may lie between the two. After
that, ticks are idle: they say that nothing came, and are kept in memory alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from metadata.time.calls import LaneIndex, LaneReport
from metadata.time.tick_rows import TickHold

LANES_MAX = 100_000
"""Lanes of a topic whose reports are kept."""


class LaneView(NamedTuple):
    """A lane as its rows show it."""

    epoch: int
    is_open: bool
    """its last ledger may still be written"""
    next_version: int
    """where it ends, if it is closed"""


class StoredTick(NamedTuple):
    """The last stored tick of a topic."""

    timestamp: int
    covers: Mapping[LaneIndex, int]


NO_TICK = StoredTick(0, {})


class Decision(NamedTuple):
    """The next tick."""

    timestamp: int
    covers: Mapping[LaneIndex, int]
    is_stored: bool
    """False: it is idle, with the covers of the last stored tick"""
    is_rest: bool
    """every later moment is an idle tick, too, until a lane or the topic changes"""


class Reports:
    """The reports of a topic's lanes: of each the best one, in whatever order they came.

    Those of writers that the lanes' records do not show yet are kept apart, and count once they
    do. So a report of an epoch that no writer has stands in nobody's way.
    """

    def __init__(self) -> None:
        self._best: dict[LaneIndex, LaneReport] = {}
        self._heard_at: dict[LaneIndex, float] = {}
        self._epochs: dict[LaneIndex, int] = {}
        self._early: dict[LaneIndex, tuple[LaneReport, float]] = {}
        """of later epochs than the lanes have, and when each came"""

    def note(self, report: LaneReport, now: float) -> bool:
        """Take a report; it holds for ever, so one that comes late takes nothing back.

        Return False if it is refused: its writer is not the lane's any more. A lane that is not
        known yet may have been opened just now.
        """
        lane, epoch = report.index, self._epochs.get(report.index, -1)
        if report.epoch < epoch:
            return False
        if report.epoch == epoch:
            self._heard_at[lane] = now
            if lane not in self._best or self._best[lane].timestamp < report.timestamp:
                self._best[lane] = report
            return True
        known = self._early.get(lane)
        if known is None and len(self._early) >= LANES_MAX:
            return False
        if known is None or _rank(known[0]) < _rank(report):
            self._early[lane] = report, now
        return True

    def of(self, lane: LaneIndex, epoch: int) -> LaneReport | None:
        """Return the best report of a lane's writer of this epoch."""
        early = self._early.get(lane)
        if early is not None and early[0].epoch == epoch:
            return early[0]
        report = self._best.get(lane)
        return report if report is not None and report.epoch == epoch else None

    def silent_s(self, lane: LaneIndex, now: float, began_at: float) -> float:
        """Return how long a lane's writer said nothing; since *began_at* if it never did."""
        return now - self._heard_at.get(lane, began_at)

    def keep(self, lanes: Mapping[LaneIndex, LaneView]) -> None:
        """Forget all lanes but these, and refuse reports of their former writers."""
        self._epochs = {lane: view.epoch for lane, view in lanes.items()}
        self._best = {
            lane: report
            for lane, report in self._best.items()
            if report.epoch == self._epochs.get(lane)
        }
        self._heard_at = {lane: at for lane, at in self._heard_at.items() if lane in lanes}
        early, self._early = self._early, {}
        for report, heard_at in early.values():
            if report.epoch == self._epochs.get(report.index):
                self.note(report, heard_at)


def _rank(report: LaneReport) -> tuple[int, int]:
    return report.epoch, report.timestamp


class Ticker:
    """Decides the ticks of one topic, during one term of the leader.

    Attributes:
        stored: the last stored tick.
        newest: timestamp of the last tick, stored or idle.
        holder: the open lane whose report, or want of one, is the lowest, or a change of the
            topic that is lower; None: the moment is the lowest.
        holding: how many open lanes let no tick be made that is later than the newest.
    """

    def __init__(self, stored: StoredTick = NO_TICK) -> None:
        """Go on above *stored*, the last tick that the terms before stored."""
        self.stored = stored
        self.newest = stored.timestamp
        self.holder: LaneIndex | TickHold | None = None
        self.holding = 0
        self._quiet_from: int | None = None
        """the first moment after the covers last changed"""

    def decide(
        self,
        moment: int,
        lanes: Mapping[LaneIndex, LaneView],
        reports: Reports,
        holds: Iterable[TickHold] = (),
    ) -> Decision | None:
        """Return the next tick, None if it is held back.

        *moment* was taken before *lanes* and *holds* were read, or known to be as they are.
        """
        if self._quiet_from is None:
            self._quiet_from = moment
        timestamp, self.holder, self.holding = moment, None, 0
        covers = dict(self.stored.covers)
        for lane, view in lanes.items():
            version = view.next_version
            if view.is_open:
                report = reports.of(lane, view.epoch)
                known = 0 if report is None else report.timestamp
                version = 0 if report is None else report.version
                self.holding += known <= self.newest
                if known < timestamp:
                    timestamp, self.holder = known, lane
            if version > covers.get(lane, 0):
                covers[lane] = version
        for hold in holds:
            if hold.below < timestamp:
                timestamp, self.holder = hold.below, hold
        if timestamp <= self.newest:
            return None
        is_news = covers != self.stored.covers
        is_stored = is_news or self.stored.timestamp < self._quiet_from
        has_open = any(view.is_open for view in lanes.values())
        is_rest = not (is_stored or has_open or self.holder is not None)
        return Decision(timestamp, covers, is_stored, is_rest)

    def made(self, decision: Decision) -> None:
        """The tick is made; if it is a stored one, it is durable."""
        self.newest = decision.timestamp
        if decision.is_stored:
            if decision.covers != self.stored.covers:
                self._quiet_from = None
            self.stored = StoredTick(decision.timestamp, decision.covers)
