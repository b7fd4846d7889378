"""The options of a replay, and its range fixed to places in lanes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict

import msgspec

from ledger_client.errors import BadTopic, RangeNotKept
from ledger_client.jobs.replay.log import ReplayProgress
from ledger_client.jobs.replay.source import mark_of
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.ranges import LedgerRange
from ledger_client.topics.times import TIMES, EventTime, PublishTime, Time
from metadata.replays import LaneMark, Order
from metadata.topics import LaneLedger, TopicRecord

ORDERS: tuple[Order, ...] = ("event-time", "time", "arrival")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class ReplaySettings(TypedDict, total=False):
    """The keyword arguments of Client.replay; ReplayOptions has their meaning and defaults."""

    start: Start | None
    inclusive: bool
    end: Start | None
    end_inclusive: bool
    partitions: Sequence[int] | None
    lanes: Sequence[int] | None
    on_gap: Literal["raise", "skip"]
    order: Order | None
    speed: float
    name: str
    restart: bool
    keep_ids: bool
    verify: bool
    range_text: str
    on_progress: Callable[[ReplayProgress], None] | None


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a replay; check() raises BadTopic if they exclude each other."""

    start: Start | None = None
    """Where to begin. Default: the earliest message."""
    inclusive: bool = True
    """Include the message or time that *start* names."""
    end: Start | None = None
    """Where to end. Default: the end of what is there when the replay begins."""
    end_inclusive: bool = True
    """Include the message or time that *end* names."""
    partitions: Sequence[int] | None = None
    """Replay only these partitions."""
    lanes: Sequence[int] | None = None
    """Replay only the lanes with these numbers."""
    on_gap: Literal["raise", "skip"] = "raise"
    """What happens where retention or a purge removed messages."""
    order: Order | None = None
    """How lanes are merged: by event time, by timestamp or publish time, or entry by entry in
    turn (arrival). Default: event-time for topics ordered by it, else time."""
    speed: float = 0.0
    """1 keeps the original pace, 10 is ten times as fast, 0 is full speed."""
    name: str = ""
    """Name to resume the replay by. Default: derived from sources, range and target."""
    restart: bool = False
    """Start over, even if the replay was begun or finished before."""
    keep_ids: bool = False
    """Store each message's original id and publish time in headers."""
    verify: bool = False
    """Read the target back and compare checksums."""
    range_text: str = ""
    """The range as the user wrote it; part of what identifies the replay."""
    on_progress: Callable[[ReplayProgress], None] | None = None
    """Called with the progress after every step."""

    @property
    def wanted(self) -> ReplayRange:
        """The range, without the other options."""
        return ReplayRange(
            start=self.start,
            inclusive=self.inclusive,
            end=self.end,
            end_inclusive=self.end_inclusive,
            partitions=self.partitions,
            lanes=self.lanes,
            on_gap=self.on_gap,
        )

    def order_of(self, topics: Sequence[TopicRecord]) -> Order:
        """Return the order, by default event time if all topics are ordered by it, else time."""
        if self.order is not None:
            return self.order
        ordered = all(topic.order == "event-time" for topic in topics)
        return "event-time" if ordered else "time"

    def describe(self) -> str:
        """Return a text that is equal for equal ranges and forms of messages; it is stored."""
        return f"{self.range_text or self.wanted}{'; ids kept' if self.keep_ids else ''}"

    def name_of(self, topics: Sequence[TopicRecord], target: str) -> str:
        """Return the replay's name; the default is unique to its sources, options and target."""
        if self.name:
            return self.name
        text = "\n".join(
            [*(t.name for t in topics), self.order_of(topics), self.describe(), target]
        )
        readable = _NOT_IN_NAMES.sub(".", topics[0].name)[:100]
        return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def check(self, topics: Sequence[TopicRecord]) -> None:
        """Raise BadTopic if the options are invalid, in general or for these topics."""
        if self.order == "event-time":
            self._check_event_times(topics)
        names = [topic.name for topic in topics]
        wrong = {
            "a replay of no topic": not topics,
            "a topic is named twice": len(set(names)) < len(names),
            f"order {self.order!r} is none of {', '.join(ORDERS)}": (
                self.order not in {None, *ORDERS}
            ),
            f"speed {self.speed} is neither 0, for full speed, nor above": (
                not 0 <= self.speed < math.inf
            ),
        }
        for message, holds in wrong.items():
            if holds:
                raise BadTopic(message, topic=names[0] if names else "")

    @staticmethod
    def _check_event_times(topics: Sequence[TopicRecord]) -> None:
        for topic in topics:
            if topic.order != "event-time":
                raise BadTopic(
                    "it is not ordered by event time, so its lanes cannot be merged by it; "
                    "choose the order time or arrival",
                    topic=topic.name,
                )


class ReplayRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of topics, with places as for Client.reader."""

    start: Start | None = None
    inclusive: bool = True
    end: Start | None = None
    end_inclusive: bool = True
    partitions: Sequence[int] | None = None
    lanes: Sequence[int] | None = None
    on_gap: Literal["raise", "skip"] = "raise"

    def __str__(self) -> str:
        """Return a text that is equal for equal ranges only; it is stored."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        usual = {field.name: field.default for field in msgspec.structs.fields(ReplayRange)}
        changed = [f"{name}={value!r}" for name, value in said.items() if value != usual[name]]
        return ", ".join(changed) or "everything"


class FixedRange(NamedTuple):
    """A range fixed to a mark in each lane; lanes without messages in it are left out."""

    begin: list[LaneMark]
    end: list[LaneMark]

    @property
    def entries(self) -> int:
        """The approximate number of entries, from the versions of the marks."""
        pairs = zip(self.begin, self.end, strict=True)
        return sum(max(end.version - begin.version, 0) for begin, end in pairs)


async def fix_range(
    context: TopicContext, topics: Sequence[TopicRecord], wanted: ReplayRange
) -> FixedRange:
    """Return the marks at which the range begins and ends in each lane as of now.

    Raises:
        NoSuchTopic: a topic is gone.
        BadTopic: a place does not exist.
        Gap, RangeNotKept: messages of the range were removed, or may have been.
        LedgerError: a place could not be searched for.
    """
    plan = await plan_read(
        context,
        [topic.name for topic in topics],
        start=wanted.start,
        inclusive=wanted.inclusive,
        end=wanted.end,
        end_inclusive=wanted.end_inclusive,
        partitions=wanted.partitions,
        lanes=wanted.lanes,
        on_gap=wanted.on_gap,
    )
    first: dict[LaneRef, LedgerRange] = {}
    for ledger_range in plan.ranges:
        first.setdefault(ledger_range.lane_ref, ledger_range)
    if isinstance(wanted.start, TIMES) and wanted.on_gap == "raise":
        for ledger_range in first.values():
            await _check_kept(context, ledger_range, wanted.start)
    ends = {(p.topic, p.partition, p.lane): Place(*p.place) for p in plan.end}
    lanes = sorted(first)
    return FixedRange(
        [mark_of(lane, first[lane].begin) for lane in lanes],
        [mark_of(lane, ends[lane.topic, lane.partition, lane.lane]) for lane in lanes],
    )


async def _check_kept(context: TopicContext, ledger_range: LedgerRange, start: Time) -> None:
    """Raise RangeNotKept if messages removed from the lane may have been in the range."""
    timeout_s = context.options.metadata_timeout_s
    rows = LedgerRows(context.store, ledger_range.lane_ref, timeout_s=timeout_s)
    oldest = await rows.first_from(0)
    if oldest is None or oldest.number == 0 or ledger_range.number > oldest.number:
        return  # nothing was removed, or the range begins after it
    if ledger_range.first_entry > 1 or ledger_range.skip or _surely_before(oldest.ledger, start):
        return  # the first entry of a ledger is its lane's state
    first = f"ledger {oldest.ledger.ledger_id}"
    raise RangeNotKept(
        f"lane {ledger_range.lane} of partition {ledger_range.partition}: the range begins before "
        f"{first}, and messages before it were removed; --skip-gaps takes the rest",
        topic=ledger_range.topic,
    )


def _surely_before(oldest: LaneLedger, start: Time) -> bool:
    """Whether all messages removed before the oldest ledger are earlier than *start*."""
    if isinstance(start, PublishTime):
        return oldest.created_ms <= start.ms
    if isinstance(start, EventTime):
        return oldest.first_event_time is not None and oldest.first_event_time <= start.ns
    return 0 < oldest.first_timestamp <= start.value
