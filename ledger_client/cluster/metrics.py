"""Prometheus metrics of the cluster, its topics and its jobs, published by the leader.

Sizes are bytes, durations seconds, points in time Unix seconds. Metrics that end in _total
only rise while one bookie leads. The label *topic* is a topic's name, or "other" for the sum
of those beyond the first two hundred. Two hundred groups are published. A bookie that does not
lead publishes none of all this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledger_client.cluster.observer import (
    ClusterSnapshot,
    GroupFigures,
    JobReport,
    Observer,
    TickFigures,
    TopicSnapshot,
)
from metadata.groups.hosted import GroupCounts

CLUSTER = "quire_cluster_"
TOPIC = "quire_topic_"
JOB = "quire_job_"
GROUP = "quire_group_"


class LeaderMetrics(Collector):
    """The observer's figures as a prometheus-client collector."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterator[Metric]:
        """Yield all families, or none while the bookie does not lead."""
        observer = self._observer
        if observer.cluster.seen is not None:
            yield from _cluster(observer.cluster.seen, observer.topics.seen)
            yield from _topics(observer.topics.seen)
            yield from self._removed()
            yield from self._jobs()
            yield from _groups(observer.groups)
            yield from _ticks(observer.ticks)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, which skips the registry's check for duplicate names."""
        return iter(())

    def _removed(self) -> Iterator[Metric]:
        removed = self._observer.topics.removed
        ledgers = CounterMetricFamily(
            TOPIC + "removed_ledgers", "Ledgers removed by retention", labels=["topic"]
        )
        size = CounterMetricFamily(
            TOPIC + "removed_bytes", "Bytes removed by retention, one copy", labels=["topic"]
        )
        for topic, removals in removed.items():
            ledgers.add_metric([topic], removals.ledgers)
            size.add_metric([topic], removals.size)
        yield from (ledgers, size)

    def _jobs(self) -> Iterator[Metric]:
        jobs = self._observer.jobs
        counts = {kind: running.count for kind, running in jobs.running.items()}
        since = {kind: r.since_ms / 1000 for kind, r in jobs.running.items() if r.count}
        yield _labelled(JOB + "running", "Running jobs", "kind", counts)
        name = JOB + "running_since_timestamp_seconds"
        yield _labelled(name, "Start of the oldest running job", "kind", since)
        for name, text, figure in _REPORTED:
            family = GaugeMetricFamily(JOB + name, text, labels=["kind", "name"])
            for report in jobs.reports:
                family.add_metric([report.kind, report.name], figure(report))
            yield family


_REPORTED: tuple[tuple[str, str, Callable[[JobReport], float]], ...] = (
    ("last_success_timestamp_seconds", "End of its last successful run", lambda r: r.at_s),
    ("last_seconds", "Duration of that run", lambda r: r.seconds),
    ("last_keys", "Keys that a compaction kept in that run", lambda r: r.keys),
    ("last_messages_in", "Messages read by that run", lambda r: r.messages_in),
    ("last_messages_out", "Messages written by that run", lambda r: r.messages_out),
    ("last_bytes", "Bytes written by that run, one copy", lambda r: r.size),
)


def _ticks(figures: TickFigures) -> Iterator[Metric]:
    text = "From the newest tick of a topic with timesync to the cluster's time"
    lag = GaugeMetricFamily(TOPIC + "tick_lag_seconds", text, labels=["topic"])
    text = "Open lanes that let no later tick of their topic be made"
    holding = GaugeMetricFamily(TOPIC + "tick_holding_lanes", text, labels=["topic"])
    for topic, ticks in figures.seen().items():
        lag.add_metric([topic], ticks.lag_s)
        holding.add_metric([topic], ticks.holding)
    stored = CounterMetricFamily(TOPIC + "ticks_stored", "Ticks stored", labels=["topic"])
    for topic, count in figures.stored.items():
        stored.add_metric([topic], count)
    yield from (lag, holding, stored)
    text = "Reports of lanes that are not their sender's; a few are normal when lanes change hands"
    name = CLUSTER + "tick_reports_refused"
    yield CounterMetricFamily(name, text, value=figures.refused)
    text = "Lanes of dead writers that were closed because they held ticks back"
    yield CounterMetricFamily(CLUSTER + "tick_lanes_closed", text, value=figures.closed)


