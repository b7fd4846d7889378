"""Messages as readers return them: named tuples, built a batch at a time at the speed of C."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, groupby, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

import msgspec

from ledger_client.errors import BadValue, MessagesLost
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.positions import LaneRef, Place
from native.batch import BatchHeader, BatchKind, Decoded, decode_messages, read_header
from native.columns import null_places
from native.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
ValueDecoder = Callable[[bytes], Any]


class Message(NamedTuple):
    """One message, with its id and its place in the topic."""

    id: MessageId
    key: bytes | None
    value: bytes | None
    event_time: int | None
    """nanoseconds, set by the producer"""
    timestamp: int
    """0 if the topic has no timestamps"""
    publish_time: int
    """when the producer made the batch, in Unix milliseconds of the cluster's clock"""
    headers: Mapping[str, bytes]
    producer: str
    sequence: int
    """the producer's own number, -1 if it does not number messages"""
    version: int
    """rises along the lane; all messages of a batch have the same"""
    topic: str
    lane: int

    @property
    def text(self) -> str | None:
        """The value as text in UTF-8, `None` for null. Raises BadValue if it is something else."""
        if self.value is None:
            return None
        try:
            return self.value.decode()
        except UnicodeDecodeError as wrong:
            raise BadValue(self.topic, self.id, f"is not text in UTF-8: {wrong}") from wrong

    @overload
    def json(self) -> Any: ...  # noqa: ANN401  # whatever JSON has
    @overload
    def json(self, kind: type[T]) -> T | None: ...
    def json(self, kind: Any = Any) -> Any:
        """Return the value decoded from JSON, checked to be a *kind*; `None` for null.

        Args:
            kind: a type that msgspec knows: a msgspec.Struct, a dataclass, ``list[int]``.
                Without it, dicts, lists, texts and numbers are returned as they come.

        Raises:
            BadValue: it is not JSON, or not such a value, or nested too deep; the message
                says where.
        """
        if self.value is None:
            return None
        try:
            return msgspec.json.decode(self.value, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise BadValue(self.topic, self.id, f"is not the JSON wanted: {wrong}") from wrong

    @property
    def decoded(self) -> Any:  # noqa: ANN401  # whatever the decoder returns
        """The value as the *value_decoder* of the reader or consumer returns it; `None` for null.

        It is decoded when this is first read, in the thread that reads it, and then kept. Raises
        BadValue if the decoder raises, and if there is none.
        """
        raise BadValue(self.topic, self.id, "has no decoder: read it with value_decoder=...")


# Build the tuples without running Python code, which matters at a million messages a second.
message_of = partial(tuple.__new__, Message)
id_of = partial(tuple.__new__, MessageId)
NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class CollectionPaused:
    """No garbage collection for the block, which builds many objects and never waits.

    A collection in between would look at all of them, over and over, and find nothing.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()


def decoding(decoder: ValueDecoder | None) -> Callable[[Message], Message] | None:
    """Return a function that makes a message one with `decoded`; `None` without a *decoder*.

    Each decoder has a class of its own, so that no message needs a reference to it.
    """
    if decoder is None:
        return None
    made = partial(tuple.__new__, _decoded_by(decoder))
    return cast("Callable[[Message], Message]", made)


def _decoded_by(decoder: ValueDecoder) -> type[Message]:
    class DecodedMessage(Message):
        @cached_property
        def decoded(self) -> Any:  # noqa: ANN401  # whatever the decoder returns
            if self.value is None:
                return None
            try:
                return decoder(self.value)
            except Exception as wrong:
                reason = f"cannot be decoded: {type(wrong).__name__}: {wrong}"
                raise BadValue(self.topic, self.id, reason) from wrong

    return DecodedMessage


def converted(
    messages: list[Message], convert: Callable[[Message], Message] | None
) -> list[Message]:
    """Return *messages* as *convert* makes them; without it the list itself."""
    if convert is None:
        return messages
    with CollectionPaused():
        return list(map(convert, messages))


class MessageBatch:
    """The messages of one entry, as columns, and on demand as objects."""

    __slots__ = ("__dict__", "decoded", "lane", "place")

    def __init__(self, lane: LaneRef, place: Place, decoded: Decoded) -> None:
        self.lane = lane
        self.place = place
        """place of the first message"""
        self.decoded = decoded

    @property
    def header(self) -> BatchHeader:
        """The header, which the producer wrote with the batch."""
        return self.decoded.header

    @property
    def count(self) -> int:
        """The number of messages, those deleted since included."""
        return self.decoded.header.count

    @cached_property
    def event_times(self) -> list[int | None]:
        """The event time of each message in nanoseconds, `None` for those without; decoded once."""
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
        """The timestamp of each message, 0 for those without."""
        stamps = self.decoded.columns.timestamps
        return [0] * self.count if stamps is None else stamps.tolist()

    def publish_times(self) -> list[int]:
        """Return the publish time of each message, in Unix milliseconds."""
        return [self.header.created_ms] * self.count

    def before(self, index: int) -> Place:
        """Return the place before message *index*."""
        return self.place._replace(skip=index)

    def after(self, count: int) -> Place:
        """Return the place after the first *count* messages."""
        place = self.place
        if count < self.count:
            return place._replace(skip=count)
        version = place.version if place.version < 0 else place.version + 1
        return place._replace(entry=place.entry + 1, skip=0, version=version)

    def reach(self, count: int) -> tuple[int, int, int]:
        """Return the sort key of the place after the first *count* messages, within the entry."""
        return (*self.place.at[:2], count)

    def count_before(self, place: Place) -> int:
        """Return the number of messages before a place of the lane."""
        if place.at[:2] == self.place.at[:2]:
            return min(place.skip, self.count)
        return 0 if place.at < self.place.at else self.count

    @cached_property
    def rising_times(self) -> list[int]:
        """The event times of a batch in a lane that is ordered by them.

        Raises:
            MessagesLost: a message has none, or they decrease.
        """
        times = self.event_times
        if None in times:
            raise self.bad("a message without an event time in a topic ordered by it")
        known = cast("list[int]", times)
        if sorted(known) != known:
            raise self.bad("event times go back in a topic ordered by them")
        return known

    @cached_property
    def rising_timestamps(self) -> list[int]:
        """The timestamps of a batch in a topic with timesync.

        Raises:
            MessagesLost: a message has none, or they decrease.
        """
        stamps = self.timestamps
        if sorted(stamps) != stamps:
            raise self.bad("timestamps go back in a lane")
        if not stamps[0]:
            raise self.bad("a message without a timestamp in a topic with timesync")
        return stamps

    @cached_property
    def messages(self) -> list[Message]:
        """The messages as objects, built once."""
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
        with CollectionPaused():
            return list(map(message_of, fields))

    def record_batch(self) -> pa.RecordBatch:
        """Return the messages as a RecordBatch; keys and values are not copied."""
        from ledger_client.topics import arrow  # imports pyarrow, which takes long

        return arrow.record_batch(
            self.decoded,
            ledger_id=self.place.ledger_id,
            entry_id=self.place.entry,
            partition=self.lane.partition,
        )

    def bad(self, reason: str) -> MessagesLost:
        """Return a MessagesLost that names this entry."""
        return _bad(self.lane, self.place, reason)


def open_batch(lane: LaneRef, place: Place, payload: memoryview, stamp: int) -> MessageBatch | None:
    """Return the messages of an entry, `None` for a control entry.

    *stamp* is that of the ledger's row: the timestamp of all its messages, 0 for their own.

    Raises:
        MessagesLost: the entry is damaged, or not written by a producer.
    """
    try:
        decoded = decode_messages(payload)
    except Corrupt as wrong:
        raise _bad(lane, place, str(wrong)) from wrong
    if decoded is None:
        return None
    return MessageBatch(lane, place, decoded.stamped(stamp) if stamp else decoded)


def message_header(
    lane: LaneRef, place: Place, payload: memoryview, stamp: int
) -> BatchHeader | None:
    """Return the header of an entry with messages, `None` for a control entry.

    *stamp* is as for open_batch().

    Raises:
        MessagesLost: the entry is damaged, or not written by a producer.
    """
    try:
        header = read_header(payload)
    except Corrupt as wrong:
        raise _bad(lane, place, str(wrong)) from wrong
    if header.kind != BatchKind.MESSAGES:
        return None
    return header.stamped(stamp) if stamp else header


def _bad(lane: LaneRef, place: Place, reason: str) -> MessagesLost:
    return MessagesLost.batch(
        lane.topic, ledger_id=place.ledger_id, entry_id=place.entry, reason=reason
    )


class MessageRange(NamedTuple):
    """Consecutive messages of a batch, from *start* to before *stop*."""

    batch: MessageBatch
    start: int
    stop: int

    @property
    def messages(self) -> list[Message]:
        """Return the messages as objects. The list of a whole batch is shared: do not change it."""
        found = self.batch.messages
        if self.stop - self.start == len(found):
            return found
        return found[self.start : self.stop]

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The messages as a RecordBatch; nothing is copied."""
        found = self.batch.record_batch()
        if self.stop - self.start == self.batch.count:
            return found
        return found.slice(self.start, self.stop - self.start)

    @property
    def before(self) -> Place:
        """The place before the first message."""
        return self.batch.before(self.start)

    @property
    def after(self) -> Place:
        """The place after the last message."""
        return self.batch.after(self.stop)


def record_batches(ranges: Sequence[MessageRange], *, rows_min: int = 1000) -> list[pa.RecordBatch]:
    """Return messages as RecordBatches, each of one topic, which its schema's metadata names.

    Neighbours are joined until they have *rows_min* rows; what has as many is not copied.
    """
    import pyarrow as pa

    found: list[pa.RecordBatch] = []
    for topic, of_topic in groupby(ranges, key=lambda each: each.batch.lane.topic):
        metadata = pa.KeyValueMetadata({"topic": topic})
        joined = _joined(of_topic, rows_min)
        found.extend(each.replace_schema_metadata(metadata) for each in joined)
    return found


def _joined(ranges: Iterable[MessageRange], rows_min: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = 0
    for each in ranges:
        waiting.append(each.record_batch)
        rows += each.stop - each.start
        if rows >= rows_min:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


class MergedBatch(NamedTuple):
    """The next messages: ranges of different lanes, in an order across them."""

    ranges: tuple[MessageRange, ...]
    order: list[int] | None
    """indexes into the ranges laid end to end; `None` for the ranges as they stand"""
    tick: int = 0
    """no message of it is above this tick, and none at or below the one before; 0 for no tick"""
    tick_before: int = 0
    """all messages up to this timestamp were taken before it"""

    @property
    def rows(self) -> int:
        """The number of messages in all ranges."""
        return sum(each.stop - each.start for each in self.ranges)

    def last(self, count: int, *, backward: bool) -> list[MessageRange]:
        """Return the last *count* messages as ranges, those of a lane as it is read."""
        if not count:
            return []
        if self.order is None:
            return self._between(self.rows - count, self.rows)
        ends = list(accumulate(each.stop - each.start for each in self.ranges))
        counts = Counter(bisect_right(ends, index) for index in self.order[-count:])
        found = [(self.ranges[index], left) for index, left in counts.items()]
        if backward:
            return [MessageRange(each.batch, each.start, each.start + left) for each, left in found]
        return [MessageRange(each.batch, each.stop - left, each.stop) for each, left in found]

    def unused(self, count: int, *, kept: int, backward: bool) -> list[MessageRange]:
        """Return the last *count* messages without the last *kept* of them; see last()."""
        if self.order is None:
            return self._between(self.rows - count, self.rows - kept)
        here = {each.batch.lane: each for each in self.last(kept, backward=backward)}
        found = []
        for each in self.last(count, backward=backward):
            lane = each.batch.lane
            found.append(_without(each, here[lane], backward) if lane in here else each)
        return [each for each in found if each.start < each.stop]

    def _between(self, first: int, last: int) -> list[MessageRange]:
        """Return the ranges of messages *first* to before *last*, of those that stand in order."""
        found, count = [], 0
        for each in self.ranges:
            start = each.start + max(first - count, 0)
            stop = min(each.stop, each.start + last - count)
            if start < stop:
                found.append(MessageRange(each.batch, start, stop))
            count += each.stop - each.start
        return found

    def messages(self) -> list[Message]:
        """Return the messages as objects, in order; of a single whole batch its own list."""
        if self.order is None and len(self.ranges) == 1:
            return self.ranges[0].messages
        found = list(chain.from_iterable(each.messages for each in self.ranges))
        return found if self.order is None else [found[index] for index in self.order]

    def record_batch(self) -> pa.RecordBatch:
        """Return them as a RecordBatch. A single range that is read forward is not copied."""
        if self.order is None and len(self.ranges) == 1:
            return self.ranges[0].record_batch
        import pyarrow as pa

        whole = pa.concat_batches([each.record_batch for each in self.ranges])
        return whole if self.order is None else whole.take(pa.array(self.order, pa.int32()))


def _without(whole: MessageRange, end: MessageRange, backward: bool) -> MessageRange:
    if backward:
        return MessageRange(whole.batch, end.stop, whole.stop)
    return MessageRange(whole.batch, whole.start, end.start)
