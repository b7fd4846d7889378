"""The options of a topic reader, with units and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, TypedDict, get_args

import msgspec

from ledger_client.errors import BadTopic
from ledger_client.message_id import MessageId
from ledger_client.options import check_function, wrong_type
from ledger_client.topics.messages import ValueDecoder
from ledger_client.topics.positions import LanePlace, Version
from ledger_client.topics.times import Time, Timestamp
from metadata.time.timestamps import TIMESTAMP_MAX, first_at, split
from metadata.topics import TopicRecord

READ_AHEAD_SIZE = 32 << 20

Start = Literal["earliest", "latest"] | MessageId | Time | Version | Sequence[LanePlace]
"""A place in each lane that is read: an end, a time, a version, or a kept position. A MessageId
is a place in one lane, so with it only that lane is read."""


Order = Literal["arrival", "event-time", "timestamp"]
Consistency = Literal["strong", "bounded", "session", "eventual"]
"""What a read as of a moment sees at least: everything acknowledged before it began; that but for
the last seconds; what this client was acknowledged itself; or what is known without a wait."""
AsOf = Timestamp | datetime
UNTIMED = "its messages have no timestamps, because it is without timesync"
STALENESS_S = 5.0
STALENESS_S_MAX = 1e9


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The range of some topics to read, and the order of its messages."""

    start: Start | None = None
    """where to begin; `None` for the earliest message, in reverse for the latest"""
    inclusive: bool = True
    """True to read the message or time that *start* names"""
    end: Start | None = None
    """where to end; `None` for the messages there are when reading begins"""
    end_inclusive: bool = True
    """True to read the message or time that *end* names"""
    starting_cut: str = ""
    """Begin after what this cut has; a lane that is not in it is read from its beginning."""
    ending_cut: str = ""
    """End with what this cut has, whatever is written later."""
    partitions: Sequence[int] | None = None
    """read only these partitions"""
    lanes: Sequence[int | str] | None = None
    """read only lanes with these numbers or names; "" selects those without a name"""
    follow: bool = False
    """wait for new messages and new lanes; stop at *end* if it is given"""
    reverse: bool = False
    """read backward, from *start* or the latest message"""
    order: Order = "arrival"
    """"arrival": each lane in its order, several lanes as they come. "event-time": all lanes merged
    by event time, equal times by topic, lane name, partition and lane; the topics must be ordered
    by event time. "timestamp": one order of all messages, which is the same for every reader and
    on each replay; the topics must have timesync. Messages come once the cluster knows that none
    with a lower timestamp follows, about 0.3 s after they were sent."""
    on_gap: Literal["raise", "skip"] = "raise"
    """"skip": removed messages are skipped and noted in the reader's *gaps*"""
    give_up_s: float | None = None
    """A lane that is followed raises ReplicasUnavailable or MetadataUnavailable after so many
    seconds without bookies or metadata; by default it waits for them, however long."""
    idle_s: float = 1.0
    """A lane silent for this many seconds stops holding back the merge by event time; its
    later messages arrive out of order."""
    read_ahead_size: int = READ_AHEAD_SIZE
    """bytes that all lanes together may hold in memory"""
    on_caught_up: Callable[[], None] | None = None
    """called once, between the last message that was there when reading began and the next one"""
    consistency: Consistency | None = None
    """by timestamp, read what there is at a moment, and end there. "strong": all that was
    acknowledged before reading began. "bounded": all but what is newer than *staleness_s*.
    "session": all that this client's producers were acknowledged. "eventual": what the newest tick
    covers, without a wait"""
    staleness_s: float = STALENESS_S
    """how old the moment of a "bounded" read may be"""
    as_of: AsOf | None = None
    """by timestamp, read no message that is later than this; a time needs a time zone"""
    compacted: bool = False
    """Read only the latest message per key from the compacted beginning of each lane (quire
    compact), with its original id, then everything that came later."""
    value_decoder: ValueDecoder | None = None
    """Called with the bytes of a value when `Message.decoded` is read, which returns the result.
    `Message.value` stays bytes, and so do the columns of Arrow batches, and of Spark.
    `ledger_client.values` has decoders."""

    @property
    def begin(self) -> Start:
        """Where to begin: *start*, or the end of the lanes from which everything is read."""
        if self.start is not None:
            return self.start
        return "latest" if self.reverse else "earliest"

    @property
    def names_cuts(self) -> bool:
        """True if the range begins or ends at a cut."""
        return bool(self.starting_cut or self.ending_cut)

    @property
    def is_as_of(self) -> bool:
        """True if what there is at a moment is read."""
        return self.consistency is not None or self.as_of is not None

    @property
    def follows_lanes(self) -> bool:
        """True if new ledgers and lanes are looked for. A tick may wait for them."""
        return self.follow or self.order == "timestamp"

    def check(self, topics: Sequence[TopicRecord]) -> None:
        """Raise BadTopic for options that contradict each other or do not suit the topics.

        Raises TypeError for a decoder that is no function.
        """
        reason = wrong_type(self)
        if reason is not None:
            raise BadTopic(reason, topic=topics[0].name if topics else "")
        check_function(self.value_decoder, "value_decoder")
        for topic in topics:
            self._check_suits(topic)
        timed = self.order == "timestamp"
        wrong = {
            "a reader of no topic": not topics,
            "nothing can be followed in reverse": self.reverse and self.follow,
            "a version cannot be followed: versions of new lanes are unrelated to it": (
                self.follow and isinstance(self.start, Version)
            ),
            f"idle_s {self.idle_s} is negative": self.idle_s < 0,
            f"order {self.order!r} is neither arrival, event-time nor timestamp": (
                self.order not in get_args(Order)
            ),
            "nothing is read by timestamp in reverse": timed and self.reverse,
            "what compaction left cannot be read by timestamp": timed and self.compacted,
            'consistency and as_of need order="timestamp"': self.is_as_of and not timed,
            "what is read as of a moment ends there: it takes no end and is not followed": (
                self.is_as_of and (self.follow or self.end is not None or self.ending_cut != "")
            ),
            "a message is a place in one lane; read by timestamp from a time or a position": (
                timed and isinstance(self.start, MessageId)
            ),
            "a message is a place in one lane; read by timestamp to a time or a position": (
                timed and isinstance(self.end, MessageId)
            ),
            "a topic that is followed by timestamp ends at a Timestamp": (
                timed and self.follow and not isinstance(self.end, Timestamp | None)
            ),
            "start and starting_cut exclude each other": (
                self.start is not None and self.starting_cut != ""
            ),
            "end and ending_cut exclude each other": self.end is not None and self.ending_cut != "",
            "what compaction leaves of a cut changes; read it without compacted": (
                self.compacted and self.names_cuts
            ),
            f"on_gap {self.on_gap!r} is neither raise nor skip": (
                self.on_gap not in {"raise", "skip"}
            ),
        }
        name = topics[0].name if topics else ""
        for message, holds in wrong.items():
            if holds:
                raise BadTopic(message, topic=name)
        if self.is_as_of:
            check_moment(name, self.consistency, self.as_of, self.staleness_s)

    def _check_suits(self, topic: TopicRecord) -> None:
        """Raise BadTopic for options that do not suit this topic."""
        for partition in self.partitions or ():
            if partition not in topic.partition_indexes:
                raise BadTopic(f"there is no partition {partition}", topic=topic.name)
        if self.order == "event-time" and topic.order != "event-time":
            raise BadTopic(
                "it is not ordered by event time, so its lanes cannot be merged by it; "
                'read with order="arrival"',
                topic=topic.name,
            )
        if self.order == "timestamp" and not topic.timesync:
            raise BadTopic(f'{UNTIMED}; read with order="arrival"', topic=topic.name)
        for place in (self.start, self.end):
            check_timed(place, topic)


