"""Sequence numbers of a named producer in one lane: which come next, which are there already.

Numbers rise. One that is not above the last accepted is a duplicate: it is acknowledged
when the first of its kind is, and not written again.
"""

from __future__ import annotations

from collections import deque

from ledger_client.topics.producing.batching import NOWHERE, UNKNOWN, Batch

REMEMBERED_MAX = 64
"""Acknowledged batches of which a duplicate still gets the id."""


class Numbering:
    """The numbers in one lane.

    Attributes:
        next: one more than the last that was accepted, and is kept or on its way.
        highest: the greatest that was ever accepted here, whatever became of it; -1: none.
    """

    def __init__(self, partition: int) -> None:
        self.next = 0
        self.highest = -1
        self._partition = partition
        self._batches: deque[Batch] = deque()

    def begin(self, last: int) -> None:
        """The lane's last number is *last*; what failed before may be in it or not."""
        self.accept(last)
        self._batches = deque(batch for batch in self._batches if batch.failure is None)

    def accept(self, sequence: int) -> None:
        """All up to *sequence* are accepted."""
        self.next = sequence + 1
        self.highest = max(self.highest, sequence)

    def remember(self, batch: Batch) -> None:
        """*batch* is accepted."""
        self._batches.append(batch)
        while len(self._batches) > REMEMBERED_MAX and self._batches[0].done.is_set():
            self._batches.popleft()

    def find(self, sequence: int) -> tuple[Batch, int]:
        """Return the batch of a duplicate, and its place in it."""
        for batch in self._batches:
            if batch.sequence <= sequence < batch.sequence + batch.count:
                return batch, sequence - batch.sequence
        known = Batch(self._partition)
        known.acknowledge(NOWHERE)
        return known, UNKNOWN
