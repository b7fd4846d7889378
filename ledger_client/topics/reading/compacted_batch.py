"""A compacted entry as a batch of messages: each with the place at which it was written.

Whoever takes batches apart takes these as any other: in columns, as objects, by their times,
from a place of the lane on. Only that places vary from message to message, with gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ledger_client.topics.errors import BadBatch
from ledger_client.topics.message_id import NOT_BATCHED
from ledger_client.topics.messages import NO_HEADERS, Batch, Message, id_of, message_of
from ledger_client.topics.reading.places import LaneRef, Place
from native.compacted import Compacted, CompactedHeader, decode, read_header
from native.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa


class CompactedBatch(Batch):
    """The messages of one compacted entry.

    Args:
        lane: whose messages they are.
        compacted: the entry, taken apart.
        stored: where it is: a ledger of the set, and the entry in it.
    """

    __slots__ = ("batch_indexes", "origins", "stored")

    def __init__(self, lane: LaneRef, compacted: Compacted, stored: tuple[int, int]) -> None:
        self.origins = compacted.origins
        self.batch_indexes = compacted.batch_indexes
        """of each message; -1: it was no batch"""
        self.stored = stored
        number, _, index = compacted.header.first
        place = Place(
            number,
            self.origins.entry_ids[0],
            max(index, 0),
            self.origins.ledger_ids[0],
            self.origins.versions[0],
        )
        super().__init__(lane, place, compacted.decoded)

    # --- places ------------------------------------------------------------------------

    def before(self, index: int) -> Place:
        """Return the place before a message."""
        return self._place(index, max(self.batch_indexes[index], 0))

    def after(self, count: int) -> Place:
        """Return the place behind the first *count* messages."""
        return self._place(count - 1, max(self.batch_indexes[count - 1], 0) + 1)

    def reach(self, count: int) -> tuple[int, int, int]:
        """Return what orders the place behind the first *count* messages."""
        return self.after(count).at if count else self.place.at

    def count_before(self, place: Place) -> int:
        """Return how many messages lie before a place of the lane."""
        return bisect_left(range(self.count), place.at, key=self._at)

    def _place(self, index: int, skip: int) -> Place:
        origin = self.origins.index[index]
        return Place(
            self.origins.numbers[origin],
            self.origins.entry_ids[origin],
            skip,
            self.origins.ledger_ids[origin],
            self.origins.versions[origin],
        )

    def _at(self, index: int) -> tuple[int, int, int]:
        origin, origins = self.origins.index[index], self.origins
        return origins.numbers[origin], origins.entry_ids[origin], max(self.batch_indexes[index], 0)

    # --- contents ----------------------------------------------------------------------

    def publish_times(self) -> list[int]:
        """Return when each message was published, in Unix milliseconds."""
        return self._each(self.origins.created_ms)

    @cached_property
    def messages(self) -> list[Message]:
        """All of them as objects."""
        columns, origins, lane = self.decoded.columns, self.origins, self.lane
        indexes = self.batch_indexes.tolist()
        ledgers, entries = self._each(origins.ledger_ids), self._each(origins.entry_ids)
        fields = zip(
            map(id_of, zip(ledgers, entries, repeat(lane.partition), indexes, strict=False)),
            repeat(None) if columns.keys is None else columns.keys.to_list(),
            columns.values.to_list(),
            repeat(None) if columns.event_times is None else self.event_times,
            repeat(0) if columns.timestamps is None else columns.timestamps.tolist(),
            self.publish_times(),
            repeat(NO_HEADERS) if columns.headers is None else columns.headers.to_list(),
            [origins.names[name] for name in self._each(origins.producers)],
            map(_sequence, self._each(origins.sequences), indexes),
            self._each(origins.versions),
            repeat(lane.topic),
            repeat(lane.lane),
            strict=False,
        )
        return list(map(message_of, fields))

    def record_batch(self) -> pa.RecordBatch:
        """Return the messages as a RecordBatch; keys and values lie over the entry."""
        from ledger_client.topics import arrow  # pyarrow is imported by whoever wants it

        return arrow.compacted_record_batch(
            self.decoded, self.origins, self.batch_indexes, partition=self.lane.partition
        )

    def bad(self, reason: str) -> BadBatch:
        """Return the error that names this entry."""
        return _bad(self.lane, self.stored, reason)

    def _each(self, words: memoryview) -> list[Any]:
        return self.origins.spread(words).tolist()


def _sequence(first: int, index: int) -> int:
    return first if first < 0 or index == NOT_BATCHED else first + index


def open_compacted(lane: LaneRef, stored: tuple[int, int], payload: memoryview) -> CompactedBatch:
    """Return the messages of a compacted entry.

    Raises:
        BadBatch: it is none.
    """
    try:
        return CompactedBatch(lane, decode(payload), stored)
    except Corrupt as wrong:
        raise _bad(lane, stored, str(wrong)) from wrong


def compacted_header(
    lane: LaneRef, stored: tuple[int, int], payload: memoryview
) -> CompactedHeader:
    """Return the header of a compacted entry.

    Raises:
        BadBatch: it is none.
    """
    try:
        return read_header(payload)
    except Corrupt as wrong:
        raise _bad(lane, stored, str(wrong)) from wrong


def _bad(lane: LaneRef, stored: tuple[int, int], reason: str) -> BadBatch:
    return BadBatch(lane.topic, ledger_id=stored[0], entry_id=stored[1], reason=reason)
