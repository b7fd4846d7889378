"""The batches of one partition on their way to its lane.

    begin ─► gathering ──seal──► queue ──take──► lane.append ─► acknowledged
             one batch           batches         several calls at a time, which
                                 in order        take their places in this order

A call of append takes all batches that wait, up to a MiB: so while calls are under way the
next ones grow. When times or numbers count (*strict*), what waits behind a failed batch fails
with it: it would overtake, and a number sent again later would pass for one that is kept
already.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledger_client.errors import LedgerError
from ledger_client.figures import SendFigures
from ledger_client.topics.errors import ProducerClosed, ProducerFailed, SendUnknown
from ledger_client.topics.producing.admission import Admission
from ledger_client.topics.producing.batching import Batch, Manner
from ledger_client.topics.producing.keeper import Lane, LaneKeeper, Opener, final_cause
from ledger_client.topics.producing.linger import Linger
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.producing.room import Room
from ledger_client.topics.producing.routes import Routes
from metadata.topics import TopicRecord

APPEND_SIZE = 1 << 20
APPENDS_MAX = 4
UNHEARD_MAX = 1000
"""Failed batches for which nobody waited: flush() tells of one of them."""


class Surroundings(NamedTuple):
    """What the partitions of a producer share."""

    topic: TopicRecord
    options: ProducerOptions
    manner: Manner
    opener: Opener
    room: Room
    linger: Linger
    routes: Routes
    failed: Callable[[ProducerFailed], None]
    """told when a lane is another producer's"""
    figures: SendFigures


class Dispatch:
    """The batches of one partition.

    Attributes:
        gathering: the batch that takes messages now.
        keeper: of the lane.
    """

    def __init__(self, partition: int, shared: Surroundings, admission: Admission) -> None:
        self.gathering: Batch | None = None
        self.keeper = LaneKeeper(partition, self, shared.opener)
        self._partition = partition
        self._shared = shared
        self._admission = admission
        self._queue: deque[Batch] = deque()
        self._pending: deque[Batch] = deque()
        self._unheard: deque[Batch] = deque(maxlen=UNHEARD_MAX)
        self._appends = 0

    # --- batches come ----------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        """Gather messages in *batch*."""
        self.gathering = batch
        self._enlist(batch)
        self._shared.linger.begin(self, batch)

    def put(self, batch: Batch) -> None:
        """Send a batch behind all that came before."""
        self._seal()
        self._enlist(batch)
        self._queue.append(batch)
        self._drive()

    def seal(self) -> None:
        """Let the batch that is gathered be sent; nothing happens without one."""
        if self._seal():
            self._drive()

    def _seal(self) -> bool:
        if self.gathering is None:
            return False
        self._queue.append(self.gathering)
        self.gathering = None
        return True

    def _enlist(self, batch: Batch) -> None:
        while self._pending and self._pending[0].done.is_set():
            self._pending.popleft()
        self._pending.append(batch)

    # --- batches go ------------------------------------------------------------------

    def _drive(self) -> None:
        """See that what waits is appended, by a lane that is open."""
        if self.keeper.lane is None:
            self.keeper.start()
        elif self._queue and self._appends < APPENDS_MAX:
            self._appends += 1
            self._shared.opener.nursery.start_soon(self._append_queued)

    async def _append_queued(self) -> None:
        # Nothing waits between taking batches and their append, so that calls take
        # their places in the lane in the order of the queue, whichever task is first.
        try:
            while self._queue and self.keeper.lane is not None:
                await self._append(self.keeper.lane, self._take())
        finally:
            self._appends -= 1

    def _take(self) -> list[Batch]:
        taken: list[Batch] = []
        room = APPEND_SIZE
        while self._queue and room > 0:
            taken.append(self._queue.popleft())
            room -= taken[-1].size
        return taken

    async def _append(self, lane: Lane, batches: list[Batch]) -> None:
        manner, epoch = self._shared.manner, lane.epoch
        sealed = [batch.seal(manner, epoch=epoch) for batch in batches]
        size = sum(each.size for each in sealed)
        figures = self._shared.figures
        figures.under_way += size
        try:
            places = await lane.append(sealed)
        except LedgerError as failure:
            self._fail(batches, failure)
            self.lane_failed(lane, failure)
        except BaseException:
            self._fail(batches, self._unknown(lane, batches))
            raise
        else:
            now = time.perf_counter()
            for batch, each, place in zip(batches, sealed, places, strict=True):
                figures.acknowledge(each.count, each.size, now - batch.began)
                batch.acknowledge(place)
                self._shared.room.release(batch.room)
        finally:
            figures.under_way -= size

    def lane_failed(self, lane: Lane, failure: LedgerError) -> None:
        """Leave the lane, and decide what becomes of the batches that wait for it."""
        news = self.keeper.leave(lane, failure)
        final = final_cause(failure)
        if final is not None:
            self._give_up(final)
            self._shared.failed(final)
        elif self._admission.strict and news:
            self._give_up(failure)

    def _give_up(self, failure: LedgerError) -> None:
        """Fail everything that is not under way yet."""
        self._seal()
        waiting = list(self._queue)
        self._queue.clear()
        self._fail(waiting, failure)

    def _fail(self, batches: Sequence[Batch], failure: LedgerError) -> None:
        for batch in batches:
            self._shared.figures.failed[type(failure).__name__] += batch.count
            if not batch.fail(failure):
                self._unheard.append(batch)
            self._shared.room.release(batch.room)

    def _unknown(self, lane: Lane, batches: Sequence[Batch]) -> SendUnknown:
        return SendUnknown(
            self._shared.topic.name,
            partition=self._partition,
            lane=lane.lane,
            count=sum(batch.count for batch in batches),
            reason="the producer was left before they were acknowledged",
        )

    # --- what the keeper tells -------------------------------------------------------

    def lane_opened(self, lane: Lane) -> None:
        """Go on with what waited for the lane."""
        self._admission.begin(lane)
        self._drive()

    def lane_refused(self, failure: LedgerError) -> None:
        """Fail what waited for the lane."""
        self._give_up(failure)
        final = final_cause(failure)
        if final is not None:
            self._shared.failed(final)

    def lane_wanted(self) -> bool:
        """Return whether batches wait for a lane."""
        return bool(self._queue)

    # --- the end ---------------------------------------------------------------------

    @property
    def pending(self) -> list[Batch]:
        """What came and is not settled."""
        return [batch for batch in self._pending if not batch.done.is_set()]

    async def flush(self) -> None:
        """Wait until everything that came is acknowledged.

        Raises why some of it was not, also if that was earlier and nobody asked.
        """
        self.seal()
        failed = [batch for batch in self._unheard if not batch.followed]
        for batch in self.pending:
            await batch.done.wait()
            failed.append(batch)
        self._unheard.clear()
        for batch in failed:
            if batch.failure is not None:
                raise batch.failure.with_traceback(None)

    def begin_close(self) -> None:
        """Have the lane left, for good; what came was flushed."""
        self.keeper.end(ProducerClosed(self._shared.topic.name))

    def abort(self) -> None:
        """Fail everything that is not under way: the producer is left, and its tasks end."""
        closed = ProducerClosed(self._shared.topic.name)
        self.keeper.abort(closed)
        self._give_up(closed)
