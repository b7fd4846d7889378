"""The messages of a lane as compaction sees them: of raw entries and of compacted ones alike.

    entries ──► Portion: columns, ordinals, orders, and of which entry each message was

A message's ordinal is its number among those that are read of its lane, so it is the same
whenever the same spans are read.

Which of two messages of a key is later is told, between lanes, by their order: the event time
in a topic ordered by it, otherwise the greatest time of publication in the lane up to there.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import Protocol

from ledger_client.topics.errors import BadBatch
from ledger_client.topics.messages import Slice
from ledger_client.topics.reading.span_reader import Brought, slices_of
from native.batch import decode, encode
from native.columns import Columns
from native.compacted import Compacted, Origin, decode as decode_compacted
from native.errors import Corrupt


class Portion(Protocol):
    """Consecutive messages of a lane, all of one entry."""

    columns: Columns
    entry: int
    """in which they were read"""
    base: int
    """ordinal of the first"""
    orders: memoryview | int
    """of each message, or of all"""

    @abstractmethod
    def origins(self, rows: array[int]) -> list[Origin]:
        """Return of which entries these messages were, in order."""

    @abstractmethod
    def indexes(self, rows: array[int]) -> list[int]:
        """Return where in its batch each of these messages was; -1: it was no batch."""


def order_of(portion: Portion, row: int) -> int:
    """Return the order of a message."""
    orders = portion.orders
    return orders if isinstance(orders, int) else orders[row]


def greatest_order(portion: Portion) -> int:
    """Return the order of the last message: none before it has a greater one."""
    return order_of(portion, -1)


def may_lack_keys(columns: Columns) -> bool:
    """Whether a message may be without a key."""
    return columns.keys is None or columns.keys.validity is not None


class RawPortion:
    """Messages as their producer wrote them."""

    def __init__(self, piece: Slice, base: int, order: int) -> None:
        batch, header = piece.batch, piece.batch.header
        self.entry = batch.place.entry
        self.base = base
        self.columns = batch.decoded.columns
        if piece.stop - piece.start != header.count:  # others of it were deleted
            part = encode(batch.decoded.columns, piece.start, piece.stop)
            self.columns = decode(part).columns
        self._piece = piece
        self.orders: memoryview | int = max(order, header.created_ms)
        if batch.lane.ordered:
            times = _event_times(self.columns)
            if times is None:
                raise batch.bad("a message without an event time in a topic ordered by it")
            self.orders = times

    def origins(self, rows: array[int]) -> list[Origin]:
        """See Portion."""
        batch, header = self._piece.batch, self._piece.batch.header
        place = batch.place
        return [
            Origin(
                number=place.number,
                ledger_id=place.ledger_id,
                entry_id=place.entry,
                version=place.version,
                created_ms=header.created_ms,
                sequence=header.sequence,
                order=greatest_order(self),
                producer=header.producer,
                kept=len(rows),
            )
        ]

    def indexes(self, rows: array[int]) -> list[int]:
        """See Portion."""
        if not self._piece.batch.header.batched:
            return [-1]
        start = self._piece.start
        return [start + row for row in rows] if start else rows.tolist()


class CompactedPortion:
    """Messages of an entry that a compaction wrote."""

    def __init__(self, found: Compacted, entry: int, base: int, *, ordered: bool) -> None:
        self.entry = entry
        self.base = base
        self.columns = found.decoded.columns
        self._found = found
        origins = found.origins
        times = _event_times(self.columns) if ordered else None
        self.orders: memoryview | int = origins.spread(origins.orders) if times is None else times

    def origins(self, rows: array[int]) -> list[Origin]:
        """See Portion."""
        origins = self._found.origins
        groups = groupby(map(origins.index.__getitem__, rows))
        return [origins[at]._replace(kept=sum(1 for _ in group)) for at, group in groups]

    def indexes(self, rows: array[int]) -> list[int]:
        """See Portion."""
        return list(map(self._found.batch_indexes.__getitem__, rows))


def raw_portions(brought: Brought, base: int, order: int) -> Iterator[Portion]:
    """Yield the messages of raw entries; *order* is the greatest of the lane before them.

    Raises:
        BadBatch: an entry is damaged, or none of a topic.
    """
    for piece in slices_of(brought):
        portion = RawPortion(piece, base, order)
        yield portion
        base, order = base + portion.columns.count, greatest_order(portion)


def compacted_portions(brought: Brought, base: int) -> Iterator[Portion]:
    """Yield the messages of entries that a compaction wrote.

    Raises:
        BadBatch: an entry is damaged.
    """
    span, entries = brought
    for index in range(len(entries)):
        entry = entries.first_entry + index
        try:
            found = decode_compacted(entries.payload(index))
        except Corrupt as wrong:
            raise BadBatch(
                span.topic, ledger_id=span.ledger_id, entry_id=entry, reason=str(wrong)
            ) from wrong
        yield CompactedPortion(found, entry, base, ordered=span.ordered)
        base += found.header.count


def _event_times(columns: Columns) -> memoryview | None:
    return columns.event_times if columns.event_time_validity is None else None
