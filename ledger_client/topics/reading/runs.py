"""What a reader hands out next, chosen from all of its lanes.

Lanes bring slices as they can. Whatever was chosen and not handed out can be given back,
so that seek, pause and position hold to the message.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import trio

from ledger_client.errors import LedgerError
from ledger_client.figures import Figures
from ledger_client.topics.errors import Gap
from ledger_client.topics.messages import Slice
from ledger_client.topics.reading.lane_set import LaneSet, Opening, newborn
from ledger_client.topics.reading.lane_stream import LaneStream
from ledger_client.topics.reading.merging import Arrival, EventTimes, Order, Run
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.starting import Start

GAPS_KEPT = 100
TURNS_PER_CHECKPOINT = 16


class Runs:
    """The runs of a reader, in order. One task takes them."""

    def __init__(self, reading: Reading, nursery: trio.Nursery, figures: Figures) -> None:
        self.gaps: list[Gap] = []
        """Those that were passed over, the last ones."""
        self._reading = reading
        self._nursery = nursery
        self._figures = figures
        self._lanes: LaneSet | None = None
        self._order = _order_of(reading)
        self._streams: list[LaneStream] = []
        self._openings: dict[LaneRef, Opening] = {}
        self._paused: frozenset[int] = frozenset()
        self._caught_up = trio.Event()
        self._failure: LedgerError | None = None
        self._news = trio.Event()
        self._turns = 0

    # --- taking ----------------------------------------------------------------------

    async def wait(self) -> Run | None:
        """Wait for the next run; None at the end. Raises as take()."""
        self._turns += 1
        if self._turns % TURNS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()  # however much is here already
        while True:
            news = self._news = trio.Event()
            run = self.take()
            if run is not None or self._is_over():
                return run
            with trio.move_on_at(self._order.wake_at):
                await news.wait()

    def take(self) -> Run | None:
        """Return the next run if it is here.

        Raises:
            Gap: messages are missing here; the next call goes on behind them.
            BadBatch, LedgerError: the next call tries again.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            self._revive()
            try:
                run = self._order.next_run(self._streams, self._paused)
            except Gap as gap:
                self._figures.reading(gap.topic).gaps += 1
                if self._reading.on_gap == "raise":
                    raise
                self.gaps = [*self.gaps[1 - GAPS_KEPT :], gap]
                continue
            self._note_caught_up()
            if run is not None:
                self._count(run.slices)
            return run

    def give_back(self, run: Run, count: int) -> None:
        """Take back the last *count* messages of the run that was taken last."""
        streams = {stream.lane: stream for stream in self._streams}
        pieces = run.last(count, backward=self._reading.reverse)
        for piece in pieces:
            self._figures.reading(piece.batch.lane.topic).given_back += piece.stop - piece.start
            streams[piece.batch.lane].give_back(piece)

    def _count(self, pieces: Sequence[Slice]) -> None:
        now = time.time()
        for piece in pieces:
            figures = self._figures.reading(piece.batch.lane.topic)
            figures.hand_out(piece.stop - piece.start, piece.batch.header, now=now)

    def tell(self) -> None:
        """Something may be there to take."""
        self._news.set()

    def fail(self, failure: LedgerError) -> None:
        """Let every call raise *failure* from now on."""
        self._failure = failure
        self.tell()

    def _is_over(self) -> bool:
        if self._reading.follow and self._reading.end is None:
            return False
        return all(stream.ended for stream in self._streams)

    # --- where it is -----------------------------------------------------------------

    def places(self, run: Run | None, count: int) -> dict[LaneRef, Place]:
        """Return the place in each lane in front of the last *count* messages of *run*."""
        places = {stream.lane: stream.place for stream in self._streams}
        if run is not None and count:
            backward = self._reading.reverse
            for piece in run.last(count, backward=backward):
                places[piece.batch.lane] = piece.after if backward else piece.before
        return places

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand out nothing of these partitions."""
        self._paused |= frozenset(partitions)

    def resume(self, partitions: Iterable[int] | None) -> None:
        """Hand out these again, or all."""
        self._paused -= self._paused if partitions is None else frozenset(partitions)
        self.tell()

    @property
    def caught_up(self) -> trio.Event:
        """Set when all that was there when reading began was handed out."""
        return self._caught_up

    def _note_caught_up(self) -> None:
        # What stands in front of the mark of a lane was handed out before the mark was seen.
        if self._caught_up.is_set() or not all(stream.caught_up for stream in self._streams):
            return
        self._caught_up.set()
        if self._reading.on_caught_up is not None:
            self._reading.on_caught_up()

    # --- lanes -----------------------------------------------------------------------

    def begin(self, lanes: LaneSet, openings: Sequence[Opening]) -> None:
        """Read these lanes, and nothing of what was read before."""
        for stream in self._streams:
            stream.scope.cancel()
        self._lanes, self._order = lanes, _order_of(self._reading)
        self._streams, self._openings = [], {}
        if self._caught_up.is_set():
            self._caught_up = trio.Event()
        for opening in openings:
            self._open(lanes, opening)
        self.tell()

    async def look(self, index: int, start: Start) -> None:
        """Read lanes of a topic that appeared after reading had begun at *start*, too.

        Raises:
            NoSuchTopic: the topic is gone.
            LedgerError: the lanes could not be listed.
        """
        lanes = self._lanes
        if lanes is None:
            return
        for known in await lanes.lanes_of(index):
            if known.lane not in self._openings and lanes.takes(known.lane, start):
                self._open(lanes, newborn(known, start))
                self.tell()

    def _open(self, lanes: LaneSet, opening: Opening) -> None:
        stream = lanes.stream(opening)
        self._openings[stream.lane] = opening
        self._streams = sorted([*self._streams, stream], key=lambda each: each.rank)
        self._nursery.start_soon(lanes.run, opening, stream)

    def _revive(self) -> None:
        """Begin anew, where they are, to read lanes that failed."""
        failed = [stream for stream in self._streams if stream.failed]
        for stream in failed:
            assert self._lanes is not None
            self._streams.remove(stream)
            opening = self._openings[stream.lane]
            begin = opening.begin._replace(place=stream.place, since=stream.since, gap=None)
            self._open(self._lanes, opening._replace(begin=begin))


def _order_of(reading: Reading) -> Order:
    if reading.order == "arrival":
        return Arrival(backward=reading.reverse)
    idle_s = reading.idle_s if reading.follow else float("inf")
    return EventTimes(backward=reading.reverse, idle_s=idle_s)
