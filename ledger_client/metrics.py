"""The metrics of a client, collected when they are asked for.

    registry = prometheus_client.CollectorRegistry()
    registry.register(client.metrics)

Sizes are bytes, times seconds; names that end in _total only rise. The label *topic* is a
topic's name, or "other" for those beyond the first fifty together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ledger_client.figures import (
    MICROSECONDS,
    ConsumeFigures,
    Figures,
    ReadFigures,
    SendFigures,
    Spread,
)

PREFIX = "quire_client_"


class _Name(NamedTuple):
    name: str
    text: str


_SENT = {
    "messages": _Name("sent_messages", "Messages acknowledged"),
    "size": _Name("sent_bytes", "Bytes of entries acknowledged, one copy of each"),
    "recoveries": _Name("recoveries", "Rolls because a ledger had failed"),
    "takeovers": _Name("takeovers", "Lanes taken that their last writer had left open"),
}
_SPREADS = {
    "batch_sizes": (_Name("batch_bytes", "Bytes of a batch acknowledged"), 1),
    "send_times": (
        _Name("send_seconds", "From a batch's first message to its acknowledgement"),
        MICROSECONDS,
    ),
    "roll_times": (
        _Name("roll_seconds", "From the end of a ledger until its lane goes on in the next"),
        MICROSECONDS,
    ),
}
_READ = {
    "messages": _Name("read_messages", "Messages handed out by readers"),
    "size": _Name("read_bytes", "Bytes of messages handed out, not compressed"),
    "runs": _Name("read_batches", "Batches, or parts of them, that were handed out at once"),
    "gaps": _Name("read_gaps", "Places at which messages had been removed"),
    "outages": _Name("read_outages", "Times that a followed lane waited for bookies or metadata"),
}
_CONSUMED = {
    "redeliveries": _Name("group_redeliveries", "Messages that a group was handed again"),
    "dead_letters": _Name("group_dead_letters", "Messages that a group gave up"),
}


class ClientMetrics(Collector):
    """The metrics of one client, for a registry of prometheus-client."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families. Another thread may count meanwhile."""
        sent, read = dict(self._figures.sent), dict(self._figures.read)
        yield from _sent(sent)
        yield from _read(read)
        yield from _consumed(dict(self._figures.consumed))
        yield _late(self._figures.late_timestamps)

    def describe(self) -> Iterator[Metric]:
        """Return the families without values, to register them."""
        yield from _sent({})
        yield from _read({})
        yield from _consumed({})
        yield _late(0)


def _sent(topics: dict[str, SendFigures]) -> Iterator[Metric]:
    for field, (name, text) in _SENT.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=["topic"])
        for topic, figures in topics.items():
            counter.add_metric([topic], getattr(figures, field))
        yield counter
    for field, ((name, text), unit) in _SPREADS.items():
        histogram = HistogramMetricFamily(PREFIX + name, text, labels=["topic"])
        for topic, figures in topics.items():
            spread: Spread = getattr(figures, field)
            histogram.add_metric([topic], _buckets(spread, unit), spread.total / unit)
        yield histogram
    failed = CounterMetricFamily(
        PREFIX + "send_errors", "Messages of batches that failed", labels=["topic", "kind"]
    )
    under_way = GaugeMetricFamily(
        PREFIX + "under_way_bytes", "Bytes sent and not acknowledged", labels=["topic"]
    )
    for topic, figures in topics.items():
        under_way.add_metric([topic], figures.under_way)
        for kind, count in dict(figures.failed).items():
            failed.add_metric([topic, kind], count)
    yield failed
    yield under_way


def _read(topics: dict[str, ReadFigures]) -> Iterator[Metric]:
    for field, (name, text) in _READ.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=["topic"])
        for topic, figures in topics.items():
            counter.add_metric([topic], getattr(figures, field))
        yield counter
    lag = GaugeMetricFamily(
        PREFIX + "read_lag_seconds",
        "Age of the last batch read by open readers, when it was read, by the cluster's clock",
        labels=["topic"],
    )
    for topic, figures in topics.items():
        if figures.readers:  # one that has ended is not behind
            lag.add_metric([topic], figures.lag_s)
    yield lag


def _consumed(groups: dict[tuple[str, str], ConsumeFigures]) -> Iterator[Metric]:
    for field, (name, text) in _CONSUMED.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=["group", "topic"])
        for labels, figures in groups.items():
            counter.add_metric(labels, getattr(figures, field))
        yield counter


def _late(count: int) -> Metric:
    text = "Answers of the oracle that came too late, and were dropped"
    return CounterMetricFamily(PREFIX + "late_timestamps", text, value=count)


def _buckets(spread: Spread, unit: int) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound; bounds are divided by *unit*."""
    bounds = [*(repr(bound / unit) for bound in spread.bounds), "+Inf"]
    buckets, total = [], 0
    for bound, count in zip(bounds, list(spread.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
