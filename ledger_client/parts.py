"""A sequential read, cut into parts of which a few are under way at once.

Where every bookie has every entry, a part is one batch read, and further ones
when an answer ends early. In a striped ledger it is a read for each entry, all
asked for at once.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar

import trio

from ledger_client.entries import EntryBatch
from ledger_client.errors import ReplicasUnavailable
from ledger_client.questions import BatchQuestion, EntryQuestion, Question
from ledger_client.replicas import ReplicaRead
from ledger_client.source import LedgerSource

RETRY_S = 0.1
"""Between two rounds through replicas of which none can be reached."""

T = TypeVar("T")


class Part(Protocol):
    """Some consecutive entries, asked for already."""

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order."""

    def abandon(self) -> None:
        """Drop what is still under way."""


class BatchPart:
    """Entries *first* to *last*, which each of the bookies should have."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        self._last = last
        self._question = self._question_at(first)
        self._read = ReplicaRead(source, self._question)

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order."""
        found: list[EntryBatch] = []
        while True:
            batch = await persist(self._source, self._question, self._read)
            self._source.learn_sizes(batch.size, len(batch))
            found.append(batch)
            if batch.last_entry >= self._last:
                return found
            self._question = self._question_at(batch.last_entry + 1)
            self._read = ReplicaRead(self._source, self._question)

    def abandon(self) -> None:
        """Drop what is still under way."""
        self._read.abandon()

    def _question_at(self, first: int) -> BatchQuestion:
        source = self._source
        return BatchQuestion(source.name, first, self._last - first + 1, source.digest)


class StripedPart:
    """Entries *first* to *last*, each on its own write quorum."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        questions = [
            EntryQuestion(source.name, entry_id, source.digest)
            for entry_id in range(first, last + 1)
        ]
        self._reads = [(question, ReplicaRead(source, question)) for question in questions]

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order, each a batch of one."""
        found: list[EntryBatch] = []
        try:
            for question, read in self._reads:
                batch = read.arrived()
                if batch is None:
                    batch = await persist(self._source, question, read)
                found.append(batch)
        finally:
            self.abandon()
        self._source.learn_sizes(sum(batch.size for batch in found), len(found))
        return found

    def abandon(self) -> None:
        """Drop what is still under way."""
        for _, read in self._reads:
            read.abandon()


class Parts:
    """The batches of entries *first* to *last*, reading ahead by some parts."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        self._position = first
        self._last = last
        self._ahead: deque[Part] = deque()
        self._ready: deque[EntryBatch] = deque()

    async def next(self) -> EntryBatch | None:
        """Return the next batch, or None after the last.

        Raises:
            NoSuchEntry, EntryLost, ReplicasUnavailable: about its first entry.
        """
        if not self._ready:
            self._read_ahead()
            if not self._ahead:
                return None
            part = self._ahead.popleft()
            try:
                self._ready.extend(await part.batches())
            except BaseException:
                part.abandon()
                self.abandon()
                raise
            self._read_ahead()
        return self._ready.popleft()

    def abandon(self) -> None:
        """Drop what is still under way; nothing more can be read."""
        for part in self._ahead:
            part.abandon()
        self._ahead.clear()
        self._position = self._last + 1

    def _read_ahead(self) -> None:
        part = StripedPart if self._source.striped else BatchPart
        while self._position <= self._last and len(self._ahead) < self._limit():
            end = self._source.part_end(self._position, self._last)
            self._ahead.append(part(self._source, self._position, end))
            self._position = end + 1

    def _limit(self) -> int:
        return max(self._source.options.reads_in_flight, 1)


async def persist(source: LedgerSource, question: Question[T], read: ReplicaRead[T]) -> T:
    """Return the result of *read*, asking again while replicas cannot be reached.

    Raises:
        ReplicasUnavailable: read_timeout_s passed.
        NoSuchEntry, EntryLost: at once.
    """
    deadline = trio.current_time() + source.options.read_timeout_s
    while True:
        try:
            return await read.result()
        except ReplicasUnavailable:
            if trio.current_time() >= deadline:
                raise
            await trio.sleep(RETRY_S)
        read = ReplicaRead(source, question)
