"""One lane as its reader's user sees it: slices of batches, in order, as far as they are here.

The task behind the intake reads; this takes, opens batch after batch, and cuts off what
lies before the start or behind the end. Nothing here waits.
"""

from __future__ import annotations

from collections import deque

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.errors import Gap
from ledger_client.topics.messages import Batch, Slice
from ledger_client.topics.reading.intake import Edge, Ended, Entries, Failed, Intake
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.times import Time


class LaneStream:
    """The messages of one lane from *place* on.

    Args:
        lane: which.
        place: where it begins.
        intake: where its entries come from.
        name: of the lane, as it was when reading began.
        since: a time that nothing had yet; what is before it is left out.
        until: the time at which it ends.
        end: the place at which it ends.
        backward: read in reverse; *end* is at the lane's beginning then.
    """

    def __init__(
        self,
        lane: LaneRef,
        place: Place,
        intake: Intake,
        *,
        name: str = "",
        since: Time | None = None,
        until: Time | None = None,
        end: Place | None = None,
        backward: bool = False,
    ) -> None:
        self.lane = lane
        self.name = name
        self.place = place
        """Behind what was given out."""
        self.intake = intake
        self.scope = trio.CancelScope()
        """Around the task that fills the intake."""
        self.since = since
        self.until = until
        self.end = end
        self.ended = False
        self.caught_up = False
        """What was there when reading began was given out."""
        self.failed = False
        """The task has ended with a failure, which was raised."""
        self._backward = backward
        self._next = place
        """Behind what was cut into slices."""
        self._slices: deque[Slice] = deque()
        self._taken: Entries | None = None
        self._index = 0
        """of the next entry in it"""

    @property
    def rank(self) -> tuple[int, str, LaneRef]:
        """Orders messages of equal event times: by topic, lane name, partition and lane."""
        return self.lane.topic_index, self.name, self.lane

    @property
    def waiting_since(self) -> float | None:
        """Since when there is nothing to read, here or at the bookies; None: there is."""
        here = self._slices or self._taken or self.intake.items
        return None if here else self.intake.waiting_since

    def peek(self) -> Slice | None:
        """Return what comes next, None if it is not here yet or never comes.

        Raises:
            Gap: entries are missing here, once; the next call goes on behind them.
            BadBatch: the next entry is damaged, at each call.
            LedgerError: reading failed; *failed* says that it is to be begun anew.
        """
        while not self._slices:
            if self.ended:
                self.caught_up = True
                return None
            if self._taken is not None:
                self._open_next(self._taken)
            elif not self._take():
                return None
        return self._slices[0]

    def take(self, piece: Slice) -> Slice:
        """Give out *piece*, which is what peek returned or the part of it that comes first."""
        whole = self._slices.popleft()
        if self._backward:
            if piece.start > whole.start:
                self._slices.appendleft(Slice(whole.batch, whole.start, piece.start))
            self.place = piece.before
        else:
            if piece.stop < whole.stop:
                self._slices.appendleft(Slice(whole.batch, piece.stop, whole.stop))
            self.place = piece.after
        return piece

    def give_back(self, piece: Slice) -> None:
        """Take the part of what was given out last that nobody has seen."""
        self._slices.appendleft(piece)
        self.place = piece.after if self._backward else piece.before

    def _take(self) -> bool:
        """Take the next item of the intake; False: there is none yet."""
        item = self.intake.take()
        if item is None:
            return False
        if isinstance(item, Failed):
            raise self._note(item.error)
        if isinstance(item, Edge):
            self.caught_up = True
        elif isinstance(item, Ended):
            self.ended = True
        else:
            self._taken = item
            self._index = len(item.batch) - 1 if self._backward else 0
        return True

    def _note(self, error: LedgerError) -> LedgerError:
        if not isinstance(error, Gap):
            self.failed = True
        return error

    def _open_next(self, taken: Entries) -> None:
        """Cut the next entry into a slice, if it has one."""
        opened = taken.open(self.lane, self._index)
        pieces: list[Slice] = []
        if opened.batch is not None:
            cut = self._backward_pieces if self._backward else self._pieces
            pieces = cut(opened.batch, opened.parts)
        if pieces:
            self._slices.extend(pieces)
        elif not self.ended:
            self.place = opened.before if self._backward else opened.behind
        self._index += -1 if self._backward else 1
        if not 0 <= self._index < len(taken.batch):
            self._taken = None

    def _pieces(self, batch: Batch, parts: list[tuple[int, int]]) -> list[Slice]:
        pieces: list[Slice] = []
        for part in parts:
            if self.ended:
                break
            start, stop = self._cut(batch, *part)
            if start < stop:
                pieces.append(Slice(batch, start, stop))
        return pieces

    def _cut(self, batch: Batch, start: int, stop: int) -> tuple[int, int]:
        start = max(start, batch.count_before(self._next))
        if self.since is not None:
            reached = self.since.reached_by(batch.header)
            start = max(start, self.since.index_in(batch)) if reached else stop
            if start >= stop:
                return start, stop
            self.since = None
        if self.until is not None and self.until.reached_by(batch.header):
            reached_at = self.until.index_in(batch, start)
            if reached_at < stop:
                stop, self.ended = reached_at, True
        if self.end is not None and batch.reach(stop) >= self.end.at:
            stop = min(stop, batch.count_before(self.end))
            self.ended = True
        return start, stop

    def _backward_pieces(self, batch: Batch, parts: list[tuple[int, int]]) -> list[Slice]:
        pieces: list[Slice] = []
        for start, stop in reversed(parts):
            last = min(stop, batch.count_before(self._next))
            first = start
            if self.end is not None and batch.before(0).at <= self.end.at:
                first = max(start, batch.count_before(self.end))
                self.ended = True
            if first < last:
                pieces.append(Slice(batch, first, last))
        return pieces
