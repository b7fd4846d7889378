"""What the next writer of a lane has to know, and the control entry that keeps it.

A control entry (kind LANE_STATE) is the first of each ledger, and comes again from time
to time: then the next writer reads it and the few entries after it, and knows the last
event time, the last sequence number of each producer and the figures of the ledger.

A ledger that a job staged has one alone, as its last entry: it tells of that ledger, as where
in the lane it would come was not known yet. What the lane knew before is in LaneRecord, or in a
ledger without messages that follows it.

Producers that were idle for 6 hours when another one wrote are forgotten, and so are the idlest
beyond 10 000. All times are the store's (metadata/clock.py): by the clock of a host that is hours
ahead, everybody else would be idle.
"""

from __future__ import annotations

import msgspec

from ledger_client.topics.lanes.sealed_batch import SealedBatch, first_timestamp
from ledger_client.topics.producing.routes import Route, merged
from native import batch as native_batch
from native.batch import BatchKind
from native.errors import Corrupt, TooLarge

PRODUCERS_MAX = 10_000
NEWCOMERS_MAX = 16
"""Producers that sent nothing yet, of which the routes are known."""
IDLE_S = 360 * 60
"""A producer that sent nothing for so long may begin anew."""


class Figures(msgspec.Struct):
    """What a ledger holds. Event times are nanoseconds; timestamps 0: none has one."""

    messages: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    first_event_time: int | None = None
    last_event_time: int | None = None
    named_ms: int = 0
    """when a producer with a name sent last, in this ledger or before it; 0: never"""

    def note(self, batch: SealedBatch) -> None:
        """Count a batch of the ledger."""
        self.messages += batch.count
        if batch.last_timestamp:
            self.first_timestamp = self.first_timestamp or first_timestamp(batch.payload)
            self.last_timestamp = max(self.last_timestamp, batch.last_timestamp)
        self.first_event_time = lower(self.first_event_time, batch.first_event_time)
        self.last_event_time = greater(self.last_event_time, batch.last_event_time)


class LaneState(msgspec.Struct):
    """A lane up to some entry of its newest ledger."""

    epoch: int = 0
    base_version: int = 0
    """of the ledger"""
    last_event_time: int | None = None
    """the greatest of the lane"""
    producers: dict[str, tuple[int, int]] = {}
    """by name: the sequence number of the last message, and when it was noted"""
    figures: Figures = msgspec.field(default_factory=Figures)
    """of the ledger up to here"""
    routes: dict[str, list[Route]] = {}
    """by name: from which of the producer's numbers on keys went over how many partitions"""

    def note(self, batch: SealedBatch, now_ms: int) -> None:
        """Count a batch that follows."""
        self.figures.note(batch)
        self.last_event_time = greater(self.last_event_time, batch.last_event_time)
        if batch.producer and batch.sequence >= 0:
            known, _ = self.producers.get(batch.producer, (-1, 0))
            self.producers[batch.producer] = (max(known, batch.sequence), now_ms)
            self.figures.named_ms = max(self.figures.named_ms, now_ms)

    def learn(self, other: LaneState, producer: str) -> None:
        """Take the *producer*'s number from the state of another lane, if it is greater."""
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
        """Return one that changes by itself."""
        figures = msgspec.structs.replace(self.figures)
        return msgspec.structs.replace(
            self, producers=dict(self.producers), figures=figures, routes=dict(self.routes)
        )

    def begin(self, *, epoch: int, base_version: int) -> None:
        """Go on in the next ledger."""
        self.epoch, self.base_version = epoch, base_version
        self.figures = Figures(named_ms=self.figures.named_ms)

    def forget(self, now_ms: int, producers_max: int = PRODUCERS_MAX) -> None:
        """Forget who was idle for long, and the idlest beyond *producers_max*."""
        # Idle by the lane's own time: a clock that is set ahead is nobody's idleness.
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
        """Return the control entry, and forget what it does not tell."""
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
            except TooLarge:  # names of the length of letters
                self.forget(now_ms, len(self.producers) // 2)

    @classmethod
    def decode(cls, payload: bytes) -> LaneState:
        """Return the state that a control entry tells. Raises native.errors.Corrupt."""
        header, body = native_batch.decode_control(payload)
        if header.kind != BatchKind.LANE_STATE:
            raise Corrupt(f"an entry of kind {header.kind} is no lane's state")
        try:
            return msgspec.msgpack.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise Corrupt(f"a lane's state: {wrong}") from wrong


def greater(one: int | None, other: int | None) -> int | None:
    """Return the greater of two times, of which any may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def lower(one: int | None, other: int | None) -> int | None:
    """Return the lower of two times, of which any may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
