"""A few numbers about each topic, noted by the housekeeper on its rounds.

A cluster may have any number of topics, but a scrape must stay small. So at most TOPICS_MAX
topics are published by name, the largest first, and the others as one sum. A topic keeps
its name in the metrics until it is deleted, lest the sums jump.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings
from ledger_client.topics.retention.retention import Fate
from metadata.topics import TopicRecord

TOPICS_MAX = 200
OTHERS = "other"
"""The label for all topics beyond TOPICS_MAX; no topic can have this name."""
LEDGER_STATES = ("prepared", "open", "closed")


class TopicSnapshot(msgspec.Struct, kw_only=True):
    """The contents of a topic. Sizes and messages count closed ledgers only.

    Times are Unix milliseconds, or `None`.
    """

    topics: int = 0
    """number of topics in these figures"""
    ledgers: dict[str, int] = {}
    """by state"""
    lanes: int = 0
    writers: int = 0
    """lanes with a writer"""
    size: int = 0
    """payload bytes of closed ledgers, one copy of each"""
    messages: int = 0
    oldest_ms: int | None = None
    """when the oldest ledger was created"""
    closed_ms: int | None = None
    """when the oldest closed ledger was closed; retention counts from there"""
    keep_s: float | None = None
    """how long retention keeps closed ledgers; `None` without an age limit"""

    def add(self, other: TopicSnapshot) -> None:
        """Add the figures of another topic to these."""
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
    """What retention has removed since this leader's term began."""

    ledgers: int = 0
    size: int = 0


class TopicFigures:
    """All topics as of the housekeeper's last complete round.

    Attributes:
        seen: at most TOPICS_MAX topics by name, and the sum of the others under OTHERS.
        removed: what retention removed, by the same names.
    """

    def __init__(self) -> None:
        self.seen: dict[str, TopicSnapshot] = {}
        self.removed: dict[str, Removals] = {}
        self._round: dict[str, TopicSnapshot] = {}

    def begin_round(self) -> None:
        """Start a round, dropping an unfinished one."""
        self._round = {}

    def note(self, topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> None:
        """Note a topic that the round came by."""
        self._round[topic.name] = _figures(topic, lanes)

    def note_removed(self, name: str, fates: Sequence[Fate]) -> None:
        """Count ledgers that retention removed, under the topic's label."""
        label = name if name in self.seen else OTHERS
        removals = self.removed.setdefault(label, Removals())
        removals.ledgers += len(fates)
        removals.size += sum(fate.ledger.size for fate in fates)

    def end_round(self) -> None:
        """Publish what this round saw, and forget topics that are gone."""
        found = self._round
        named = [name for name in self.seen if name in found]
        new = sorted(found.keys() - self.seen.keys(), key=lambda name: found[name].size)
        while new and len(named) < TOPICS_MAX:
            named.append(new.pop())
        seen = {name: found[name] for name in named}
        if new:
            seen[OTHERS] = TopicSnapshot()
            for name in new:
                seen[OTHERS].add(found[name])
        self.removed = {name: self.removed.get(name, Removals()) for name in {**seen, OTHERS: None}}
        self.seen = seen

    def clear(self) -> None:
        """Forget everything, so that nothing is published."""
        self.seen, self.removed, self._round = {}, {}, {}


def _figures(topic: TopicRecord, lanes: Sequence[LaneHoldings]) -> TopicSnapshot:
    held = [each for lane in lanes for each in lane.ledgers]
    closed = [each.row for lane in lanes for each in lane.closed]
    return TopicSnapshot(
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


def _by_state(held: Sequence[HeldLedger]) -> dict[str, int]:
    counts = dict.fromkeys(LEDGER_STATES, 0)
    for each in held:
        counts[each.row.state] += 1
    return counts


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
