"""The range of a replay, as it was asked for, and fixed to places in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ledger_client.replay.errors import RangeNotKept
from ledger_client.replay.source import mark_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.span_plan import plan_spans
from ledger_client.topics.reading.spans import Span
from ledger_client.topics.reading.starting import Start
from ledger_client.topics.reading.times import TIMES, EventTime, PublishTime, Time
from metadata.replays import LaneMark
from metadata.topics import LaneLedger, TopicRecord


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A range of topics; places are those of TopicClient.topic_reader."""

    start: Start | None = None
    inclusive: bool = True
    end: Start | None = None
    end_inclusive: bool = True
    partitions: Sequence[int] | None = None
    lanes: Sequence[int] | None = None
    on_gap: Literal["raise", "skip"] = "raise"

    def __str__(self) -> str:
        """Return the same text for the same range only."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        usual = {field.name: field.default for field in msgspec.structs.fields(Wanted)}
        changed = [f"{name}={value!r}" for name, value in said.items() if value != usual[name]]
        return ", ".join(changed) or "everything"


class Fixed(NamedTuple):
    """A range that does not move, as what does not hold a message is left out."""

    begin: list[LaneMark]
    end: list[LaneMark]

    @property
    def entries(self) -> int:
        """How many entries there are, nearly."""
        pairs = zip(self.begin, self.end, strict=True)
        return sum(max(end.version - begin.version, 0) for begin, end in pairs)


async def fix_range(client: TopicClient, topics: Sequence[TopicRecord], wanted: Wanted) -> Fixed:
    """Return where the range begins and ends in each lane, by now.

    Raises:
        NoSuchTopic: a topic is gone.
        BadTopic: there is no such place.
        Gap, RangeNotKept: messages of the range were removed, or may have been.
        LedgerError: a place could not be looked for.
    """
    plan = await plan_spans(
        client,
        [topic.name for topic in topics],
        start=wanted.start,
        inclusive=wanted.inclusive,
        end=wanted.end,
        end_inclusive=wanted.end_inclusive,
        partitions=wanted.partitions,
        lanes=wanted.lanes,
        on_gap=wanted.on_gap,
    )
    first: dict[LaneRef, Span] = {}
    for span in plan.spans:
        first.setdefault(span.lane_ref, span)
    if isinstance(wanted.start, TIMES) and wanted.on_gap == "raise":
        for span in first.values():
            await _check_kept(client, span, wanted.start)
    ends = {(p.topic, p.partition, p.lane): Place(*p.place) for p in plan.end}
    lanes = sorted(first)
    return Fixed(
        [mark_of(lane, first[lane].begin) for lane in lanes],
        [mark_of(lane, ends[lane.topic, lane.partition, lane.lane]) for lane in lanes],
    )


async def _check_kept(client: TopicClient, span: Span, start: Time) -> None:
    """Raise RangeNotKept if the lane had older messages that may have been in the range."""
    timeout_s = client.options.metadata_timeout_s
    rows = LedgerRows(client.store, span.lane_ref, timeout_s=timeout_s)
    oldest = await rows.first_from(0)
    if oldest is None or oldest.number == 0 or span.number > oldest.number:
        return  # nothing was removed, or the range begins behind what was
    if span.first_entry > 1 or span.skip or _surely_before(oldest.ledger, start):
        return  # the first entry of a ledger is its lane's state
    first = f"ledger {oldest.ledger.ledger_id}"
    raise RangeNotKept(span.topic, partition=span.partition, lane=span.lane, first=first)


def _surely_before(oldest: LaneLedger, start: Time) -> bool:
    """Whether what was removed in front of a ledger is earlier than *start*."""
    if isinstance(start, PublishTime):
        return oldest.created_ms <= start.ms
    if isinstance(start, EventTime):
        return oldest.first_event_time is not None and oldest.first_event_time <= start.ns
    return 0 < oldest.first_timestamp <= start.value
