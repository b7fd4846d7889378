from __future__ import annotations

import time

import pytest
from calls import calls_of
from memory_cluster import memory_cluster
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from trio.testing import MockClock

from ledger_client.figures import OTHERS, TOPICS_MAX, Figures, Spread
from ledger_client.metrics import ClientMetrics
from native.batch import Columns, encode, read_header

HEADER = read_header(encode(Columns.of([b"x" * 10] * 100), 0, 100, created_ms=5000))


def registered(figures: Figures) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ClientMetrics(figures))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"quire_client_{name}", labels)


@pytest.mark.parametrize(
    ("number", "place"),
    [(-5, 0), (0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (16, 2), (17, 3), (1 << 40, 3)],
)
def test_a_value_counts_with_the_least_bound_that_holds_it(number: int, place: int) -> None:
    spread = Spread(2, 4)
    spread.add(number)
    assert spread.bounds == [4, 8, 16]
    assert spread.counts.index(1) == place


def test_what_is_acknowledged_is_told_in_bytes_and_seconds() -> None:
    figures = Figures()
    sending = figures.sending("shop/orders")
    sending.acknowledge(1000, 100_000, 0.003)
    sending.acknowledge(1, 90, 0.0001)
    sending.roll_times.add_s(0.5)
    sending.failed["SendUnknown"] += 7
    sending.under_way = 4096
    registry = registered(figures)
    topic = {"topic": "shop/orders"}
    assert value(registry, "sent_messages_total", **topic) == 1001
    assert value(registry, "sent_bytes_total", **topic) == 100_090
    assert value(registry, "batch_bytes_count", **topic) == 2
    assert value(registry, "batch_bytes_bucket", le="256.0", **topic) == 1
    assert value(registry, "batch_bytes_sum", **topic) == 100_090
    assert value(registry, "send_seconds_bucket", le="0.000128", **topic) == 1
    assert value(registry, "send_seconds_sum", **topic) == pytest.approx(0.0031)
    assert value(registry, "roll_seconds_count", **topic) == 1
    assert value(registry, "send_errors_total", kind="SendUnknown", **topic) == 7
    assert value(registry, "under_way_bytes", **topic) == 4096


def test_messages_given_back_count_once_and_no_counter_falls() -> None:
    figures = Figures()
    reading = figures.reading("t/t")
    reading.hand_out(100, HEADER, now=6.5)
    reading.given_back += 40
    assert reading.messages == 100
    reading.hand_out(40, HEADER, now=7.0)
    reading.hand_out(10, HEADER, now=8.0)
    assert (reading.messages, reading.runs, reading.given_back) == (110, 2, 0)
    assert reading.size == HEADER.body_size * 110 // 100
    assert value(registered(figures), "read_lag_seconds", topic="t/t") is None
    reading.readers = 1
    assert value(registered(figures), "read_lag_seconds", topic="t/t") == 3.0


async def test_what_readers_miss_is_there_before_it_happens_and_their_lag_ends_with_them(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Nobody sees the growth of a counter that begins at 1, and who has ended is not behind."""
    topic = {"topic": "s/t"}
    async with memory_cluster(1) as cluster, cluster.client() as client:
        registry = CollectorRegistry()
        registry.register(client.metrics)
        await client.topics.create("s/t", replication=1)
        async with client.producer("s/t") as producer:
            await producer.send(b"one")
            assert value(registry, "send_errors_total", kind="ProducerFenced", **topic) == 0
        monkeypatch.setattr(time, "time", lambda: 0.0)  # this host's clock is decades behind
        async with client.reader("s/t") as reader:
            assert value(registry, "read_gaps_total", **topic) == 0
            assert (await anext(reader)).value == b"one"
            assert 0 <= (value(registry, "read_lag_seconds", **topic) or 0) < 60
        assert value(registry, "read_lag_seconds", **topic) is None
        assert value(registry, "read_messages_total", **topic) == 1


def test_topics_beyond_a_number_count_together() -> None:
    figures = Figures()
    for number in range(TOPICS_MAX + 10):
        figures.sending(f"t/{number}").messages += 1
        figures.reading(f"t/{number}").messages += 1
    registry = registered(figures)
    assert len(figures.sent) == len(figures.read) == TOPICS_MAX + 1
    assert value(registry, "sent_messages_total", topic=OTHERS) == 10
    assert value(registry, "read_messages_total", topic=OTHERS) == 10
    assert figures.sending("t/0") is not figures.sending("t/new")


def test_a_scrape_of_thousands_of_topics_costs_no_more_than_one_of_the_most_told() -> None:
    def scraped(topics: int) -> int:
        figures = Figures()
        for number in range(topics):
            figures.sending(f"t/{number}").acknowledge(1, 100, 0.001)
            figures.reading(f"t/{number}").hand_out(1, HEADER, now=6.0)
        registry = registered(figures)
        generate_latest(registry)
        return calls_of(lambda: generate_latest(registry))

    most = scraped(TOPICS_MAX)
    assert scraped(5000) <= 1.1 * most
    assert most < 250_000  # milliseconds


def test_what_groups_were_handed_again_and_gave_up_is_told() -> None:
    figures = Figures()
    figures.consuming("billing", "shop/orders").redeliveries += 3
    figures.consuming("billing", "shop/orders").dead_letters += 1
    for number in range(TOPICS_MAX + 5):
        figures.consuming("audit", f"shop/{number}").redeliveries += 1
    registry = registered(figures)
    labels = {"group": "billing", "topic": "shop/orders"}
    assert value(registry, "group_redeliveries_total", **labels) == 3
    assert value(registry, "group_dead_letters_total", **labels) == 1
    others = {"group": OTHERS, "topic": OTHERS}
    assert value(registry, "group_redeliveries_total", **others) == 6


def test_answers_of_the_oracle_that_came_too_late_are_counted() -> None:
    figures = Figures()
    registry = registered(figures)
    assert value(registry, "late_timestamps_total") == 0
    figures.late_timestamps += 2
    assert value(registry, "late_timestamps_total") == 2