def check_timed(place: Start | None, topic: TopicRecord) -> None:
    """Raise BadTopic for a timestamp as a place in a topic whose messages have none."""
    if isinstance(place, Timestamp) and not topic.timesync:
        raise BadTopic(f"{UNTIMED}; name a publish time instead", topic=topic.name)


def check_moment(
    topic: str, consistency: Consistency | None, as_of: AsOf | None, staleness_s: float
) -> None:
    """Raise BadTopic for a moment that is none."""
    levels = get_args(Consistency)
    if consistency is not None and consistency not in levels:
        raise BadTopic(f"consistency {consistency!r} is none of {', '.join(levels)}", topic=topic)
    if not 0 <= staleness_s <= STALENESS_S_MAX:
        reason = f"staleness_s {staleness_s} is not 0 to {STALENESS_S_MAX:g}"
        raise BadTopic(reason, topic=topic)
    if not isinstance(as_of, Timestamp | datetime | None):
        raise BadTopic(f"as_of {as_of!r} is neither a Timestamp nor a datetime", topic=topic)
    try:
        split(timestamp_of(as_of))
    except ValueError as wrong:
        raise BadTopic(f"as_of: {wrong}", topic=topic) from wrong


def timestamp_of(as_of: AsOf | None) -> int:
    """Return the last timestamp that is visible at a moment. Raises ValueError for a bad time."""
    if as_of is None:
        return TIMESTAMP_MAX
    return first_at(as_of) if isinstance(as_of, datetime) else as_of.value


class ReadSettings(TypedDict, total=False):
    """ReadOptions as keyword arguments. Generated by tests/support/surfaces.py."""

    start: Start | None
    inclusive: bool
    end: Start | None
    end_inclusive: bool
    starting_cut: str
    ending_cut: str
    partitions: Sequence[int] | None
    lanes: Sequence[int | str] | None
    follow: bool
    reverse: bool
    order: Order
    on_gap: Literal["raise", "skip"]
    give_up_s: float | None
    idle_s: float
    read_ahead_size: int
    on_caught_up: Callable[[], None] | None
    consistency: Consistency | None
    staleness_s: float
    as_of: AsOf | None
    compacted: bool
    value_decoder: ValueDecoder | None