def _groups(figures: GroupFigures) -> Iterator[Metric]:
    counts = [each for each in figures.counts() if each.group in figures.published]
    for name, text, kind, figure in _PER_GROUP:
        family: CounterMetricFamily | GaugeMetricFamily = kind(GROUP + name, text, labels=["group"])
        for each in counts:
            family.add_metric([each.group], figure(each))
        yield family
    labels = ["group", "topic"]
    text = "Messages not committed or, in shared groups, not acknowledged; partly estimated"
    messages = GaugeMetricFamily(GROUP + "lag_messages", text, labels=labels)
    text = "Age of the oldest of these messages, by the cluster's clock"
    seconds = GaugeMetricFamily(GROUP + "lag_seconds", text, labels=labels)
    for (group, topic), lag in figures.lags.items():
        messages.add_metric([group, topic], lag.messages)
        seconds.add_metric([group, topic], lag.lag_s)
    yield from (messages, seconds)


_PER_GROUP: tuple[
    tuple[
        str,
        str,
        type[CounterMetricFamily] | type[GaugeMetricFamily],
        Callable[[GroupCounts], float],
    ],
    ...,
] = (
    ("members", "Members of a group", GaugeMetricFamily, lambda g: g.members),
    (
        "partitions",
        "Partitions that members have, or have slots of",
        GaugeMetricFamily,
        lambda g: g.partitions,
    ),
    ("rebalances", "New assignments of partitions", CounterMetricFamily, lambda g: g.rebalances),
    (
        "rebalance_seconds",
        "Time for which not every member had its share, of rebalances that are over",
        CounterMetricFamily,
        lambda g: g.rebalance_s,
    ),
    (
        "rebalancing_seconds",
        "How long the rebalance under way lasts, 0 for none",
        GaugeMetricFamily,
        lambda g: g.rebalancing_s,
    ),
)


def _cluster(seen: ClusterSnapshot, topics: Mapping[str, TopicSnapshot]) -> Iterator[Metric]:
    yield _gauge(CLUSTER + "looked_timestamp_seconds", "When the leader last looked", seen.at_s)
    yield _labelled(CLUSTER + "bookies", "Bookies by state", "state", seen.bookies)
    ledgers = {reason: waiting.ledgers for reason, waiting in seen.waiting.items()}
    sizes = {reason: waiting.size for reason, waiting in seen.waiting.items()}
    name = CLUSTER + "under_replicated_"
    yield _labelled(name + "ledgers", "Ledgers waiting for repair", "reason", ledgers)
    text = "Bytes that may have to be copied for these, as far as known"
    yield _labelled(name + "bytes", text, "reason", sizes)
    yield _gauge(CLUSTER + "repairs", "Repairs and moves under way", seen.repairs)
    text = "Bytes that repairs under way will copy"
    yield _gauge(CLUSTER + "repair_bytes", text, seen.repair_size)
    text = "Bytes that repairs under way have copied"
    yield _gauge(CLUSTER + "repair_copied_bytes", text, seen.repair_done)
    text = "Ledgers whose copies are on fewer racks than could be"
    yield _gauge(CLUSTER + "ledgers_on_few_racks", text, seen.on_few_racks)
    count = sum(topic.topics for topic in topics.values())
    yield _gauge(CLUSTER + "topics", "Topics", count)


def _topics(topics: Mapping[str, TopicSnapshot]) -> Iterator[Metric]:
    ledgers = GaugeMetricFamily(
        TOPIC + "ledgers", "Ledgers of a topic by state", labels=["topic", "state"]
    )
    for name, topic in topics.items():
        for state, count in topic.ledgers.items():
            ledgers.add_metric([name, state], count)
    yield ledgers
    for name, text, figure in _PER_TOPIC:
        family = GaugeMetricFamily(TOPIC + name, text, labels=["topic"])
        for topic_name, topic in topics.items():
            value = figure(topic)
            if value is not None:
                family.add_metric([topic_name], value)
        yield family


_PER_TOPIC: tuple[tuple[str, str, Callable[[TopicSnapshot], float | None]], ...] = (
    ("lanes", "Lanes of a topic", lambda t: t.lanes),
    ("writers", "Lanes with a writer", lambda t: t.writers),
    ("bytes", "Bytes of closed ledgers, one copy of each", lambda t: t.size),
    ("messages", "Messages in closed ledgers", lambda t: t.messages),
    ("oldest_timestamp_seconds", "When the oldest ledger was created", lambda t: _s(t.oldest_ms)),
    (
        "oldest_closed_timestamp_seconds",
        "When the oldest closed ledger was closed",
        lambda t: _s(t.closed_ms),
    ),
    ("retention_seconds", "How long retention keeps closed ledgers", lambda t: t.keep_s),
)


def _s(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
