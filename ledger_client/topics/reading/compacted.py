"""The compacted beginning of a lane: its ledgers, and their entries as batches of messages.

A compacted set has ledgers with the messages that survived, and for each lane a horizon: the
place at which its raw ledgers go on. A reader keeps the generation with which it began. That
generation is deleted ten minutes after the next one was published; then the reader goes on in the
next one, at the same place, since survivors keep their original places.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from ledger_client.errors import MessagesLost, NoSuchLedger
from ledger_client.ledgers.catalogue import translated
from ledger_client.message_id import NOT_BATCHED
from ledger_client.topics.messages import NO_HEADERS, Message, MessageBatch, id_of, message_of
from ledger_client.topics.positions import LaneRef, Place
from metadata.compaction import (
    CompactedLedger,
    CompactedSet,
    SetAt,
    compacted_key,
    decode_set,
)
from metadata.paged import whole_value
from metadata.store import MetadataStore
from native.compacted import Compacted, CompactedHeader, decode, read_header
from native.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa


class CompactedRange(NamedTuple):
    """The compacted beginning of a lane: it is read instead of the raw ledgers before *horizon*."""

    generation: int
    ledgers: tuple[CompactedLedger, ...]
    horizon: Place
    """the place from which raw ledgers are read"""
    last_ledger_id: int
    """the last raw ledger before the horizon"""

    def holds(self, place: Place) -> bool:
        """True if a place of the lane lies before the horizon."""
        return place.at < self.horizon.at


class CompactedSets:
    """Looks up compacted sets. Every call may raise MetadataUnavailable and MetadataBroken."""

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._known: dict[int, SetAt] = {}
        """the sets read last, by topic"""

    async def set_of(self, uid: int) -> CompactedSet | None:
        """Return the compacted set of a topic, `None` if it never was compacted."""
        key = compacted_key(uid)
        with translated(self._timeout_s):
            row = await self._store.get(key)
            known = self._known.get(uid)
            if row is None or known is None or known.version != row.version:
                self._known.pop(uid, None)
                found = None if row is None else await whole_value(self._store, key, row)
                if found is None:
                    return None
                known = self._known[uid] = SetAt(decode_set(key, found.value), found.version)
            return None if known.set.dropped else known.set

    async def of(self, lane: LaneRef) -> CompactedRange | None:
        """Return the compacted beginning of a lane, `None` if all of it is raw."""
        found = await self.set_of(lane.uid)
        return None if found is None else range_of(found, lane)

    async def after(
        self, lane: LaneRef, known: CompactedRange, gone: NoSuchLedger
    ) -> CompactedRange:
        """Return the generation that replaced *known*, whose ledger is *gone*.

        Raises:
            MessagesLost: there is no later generation.
        """
        found = await self.of(lane)
        if found is None:
            reason = "compaction of the topic was ended while it was read"
            raise MessagesLost.compacted(lane.topic, reason=reason) from gone
        if found.generation == known.generation:
            raise lost(lane, gone) from gone
        return found


def lost(lane: LaneRef, gone: NoSuchLedger) -> MessagesLost:
    """Return the error that names the missing ledger."""
    return MessagesLost.compacted(
        lane.topic,
        reason=f"ledger {gone.ledger_id} of {lane} is not there; "
        "end what there is and compact anew (quire compact --drop)",
        ledger_id=-1 if gone.ledger_id is None else gone.ledger_id,
    )


def range_of(found: CompactedSet, lane: LaneRef) -> CompactedRange | None:
    """Return the beginning of a lane in a set, `None` if all of the lane is raw."""
    horizon = found.horizon(lane.partition, lane.lane)
    if horizon is None:
        return None
    return CompactedRange(
        found.generation,
        tuple(found.lane_ledgers(lane.partition, lane.lane)),
        Place(horizon.number + 1, version=horizon.version),
        horizon.ledger_id,
    )


class CompactedBatch(MessageBatch):
    """The messages of one compacted entry.

    Args:
        lane: the messages' lane.
        compacted: the decoded entry.
        stored: its ledger in the set, and its entry id there.
    """

    __slots__ = ("batch_indexes", "origins", "stored")

    def __init__(self, lane: LaneRef, compacted: Compacted, stored: tuple[int, int]) -> None:
        self.origins = compacted.origins
        self.batch_indexes = compacted.batch_indexes
        """each message's index in its original batch; -1 if it was sent unbatched"""
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
        """Return the place after the first *count* messages."""
        return self._place(count - 1, max(self.batch_indexes[count - 1], 0) + 1)

    def reach(self, count: int) -> tuple[int, int, int]:
        """Return the sort key of the place after the first *count* messages."""
        return self.after(count).at if count else self.place.at

    def count_before(self, place: Place) -> int:
        """Return the number of messages before a place of the lane."""
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
        """The messages as objects, built once."""
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
        """Return the messages as a RecordBatch; keys and values are not copied."""
        from ledger_client.topics import arrow  # imports pyarrow, which takes long

        return arrow.compacted_record_batch(
            self.decoded, self.origins, self.batch_indexes, partition=self.lane.partition
        )

    def bad(self, reason: str) -> MessagesLost:
        """Return a MessagesLost that names this entry."""
        return _bad(self.lane, self.stored, reason)

    def _each(self, words: memoryview) -> list[int]:
        return self.origins.spread(words).tolist()


def _sequence(first: int, index: int) -> int:
    return first if first < 0 or index == NOT_BATCHED else first + index


def open_compacted(lane: LaneRef, stored: tuple[int, int], payload: memoryview) -> CompactedBatch:
    """Return the messages of a compacted entry.

    Raises:
        MessagesLost: it is damaged, or no compacted entry.
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
        MessagesLost: it is damaged, or no compacted entry.
    """
    try:
        return read_header(payload)
    except Corrupt as wrong:
        raise _bad(lane, stored, str(wrong)) from wrong


def _bad(lane: LaneRef, stored: tuple[int, int], reason: str) -> MessagesLost:
    return MessagesLost.batch(lane.topic, ledger_id=stored[0], entry_id=stored[1], reason=reason)
