from __future__ import annotations

import time

import trio
from calls import calls_of
from memory_cluster import memory_cluster
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from topic_rig import begun, figures_of, holdings, row
from trio.testing import MockClock

from ledger_client.cluster.metrics import LeaderMetrics
from ledger_client.cluster.observer import TOPICS_MAX, JobReport, Observer
from metadata.topics import Retention, TopicRecord


def registered(observer: Observer) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LeaderMetrics(observer))
    return registry


async def test_who_leads_tells_the_cluster_and_who_does_not_tells_nothing(
    autojump_clock: MockClock,
) -> None:
    began = time.time()
    async with memory_cluster(3) as cluster:
        observer = Observer(cluster.store, lost_after_s=5)
        registry = registered(observer)
        assert generate_latest(registry) == b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(observer.lead)
            await trio.sleep(1)
            value = registry.get_sample_value
            assert value("quire_cluster_bookies", {"state": "registered"}) == 3
            assert value("quire_cluster_under_replicated_bytes", {"reason": "check"}) == 0
            assert value("quire_job_running", {"kind": "compaction"}) == 0
            looked = value("quire_cluster_looked_timestamp_seconds")
            assert looked is not None
            assert began <= looked <= time.time()
            nursery.cancel_scope.cancel()
        assert generate_latest(registry) == b""


async def test_every_family_has_help_and_topics_and_jobs_tell_their_figures() -> None:
    async with memory_cluster(1) as cluster:
        observer = Observer(cluster.store, lost_after_s=5)
        await observer.cluster.look()
        topic = TopicRecord(name="s/t", uid=1, retention=Retention(age_s=60))
        observer.topics.note(topic.name, figures_of(topic, [holdings([row(1), begun(2)])]))
        await observer.topics.end_round()
        observer.jobs.reports = [
            JobReport(kind="compaction", name="s/t", at_s=7.0, seconds=3.0, keys=5, size=50)
        ]
    registry = registered(observer)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert all(family.documentation for family in families)
    value = registry.get_sample_value
    assert value("quire_topic_ledgers", {"topic": "s/t", "state": "open"}) == 1
    assert value("quire_topic_bytes", {"topic": "s/t"}) == 1000
    assert value("quire_topic_oldest_timestamp_seconds", {"topic": "s/t"}) == 3600
    assert value("quire_topic_retention_seconds", {"topic": "s/t"}) == 60
    assert value("quire_topic_removed_bytes_total", {"topic": "other"}) == 0
    job = {"kind": "compaction", "name": "s/t"}
    assert value("quire_job_last_success_timestamp_seconds", job) == 7
    assert value("quire_job_last_keys", job) == 5
    assert value("quire_cluster_topics") == 1


async def test_a_scrape_of_thousands_of_topics_costs_no_more_than_one_of_the_most_told() -> None:
    async def scraped(topics: int) -> int:
        async with memory_cluster(1) as cluster:
            observer = Observer(cluster.store, lost_after_s=5)
            await observer.cluster.look()
        for number in range(topics):
            topic = TopicRecord(name=f"s/{number}", uid=number)
            observer.topics.note(topic.name, figures_of(topic, [holdings([row(1), begun(2)])]))
        await observer.topics.end_round()
        registry = registered(observer)
        generate_latest(registry)
        return calls_of(lambda: generate_latest(registry))

    most = await scraped(TOPICS_MAX)
    assert await scraped(5000) <= 1.1 * most
    assert most < 150_000  # milliseconds
