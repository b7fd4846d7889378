"""The state that the next writer of a lane must know, and the control entry that keeps it.

A control entry (kind LANE_STATE) is the first of each ledger and is written again from time to
time. The next writer reads the last one and the few entries after it. So it knows the last event
time, the last sequence number of each producer, and the figures of the ledger.

A ledger that a job staged has only one, as its last entry. It covers that ledger alone, because
the ledger's place in the lane was not known yet. The lane's state before it is in LaneRecord, or
in a ledger without messages that follows.

A producer that was idle for 6 hours when another one wrote is forgotten; so are the idlest ones
beyond 10 000. All times are the store's (metadata/clock.py): by the clock of a host that is hours
ahead, every other producer would seem idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ledger_client.errors import MetadataBroken
from ledger_client.ledgers.records import Reason
from ledger_client.topics.lanes.routes import Route, merged
from metadata.topics import LaneLedger
from native import batch as native_batch
from native.batch import BatchHeader, BatchKind
from native.errors import Corrupt, TooLarge


class SealedBatch(msgspec.Struct, frozen=True):
    """An encoded batch of messages. Times are nanoseconds; *size* is bytes of the payload."""

    payload: bytes
    count: int
    size: int
    first_event_time: int | None = None
    """the lowest"""
    last_event_time: int | None = None
    """the greatest"""
    last_timestamp: int = 0
    """the greatest, 0 for none"""
    producer: str = ""
    sequence: int = -1
    """number of its last message; -1 if it does not number messages"""

    @classmethod
    def of(cls, payload: bytes, header: BatchHeader | None = None) -> SealedBatch:
        """Return the batch that *payload* holds. Raises native.errors.Corrupt."""
        header = header or native_batch.read_header(payload)
        return cls(
            payload=payload,
            count=header.count,
            size=len(payload),
            first_event_time=header.event_time_min,
            last_event_time=header.event_time_max,
            last_timestamp=header.last_timestamp,
            producer=header.producer,
            sequence=header.last_sequence,
        )

    def stamped(self, first: int) -> SealedBatch:
        """Return the batch with consecutive timestamps from *first* on."""
        return msgspec.structs.replace(
            self,
            payload=native_batch.stamp(self.payload, first),
            last_timestamp=first + self.count - 1,
        )


def first_timestamp(payload: bytes) -> int:
    """Return the lowest timestamp of a batch, 0 for none. Decodes the batch."""
    timestamps = native_batch.decode(payload).columns.timestamps
    return 0 if timestamps is None else min((t for t in timestamps if t), default=0)


def timestamps_after(last: int, batches: Iterable[SealedBatch], topic: str) -> int:
    """Return the last timestamp of a lane once it has *batches*; *last*: without them.

    Readers rely on it that timestamps of a lane rise.

    Raises:
        MetadataBroken: they do not.
    """
    for batch in batches:
        if not batch.last_timestamp:
            continue
        first = batch.last_timestamp + 1 - batch.count
        if first <= last:
            raise MetadataBroken(
                f"the oracle allotted timestamp {first}, but a lane of {topic} has {last}: "
                "its time was set back"
            )
        last = batch.last_timestamp
    return last


PRODUCERS_MAX = 10_000
NEWCOMERS_MAX = 16
"""Producers that sent nothing yet, whose routes are kept."""
IDLE_S = 360 * 60
"""A producer that sent nothing for so long may be forgotten, and starts over."""


class Figures(msgspec.Struct):
    """Counts and times of a ledger. Event times are nanoseconds; a timestamp of 0 means none."""

    messages: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    first_event_time: int | None = None
    last_event_time: int | None = None
    named_ms: int = 0
    """when a producer with a name last sent, in this ledger or before it; 0: never"""

    def note(self, batch: SealedBatch) -> None:
        """Count a batch of the ledger."""
        self.messages += batch.count
        if batch.last_timestamp:
            self.first_timestamp = self.first_timestamp or first_timestamp(batch.payload)
            self.last_timestamp = max(self.last_timestamp, batch.last_timestamp)
        if batch.first_event_time is not None:
            self.first_event_time = lower(self.first_event_time, batch.first_event_time)
            self.last_event_time = greater(self.last_event_time, batch.last_event_time)


class LaneState(msgspec.Struct):
    """A lane up to some entry of its newest ledger."""

    epoch: int = 0
    base_version: int = 0
    """version of the ledger's first entry"""
    last_event_time: int | None = None
    """the greatest of the lane"""
    producers: dict[str, tuple[int, int]] = {}
    """by name: the sequence number of the last message, and the store's time then in ms"""
    figures: Figures = msgspec.field(default_factory=Figures)
    """figures of the ledger up to here"""
    routes: dict[str, list[Route]] = {}
    """by name: the counts of partitions that keys were routed over, each from a number on"""

    def note(self, batch: SealedBatch, now_ms: int) -> None:
        """Count the next batch: its messages, event time, and its producer's number."""
        self.figures.note(batch)
        if batch.last_event_time is not None:
            self.last_event_time = greater(self.last_event_time, batch.last_event_time)
        if batch.producer and batch.sequence >= 0:
            known, _ = self.producers.get(batch.producer, (-1, 0))
            self.producers[batch.producer] = (max(known, batch.sequence), now_ms)
            self.figures.named_ms = max(self.figures.named_ms, now_ms)

    def learn(self, other: LaneState, producer: str) -> None:
        """Take over the *producer*'s number from another lane's state if it is greater."""
        known, there = self.producers.get(producer), other.producers.get(producer)
        if there is not None and (known is None or known[0] < there[0]):
            self.producers[producer] = there
            self.figures.named_ms = max(self.figures.named_ms, there[1])
        routes = merged(state.routes.get(producer, []) for state in (self, other))
        if routes:
            self.routes[producer] = routes

    def last_sequence(self, producer: str) -> int:
        """Return the sequence number of the producer's last message, -1 for none."""
        return self.producers.get(producer, (-1, 0))[0]

    def copy(self) -> LaneState:
        """Return a copy that shares nothing that note() changes."""
        figures = msgspec.structs.replace(self.figures)
        return msgspec.structs.replace(
            self, producers=dict(self.producers), figures=figures, routes=dict(self.routes)
        )

    def begin(self, *, epoch: int, base_version: int) -> None:
        """Begin the next ledger: its figures count from zero."""
        self.epoch, self.base_version = epoch, base_version
        self.figures = Figures(named_ms=self.figures.named_ms)

    def forget(self, now_ms: int, producers_max: int = PRODUCERS_MAX) -> None:
        """Forget producers that were idle for long, and the idlest beyond *producers_max*."""
        # Measured from the lane's newest message: a clock set ahead makes no producer idle.
        newest_ms = max((noted for _, noted in self.producers.values()), default=now_ms)
        since_ms = min(now_ms, newest_ms) - IDLE_S * 1000
        kept = {name: last for name, last in self.producers.items() if last[1] >= since_ms}
        if len(kept) > producers_max:
            newest = sorted(kept, key=lambda name: kept[name][1], reverse=True)
            kept = {name: kept[name] for name in newest[:producers_max]}
        self.producers = kept
        others = [name for name in self.routes if name not in kept][-NEWCOMERS_MAX:]
        self.routes = {name: self.routes[name] for name in [*kept, *others] if name in self.routes}

    def encode(self, now_ms: int) -> bytes:
        """Return the control entry, without idle producers and the idlest if it would not fit."""
        self.forget(now_ms)
        while True:
            body = msgspec.msgpack.encode(self)
            try:
                return native_batch.encode_control(
                    BatchKind.LANE_STATE,
                    body,
                    epoch=self.epoch,
                    created_ms=now_ms,
                    last_timestamp=self.figures.last_timestamp,
                )
            except TooLarge:  # very long producer names
                self.forget(now_ms, len(self.producers) // 2)

    @classmethod
    def decode(cls, payload: bytes) -> LaneState:
        """Return the state in a control entry. Raises native.errors.Corrupt."""
        header, body = native_batch.decode_control(payload)
        if header.kind != BatchKind.LANE_STATE:
            raise Corrupt(f"an entry of kind {header.kind} is not a lane's state")
        try:
            return msgspec.msgpack.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise Corrupt(f"a lane's state: {wrong}") from wrong


class End(msgspec.Struct, frozen=True):
    """The end of a ledger of a lane."""

    last_entry: int
    length: int
    """payload bytes"""
    figures: Figures
    is_sealed: bool
    """its record says so already"""
    reason: Reason | None = None
    """a reason to check for missing copies"""

    def close(self, row: LaneLedger, now_ms: int) -> LaneLedger:
        """Return the ledger's row, closed now, by the store's time."""
        figures = self.figures
        return msgspec.structs.replace(
            row,
            state="closed",
            closed_ms=now_ms,
            entries=self.last_entry + 1,
            messages=figures.messages,
            size=self.length,
            first_timestamp=figures.first_timestamp,
            last_timestamp=figures.last_timestamp,
            first_event_time=figures.first_event_time,
            last_event_time=figures.last_event_time,
            named_ms=figures.named_ms,
        )


class LaneEnd(NamedTuple):
    """A lane as its last writer left it. Its last ledger is closed; the row may not say so."""

    state: LaneState
    next_version: int
    unclosed: LaneLedger | None
    """the row that must be closed at *end*"""
    end: End | None


def greater(one: int | None, other: int | None) -> int | None:
    """Return the greater of two times; `None` counts as missing."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def lower(one: int | None, other: int | None) -> int | None:
    """Return the lower of two times; `None` counts as missing."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
