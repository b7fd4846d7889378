"""One partition of a producer: messages are accepted, or refused, and become batches.

When times or numbers count (*strict*), nothing is accepted before the lane is open: it knows
the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.message_id import NOT_BATCHED
from ledger_client.topics.producing.admission import Admission
from ledger_client.topics.producing.batching import Batch
from ledger_client.topics.producing.dispatch import Dispatch, Surroundings
from ledger_client.topics.producing.keeper import Lane


class Outbox:
    """One partition.

    Attributes:
        partition: which.
        admission: what is accepted.
        dispatch: where batches go.
        strict: whether times or numbers count.
    """

    def __init__(self, partition: int, shared: Surroundings) -> None:
        options = shared.options
        self.partition = partition
        self.admission = Admission(
            shared.topic.name,
            partition,
            ordered=shared.topic.order == "event-time",
            producer_name=options.producer_name,
            routes=shared.routes,
        )
        self.dispatch = Dispatch(partition, shared, self.admission)
        self.strict = self.admission.strict
        self._room = shared.room
        self._batched = shared.manner.batched
        self._size_max = options.batch_bytes
        self._count_max = options.batch_messages if options.batching else 1
        self._held = False
        self._released = trio.lowlevel.ParkingLot()
        self._refusal: LedgerError | None = None
        self._refusals = 0

    @property
    def lane(self) -> Lane | None:
        """The lane, while it is open."""
        return self.dispatch.keeper.lane

    @property
    def ready(self) -> bool:
        """Whether put() may be called now."""
        return not self.strict or (self.dispatch.keeper.lane is not None and not self._held)

    async def wait_ready(self) -> None:
        """Return when put() may be called. Raises why the lane cannot be opened."""
        while not self.ready:
            if not self._held:
                await self.open()
                continue
            refusals = self._refusals
            await self._released.park()
            if self._refusals > refusals and self._refusal is not None:
                raise self._refusal.with_traceback(None)

    async def open(self) -> Lane:
        """Wait until the lane is open; return it. Raises why it cannot be opened."""
        return await self.dispatch.keeper.open()

    def put(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
        size: int,
    ) -> tuple[Batch, int]:
        """Accept a message of *size* bytes, for which room was taken.

        Returns its batch and its place there; of a duplicate, that of the first.

        Raises:
            EventTimeBack: on an ordered topic. Nothing was accepted.
        """
        number = -1
        if self.strict:
            known = self.admission.find_duplicate(sequence)
            if known is not None:
                self._room.release(size)
                return known[0], known[1] if self._batched else min(known[1], NOT_BATCHED)
            number, follows = self.admission.admit(event_time, sequence)
            if not follows:
                self.dispatch.seal()  # numbers of a batch follow each other
        batch = self._batch_for(size, number)
        place = batch.add(value, key, event_time, headers, size)
        if batch.count >= self._count_max or batch.size >= self._size_max:
            self.dispatch.seal()
        return batch, place if self._batched else NOT_BATCHED

    def put_encoded(self, batch: Batch) -> None:
        """Accept a batch that is encoded, behind all that was accepted before."""
        self.admission.take(batch)
        self._remember(batch)
        self.dispatch.put(batch)

    def hold(self) -> None:
        """Make all others wait, if strict: what is put now belongs together."""
        self._held = self.strict

    def refuse(self, failure: LedgerError) -> None:
        """Raise *failure* in those who wait; who comes later waits, if it is still held."""
        self._refusal = failure
        self._refusals += 1
        self._released.unpark_all()

    def let_go(self) -> None:
        """End what hold() began."""
        self._held = False
        self._released.unpark_all()

    def _batch_for(self, size: int, number: int) -> Batch:
        batch = self.dispatch.gathering
        if batch is not None and batch.size + size > self._size_max:
            self.dispatch.seal()
            batch = None
        if batch is None:
            batch = Batch(self.partition, sequence=number)
            self._remember(batch)
            self.dispatch.begin(batch)
        return batch

    def _remember(self, batch: Batch) -> None:
        if self.admission.numbering is not None:
            self.admission.numbering.remember(batch)
