from __future__ import annotations

from collections.abc import Sequence

from topic_rig import HOUR_MS, begun, figures_of, holdings, row

from ledger_client.cluster.observer import OTHERS, TOPICS_MAX, Removals, TopicFigures
from ledger_client.topics.retention.holdings import LaneHoldings
from ledger_client.topics.retention.retention import Fate
from metadata.topics import LaneOwner, Retention, TopicRecord


def topic(name: str = "s/t", *, age_s: float = -1) -> TopicRecord:
    return TopicRecord(name=name, uid=1, retention=Retention(age_s=age_s))


def note(figures: TopicFigures, record: TopicRecord, lanes: Sequence[LaneHoldings]) -> None:
    figures.note(record.name, figures_of(record, lanes))


def fate(size: int) -> Fate:
    ledger = row(1, size=size)
    return Fate(
        partition=-1, lane=0, number=0, ledger=ledger, version=1, goes=True, reason="old", why=""
    )


async def test_a_topic_is_told_by_what_its_lanes_hold() -> None:
    figures = TopicFigures()
    writer = LaneOwner(producer="p")
    lanes = [holdings([row(1), row(2), begun(3)], owner=writer), holdings([row(5)], lane=1)]
    note(figures, topic(age_s=60), lanes)
    assert figures.seen == {}  # a round that is not over tells nothing
    await figures.end_round()
    seen = figures.seen["s/t"]
    assert seen.ledgers == {"prepared": 0, "open": 1, "closed": 3}
    assert (seen.lanes, seen.writers, seen.size, seen.messages) == (2, 1, 3000, 30)
    assert (seen.oldest_ms, seen.closed_ms, seen.keep_s) == (HOUR_MS, 2 * HOUR_MS, 60)


async def test_more_topics_than_are_told_count_together_the_smaller_ones() -> None:
    figures = TopicFigures()
    for number in range(TOPICS_MAX + 3):
        note(figures, topic(f"s/{number}"), [holdings([row(1, size=number)])])
    await figures.end_round()
    assert len(figures.seen) == TOPICS_MAX + 1
    others = figures.seen[OTHERS]
    assert (others.topics, others.size, others.messages) == (3, 0 + 1 + 2, 30)
    assert others.ledgers["closed"] == 3


async def test_a_topic_keeps_its_name_while_it_is_there_and_a_gone_one_leaves_room() -> None:
    figures = TopicFigures()
    for extra in (0, 1_000_000):
        for number in range(TOPICS_MAX):
            note(figures, topic(f"s/{number}"), [holdings([row(1)])])
        if extra:
            note(figures, topic("s/large"), [holdings([row(1, size=extra)])])
        await figures.end_round()
    assert figures.seen[OTHERS].size == 1_000_000
    assert "s/large" not in figures.seen
    for number in range(TOPICS_MAX):
        figures.forget(f"s/{number}")
    await figures.end_round()
    assert list(figures.seen) == ["s/large"]


async def test_what_retention_removes_counts_for_its_topic() -> None:
    figures = TopicFigures()
    note(figures, topic(), [])
    await figures.end_round()
    figures.note_removed("s/t", [fate(10), fate(5)])
    figures.note_removed("s/unseen", [fate(1)])
    assert figures.removed == {"s/t": Removals(2, 15), OTHERS: Removals(1, 1)}
    figures.clear()
    assert (figures.seen, figures.removed) == ({}, {})
