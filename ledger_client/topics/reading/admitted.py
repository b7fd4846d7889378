"""How far a plan is read when not all of it may be read at once.

Every lane gets its share of what is allowed, by what it has, and one entry at least: so none
waits for others. Entries are never cut.
"""

from __future__ import annotations

from ledger_client.topics.reading.places import LanePlace
from ledger_client.topics.reading.spans import Span, SpanPlan
from ledger_client.topics.reading.starting import Position

Lane = tuple[str, int, int]


def admit(
    plan: SpanPlan, *, messages_max: int | None = None, bytes_max: int | None = None
) -> Position:
    """Return where to end so that about so many messages and bytes are read; None: no limit."""
    share = min(
        1.0,
        _share(messages_max, sum(max(span.messages, 0) for span in plan.spans)),
        _share(bytes_max, plan.size),
    )
    if share >= 1.0:
        return plan.end
    lanes: dict[Lane, list[Span]] = {}
    for span in plan.spans:
        lanes.setdefault((span.topic, span.partition, span.lane), []).append(span)
    return tuple(
        _end(each, lanes.get((each.topic, each.partition, each.lane), []), share)
        for each in plan.end
    )


def _share(allowed: int | None, there: int) -> float:
    return 1.0 if allowed is None or there <= allowed else allowed / there


def _end(end: LanePlace, spans: list[Span], share: float) -> LanePlace:
    """Return the place in a lane up to which *share* of its entries are read."""
    left = max(int(share * sum(span.entries for span in spans)), 1)
    for span in spans:
        if left < span.entries:
            return end._replace(place=span.place(span.first_entry + left))
        left -= span.entries
        if not left and span is not spans[-1] and span.stop < 0:
            return end._replace(place=span.place(span.last_entry + 1))
    return end
