"""Messages as readers hand them out: tuples, built by the batch at the speed of C."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ledger_client.topics.errors import BadBatch
from ledger_client.topics.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.reading.places import LaneRef, Place
from native.batch import BatchHeader, BatchKind, Decoded, decode_messages, read_header
from native.columns import null_places
from native.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa


class Message(NamedTuple):
    """One message, and where it is."""

    id: MessageId
    key: bytes | None
    value: bytes | None
    event_time: int | None
    """nanoseconds, given by the producer"""
    timestamp: int
    """0: the topic gives none"""
    publish_ms: int
    """Unix milliseconds of the producer, when it made the batch"""
    headers: Mapping[str, bytes]
    producer: str
    sequence: int
    """the producer's own count; -1: it does not count"""
    version: int
    """rises along the lane; messages of one batch share it"""
    topic: str
    lane: int


# Tuples of their fields, without a call into Python code.
message_of = partial(tuple.__new__, Message)
id_of = partial(tuple.__new__, MessageId)
NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Batch:
    """The messages of one entry, as columns; as objects once somebody asks."""

    __slots__ = ("__dict__", "decoded", "lane", "place")

    def __init__(self, lane: LaneRef, place: Place, decoded: Decoded) -> None:
        self.lane = lane
        self.place = place
        """of the first message"""
        self.decoded = decoded

    @property
    def header(self) -> BatchHeader:
        """What the batch says of itself."""
        return self.decoded.header

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.decoded.header.count

    @cached_property
    def event_times(self) -> list[int | None]:
        """Of each message."""
        columns = self.decoded.columns
        if columns.event_times is None:
            return [None] * self.count
        times = cast("list[int | None]", columns.event_times.tolist())
        if columns.event_time_validity is not None:
            for index in null_places(columns.event_time_validity, self.count):
                times[index] = None
        return times

    @property
    def timestamps(self) -> list[int]:
        """Of each message, 0 for none."""
        stamps = self.decoded.columns.timestamps
        return [0] * self.count if stamps is None else stamps.tolist()

    def publish_times(self) -> list[int]:
        """Return when each message was published, in Unix milliseconds."""
        return [self.header.created_ms] * self.count

    def before(self, index: int) -> Place:
        """Return the place before a message."""
        return self.place._replace(skip=index)

    def after(self, count: int) -> Place:
        """Return the place behind the first *count* messages."""
        place = self.place
        if count < self.count:
            return place._replace(skip=count)
        version = place.version if place.version < 0 else place.version + 1
        return place._replace(entry=place.entry + 1, skip=0, version=version)

    def reach(self, count: int) -> tuple[int, int, int]:
        """Return what orders the place behind the first *count* messages, in their entry."""
        return (*self.place.at[:2], count)

    def count_before(self, place: Place) -> int:
        """Return how many messages lie before a place of the lane."""
        if place.at[:2] == self.place.at[:2]:
            return min(place.skip, self.count)
        return 0 if place.at < self.place.at else self.count

    @cached_property
    def rising_times(self) -> list[int]:
        """Event times of a batch of a lane that is ordered by them.

        Raises:
            BadBatch: one is missing, or they are not in order.
        """
        times = self.event_times
        if None in times:
            raise self.bad("a message without an event time in a topic ordered by it")
        known: list[int] = times  # type: ignore[assignment] # none of them is None
        if sorted(known) != known:
            raise self.bad("event times go back in a topic ordered by them")
        return known

    @cached_property
    def messages(self) -> list[Message]:
        """All of them as objects."""
        header, columns, lane = self.decoded.header, self.decoded.columns, self.lane
        count = header.count
        indexes: Iterable[int] = range(count) if header.batched else (NOT_BATCHED,)
        where = (repeat(self.place.ledger_id), repeat(self.place.entry), repeat(lane.partition))
        fields = zip(
            map(id_of, zip(*where, indexes, strict=False)),
            repeat(None) if columns.keys is None else columns.keys.to_list(),
            columns.values.to_list(),
            repeat(None) if columns.event_times is None else self.event_times,
            repeat(0) if columns.timestamps is None else columns.timestamps.tolist(),
            repeat(header.created_ms),
            repeat(NO_HEADERS) if columns.headers is None else columns.headers.to_list(),
            repeat(header.producer),
            repeat(-1) if header.sequence < 0 else range(header.sequence, header.sequence + count),
            repeat(self.place.version),
            repeat(lane.topic),
            repeat(lane.lane),
            strict=False,
        )
        return list(map(message_of, fields))

    def record_batch(self) -> pa.RecordBatch:
        """Return the messages as a RecordBatch over this batch's own memory."""
        from ledger_client.topics import arrow  # pyarrow is imported by whoever wants it

        return arrow.record_batch(
            self.decoded,
            ledger_id=self.place.ledger_id,
            entry_id=self.place.entry,
            partition=self.lane.partition,
        )

    def bad(self, reason: str) -> BadBatch:
        """Return the error that names this entry."""
        return _bad(self.lane, self.place, reason)


def open_batch(lane: LaneRef, place: Place, payload: memoryview) -> Batch | None:
    """Return the messages of an entry, None if it is a control entry.

    Raises:
        BadBatch: it is neither.
    """
    try:
        decoded = decode_messages(payload)
    except Corrupt as wrong:
        raise _bad(lane, place, str(wrong)) from wrong
    return None if decoded is None else Batch(lane, place, decoded)


def message_header(lane: LaneRef, place: Place, payload: memoryview) -> BatchHeader | None:
    """Return the header of an entry with messages, None of a control entry.

    Raises:
        BadBatch: it is neither.
    """
    try:
        header = read_header(payload)
    except Corrupt as wrong:
        raise _bad(lane, place, str(wrong)) from wrong
    return header if header.kind == BatchKind.MESSAGES else None


def _bad(lane: LaneRef, place: Place, reason: str) -> BadBatch:
    return BadBatch(lane.topic, ledger_id=place.ledger_id, entry_id=place.entry, reason=reason)


class Slice(NamedTuple):
    """Some consecutive messages of a batch: from *start* to before *stop*."""

    batch: Batch
    start: int
    stop: int

    @property
    def messages(self) -> list[Message]:
        """They as objects."""
        found = self.batch.messages
        if self.stop - self.start == len(found):
            return found
        return found[self.start : self.stop]

    @property
    def record_batch(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """They as a RecordBatch."""
        found = self.batch.record_batch()
        if self.stop - self.start == self.batch.count:
            return found
        return found.slice(self.start, self.stop - self.start)

    @property
    def before(self) -> Place:
        """The place before the first of them."""
        return self.batch.before(self.start)

    @property
    def after(self) -> Place:
        """The place after the last of them."""
        return self.batch.after(self.stop)
