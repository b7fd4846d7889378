"""What the leader knows of ticks, behind the calls of every bookie.

    producers ──ReportLanes──► desk ──► reports of each topic ──► the service of ticks
    readers ────NewestTick───► desk ◄── newest tick of each topic ◄──┘

A desk is open for one term. Its answers are true even if they come late: what a report or a tick
says holds for ever. Reports are taken only of topics that have such lanes, so that memory is
bounded by what exists. Others are refused and counted, as are those of former writers of a lane.
"""

from __future__ import annotations

import msgspec
import trio

from metadata.errors import MetadataUnavailable, NotLeader
from metadata.leadership import Term
from metadata.time.calls import (
    LanesNoted,
    NewestTick,
    ReportLanes,
    TickNow,
    TickReply,
    TickRequest,
)
from metadata.time.ticker import Reports


class TickDesk:
    """Takes reports and shows ticks while its bookie leads."""

    def __init__(self) -> None:
        self.reports: dict[int, Reports] = {}
        """by the uid of each topic with lanes"""
        self.refused = 0
        """reports of topics and of writers that have no such lane"""
        self.progress = trio.Event()
        """set when a lane got further"""
        self.ticks: dict[int, TickNow] = {}
        """the newest tick of each topic, by uid"""
        self.made_at: dict[int, float] = {}
        """when it was made, by trio's clock"""
        self.at_rest: set[int] = set()
        """topics of which nothing can come until one of their lanes changes, by uid"""
        self.moment = 0
        """a timestamp at which the lanes were as they are known: a tick of all topics at rest"""
        self._term: Term | None = None

    def open(self, term: Term) -> None:
        """Answer from now on, with nothing that an earlier term left."""
        self.reports, self.ticks, self._term = {}, {}, term
        self.made_at, self.at_rest, self.moment = {}, set(), 0

    def close(self) -> None:
        """Answer no more."""
        self._term = None

    def forget(self, uid: int) -> None:
        """Take no reports of a topic any more, and show no tick."""
        self.reports.pop(uid, None)
        self.ticks.pop(uid, None)
        self.made_at.pop(uid, None)
        self.at_rest.discard(uid)

    def answer(self, request: TickRequest) -> TickReply:
        """Return the reply to *request*.

        Raises:
            NotLeader: this bookie does not lead.
            MetadataUnavailable: it has no tick of the topic yet.
        """
        if self._term is None or not self._term.is_certain:
            raise NotLeader
        if isinstance(request, ReportLanes):
            return self._note(request)
        return self._answer_newest(request)

    def _note(self, request: ReportLanes) -> LanesNoted:
        now = trio.current_time()
        for report in request.reports:
            reports = self.reports.get(report.uid)
            known = None if reports is None else reports.of(report.index, report.epoch)
            if reports is None or not reports.note(report, now):
                self.refused += 1
            elif known is None or known.version < report.version:
                self.progress.set()
        return LanesNoted()

    def _answer_newest(self, request: NewestTick) -> TickNow:
        tick = self.newest(request.uid)
        if tick is None:
            raise MetadataUnavailable("the leader has no tick of the topic yet")
        if request.uid in self.at_rest:
            return tick
        held_s = trio.current_time() - self.made_at.get(request.uid, trio.current_time())
        return msgspec.structs.replace(tick, held_s=held_s)

    def newest(self, uid: int) -> TickNow | None:
        """Return the newest tick of a topic, `None` if there is none yet.

        Its timestamp is 0 if none was made, because one is held back.
        """
        tick = self.ticks.get(uid)
        if tick is not None and uid in self.at_rest and self.moment > tick.timestamp:
            return msgspec.structs.replace(tick, timestamp=self.moment)
        return tick

    def wake(self, uid: int) -> int | None:
        """Let a topic be at rest no more; return the timestamp of its newest tick, if it was."""
        if uid not in self.at_rest:
            return None
        tick = self.ticks[uid] = self.newest(uid) or self.ticks[uid]
        self.at_rest.discard(uid)
        return tick.timestamp
