"""Topics in a few numbers each, taken by the housekeeper as it goes through them.

A cluster may have any number of topics, and a scrape must not grow with them: the first
TOPICS_MAX are told one by one, the larger ones first when there are more, and the others
together. A topic that is told by its name stays so until it is gone, lest sums jump.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.topics.keeping.holdings import Held, LaneHoldings
from ledger_client.topics.keeping.retention import Fate
from metadata.topics import TopicRecord

TOPICS_MAX = 200
OTHERS = "other"
"""Stands for all topics beyond TOPICS_MAX; no topic can have this name."""
LEDGER_STATES = ("prepared", "open", "closed")


class Topic(msgspec.Struct, kw_only=True):
    """What a topic holds. Of ledgers that are not closed, size and messages are not known.

    Times are Unix milliseconds, None when there is none.
    """

    topics: int = 0
    """that these figures are of"""
    ledgers: dict[str, int] = {}
    """by state"""
    lanes: int = 0
    writers: int = 0
    """lanes that somebody writes now"""
    size: int = 0
    """payload bytes of closed ledgers, one copy of each"""
    messages: int = 0
    oldest_ms: int | None = None
    """when the oldest ledger was made"""
    closed_ms: int | None = None
    """when the oldest closed ledger was closed: from then on retention counts"""
    keep_s: float | None = None
    """how long retention keeps closed ledgers; None: it does not go by age"""

    def add(self, other: Topic) -> None:
        """Take the figures of another topic in."""
        self.topics += other.topics
        self.ledgers = {
            state: self.ledgers.get(state, 0) + other.ledgers.get(state, 0)
            for state in LEDGER_STATES
        }
        self.lanes += other.lanes
        self.writers += other.writers
        self.size += other.size
        self.messages += other.messages
        self.oldest_ms = _earlier(self.oldest_ms, other.oldest_ms)
        self.closed_ms = _earlier(self.closed_ms, other.closed_ms)


class Removals(msgspec.Struct):
    """What retention took away, ever since this leader leads."""

    ledgers: int = 0
    size: int = 0


class TopicFigures:
    """All topics, as of the last whole round of the housekeeper.

    Attributes:
        seen: by name, at most TOPICS_MAX, and those beyond under OTHERS.
        removed: by the same names.
    """

    def __init__(self) -> None:
        self.seen: dict[str, Topic] = {}
        self.removed: dict[str, Removals] = {}
        self._round: dict[str, Topic] = {}

    def begin_round(self) -> None:
        """Forget what an unfinished round saw."""
        self._round = {}

    def note(self, topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> None:
        """Take note of a topic that was looked at."""
        self._round[topic.name] = _figures(topic, lanes)

    def note_removed(self, name: str, fates: Sequence[Fate]) -> None:
        """Count ledgers that retention removed."""
        label = name if name in self.seen else OTHERS
        removals = self.removed.setdefault(label, Removals())
        removals.ledgers += len(fates)
        removals.size += sum(fate.ledger.size for fate in fates)

    def end_round(self) -> None:
        """Tell what this round saw."""
        found = self._round
        told = [name for name in self.seen if name in found]
        new = sorted(found.keys() - self.seen.keys(), key=lambda name: found[name].size)
        while new and len(told) < TOPICS_MAX:
            told.append(new.pop())
        seen = {name: found[name] for name in told}
        if new:
            seen[OTHERS] = Topic()
            for name in new:
                seen[OTHERS].add(found[name])
        self.removed = {name: self.removed.get(name, Removals()) for name in {**seen, OTHERS: None}}
        self.seen = seen

    def clear(self) -> None:
        """Tell nothing any more."""
        self.seen, self.removed, self._round = {}, {}, {}


def _figures(topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> Topic:
    held = [each for lane in lanes for each in lane.ledgers]
    closed = [each.row for lane in lanes for each in lane.closed]
    return Topic(
        topics=1,
        ledgers=_by_state(held),
        lanes=len(lanes),
        writers=sum(lane.owner is not None for lane in lanes),
        size=sum(row.size for row in closed),
        messages=sum(row.messages for row in closed),
        oldest_ms=min((each.row.created_ms for each in held), default=None),
        closed_ms=min((row.closed_ms or row.created_ms for row in closed), default=None),
        keep_s=topic.retention.age_s if topic.retention.age_s >= 0 else None,
    )


def _by_state(held: Sequence[Held]) -> dict[str, int]:
    counts = dict.fromkeys(LEDGER_STATES, 0)
    for each in held:
        counts[each.row.state] += 1
    return counts


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
