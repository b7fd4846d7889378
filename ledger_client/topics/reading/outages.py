"""Lanes, and ticks, whose bookies or metadata are away while they are followed.

A reader that follows does not end because its bookies are down: it opens the lane again, after
pauses that double, until it can be read. The other lanes go on meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Protocol

import trio

from ledger_client.errors import LedgerError, Retryable
from ledger_client.figures import Figures
from ledger_client.topics.positions import LaneRef, Place

PAUSE_S = 0.5
PAUSE_S_MAX = 5.0
_log = logging.getLogger(__name__)


class Followed(Protocol):
    """What is known of a lane's cursor."""

    lane: LaneRef
    place: Place
    failed: bool

    @property
    def waiting_since(self) -> float | None:
        """Set while it has read everything."""


class _Outage:
    """One lane's outage, which lasts until the lane is read or waits for news again."""

    def __init__(self, cursor: Followed, now: float) -> None:
        self.since = now
        self.place = cursor.place
        self.pause_s = PAUSE_S
        self.again_at = now + PAUSE_S
        """infinite while it is being tried"""

    def put_off(self, now: float) -> None:
        self.pause_s = min(2 * self.pause_s, PAUSE_S_MAX)
        self.again_at = now + self.pause_s


class Outages:
    """The outages of the lanes of one reader.

    Args:
        give_up_s: raise the failure of a lane that was away for so long; `None` for never.
        figures: counts outages.
    """

    def __init__(self, give_up_s: float | None, figures: Figures) -> None:
        self._give_up_s = give_up_s
        self._figures = figures
        self._lanes: dict[LaneRef, _Outage] = {}

    @property
    def wake_at(self) -> float:
        """Trio's time at which the next lane should be opened again; infinite if there is none."""
        return min((each.again_at for each in self._lanes.values()), default=math.inf)

    def wait_out(self, failure: LedgerError, cursors: Iterable[Followed]) -> bool:
        """Return True if the lanes that just failed will be opened again later.

        Otherwise *failure* is to be raised: it is of another kind, lasted for too long, or is no
        lane's but one of ticks, which waited before (TickOutage).
        """
        if not isinstance(failure, Retryable):
            return False
        now, is_lanes = trio.current_time(), False
        for cursor in cursors:
            if not cursor.failed:
                continue
            is_lanes = True
            known = self._lanes.get(cursor.lane)
            if known is None:
                known = self._lanes[cursor.lane] = _Outage(cursor, now)
                self._figures.reading(cursor.lane.topic).outages += 1
                _log.warning(
                    "topic %s: %s cannot be followed, and is tried again: %s",
                    *(cursor.lane.topic, cursor.lane, failure),
                )
            elif known.again_at == math.inf:
                known.put_off(now)
            if self._give_up_s is not None and now - known.since >= self._give_up_s:
                del self._lanes[cursor.lane]
                return False
        return is_lanes

    def is_due(self, cursor: Followed) -> bool:
        """True if a lane that failed may be opened again."""
        known = self._lanes.get(cursor.lane)
        return known is None or known.again_at <= trio.current_time()

    def begin(self, lane: LaneRef) -> None:
        """Note that a lane is being opened again. How that ends wakes its reader."""
        if lane in self._lanes:
            self._lanes[lane].again_at = math.inf

    def forget(self, lanes: Iterable[LaneRef]) -> None:
        """Forget the outages of lanes that are not read any more."""
        for lane in lanes:
            self._lanes.pop(lane, None)

    def note_ends(self, cursors: Iterable[Followed]) -> None:
        """Forget the outages of lanes that are read again."""
        if not self._lanes:
            return
        now = trio.current_time()
        for cursor in cursors:
            known = self._lanes.get(cursor.lane)
            if known is None or cursor.failed:
                continue
            if cursor.place != known.place or cursor.waiting_since is not None:
                del self._lanes[cursor.lane]
                _log.info(
                    "topic %s: %s is followed again, after %.1f s",
                    *(cursor.lane.topic, cursor.lane, now - known.since),
                )


class TickOutage:
    """The outage of one topic's ticks, which a reader gets by several calls beside each other.

    Args:
        topic: its name.
        give_up_s: as for Outages; with 0 nothing is waited out.
        figures: counts outages.
    """

    def __init__(self, topic: str, give_up_s: float | None, figures: Figures) -> None:
        self._topic = topic
        self._give_up_s = give_up_s
        self._figures = figures
        self._since: dict[str, float] = {}
        """for each call that fails"""

    def wait_out(self, call: str, failure: LedgerError) -> bool:
        """Return True if *call* is to be made again later, False to raise its *failure*."""
        now = trio.current_time()
        began = min(self._since.values(), default=now)
        if self._give_up_s is not None and now - began >= self._give_up_s:
            self._since.clear()
            return False
        if not self._since:
            self._figures.reading(self._topic).outages += 1
            _log.warning(
                "topic %s: its ticks cannot be followed, and are tried again: %s",
                *(self._topic, failure),
            )
        self._since.setdefault(call, now)
        return True

    def note_end(self, call: str) -> None:
        """Note that *call* was answered."""
        began = self._since.pop(call, None)
        if began is not None and not self._since:
            _log.info(
                "topic %s: its ticks are followed again, after %.1f s",
                *(self._topic, trio.current_time() - began),
            )
