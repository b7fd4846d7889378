"""Dashboards, alert rules and scrape configuration, against a real Prometheus.

It scrapes a real cluster, in which everything happens that the dashboards show.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from panel_queries import all_queries
from prometheus_server import INTERVAL_S, Prometheus
from watched import ORDERS, Load, compact, hold_job, kill_one, watched

from metadata.listings import leader

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("grafana")]

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
LEFT_OUT = {
    # Where the journal is, for people who look into a bookie's files.
    "quire_bookie_journal_file",
    "quire_bookie_journal_offset_bytes",
}
WITH_TLS = {
    # This cluster speaks no TLS; tests/bookie/test_metrics.py shows where the metric comes from.
    "quire_bookie_certificate_expires_timestamp_seconds",
}
SELECTOR = re.compile(r"\b((?:quire_\w+|up)(?:\{[^}]*\})?)")
PART = re.compile(r"_(bucket|sum|count|created)$")


class Answers:
    """What Prometheus said at the end of the story."""

    def __init__(self, server: Prometheus, began: float) -> None:
        end = time.time()
        queries = all_queries()
        self.panels = {
            query: server.query_range(query.expr(INTERVAL_S), began, end) for query in queries
        }
        self.rules = server.rules()
        self.alerts = {rule["name"]: server.query(rule["query"]) for rule in self.rules}
        rules = "\n".join(rule["query"] for rule in self.rules)
        selectors = set(SELECTOR.findall(rules))
        self.selected = {each: server.query(f"last_over_time({each}[5m])") for each in selectors}
        self.names = server.names("quire_")
        self.shown = rules + "\n".join(query.text for query in queries)
        self.targets = server.get("targets")["activeTargets"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    folder = tmp_path_factory.mktemp("grafana")
    yield trio.run(tell_story, folder)


async def tell_story(folder: Path) -> Answers:
    async with watched(folder) as (sandbox, client, server, began), trio.open_nursery() as tasks:
        await tasks.start(Load(client, pace=1).run)
        await tasks.start(hold_job, client, ORDERS)
        await trio.sleep(4)
        await compact(client, ORDERS)
        found = await leader(client._context.store)
        assert found is not None
        kill_one(sandbox, found.bookie_id)
        wait = trio.to_thread.run_sync
        await wait(server.wait_for, "sum(quire_bookie_repair_copied_bytes_total) > 0")
        await wait(server.wait_for, "sum(quire_topic_removed_ledgers_total) > 0")
        await wait(server.wait_for, 'quire_job_last_keys{kind="compaction"} > 0')
        await wait(server.wait_for, "count(quire_group_lag_seconds) > 0")
        await trio.sleep(2)
        answers = await wait(Answers, server, began)
        tasks.cancel_scope.cancel()
    return answers


def test_every_panel_shows_something(answers: Answers) -> None:
    silent = [
        f"{query.dashboard}: {query.panel}: {query.text}"
        for query, series in answers.panels.items()
        if not any(each.is_told for each in series)
    ]
    assert silent == []


def test_every_legend_names_labels_that_its_series_have(answers: Answers) -> None:
    for query, series in answers.panels.items():
        wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert all(wanted <= set(each.labels) for each in series), (query.panel, query.legend)


def test_every_alert_is_read_and_watches_something_that_is_there(answers: Answers) -> None:
    written = re.findall(r"- alert: (\w+)", (GRAFANA / "alerts.yml").read_text())
    assert sorted(rule["name"] for rule in answers.rules) == sorted(written)
    assert {rule["name"]: rule["lastError"] for rule in answers.rules if "lastError" in rule} == {}
    assert all(rule["health"] == "ok" for rule in answers.rules)
    silent = {selector for selector, series in answers.selected.items() if not series}
    assert silent == WITH_TLS


def test_the_bookie_that_was_killed_is_about_to_alert_and_a_sound_cluster_is_not(
    answers: Answers,
) -> None:
    states = {rule["name"]: rule["state"] for rule in answers.rules}
    assert states["QuireBookieDown"] == "pending"  # for less than a minute by now
    assert [name for name, state in states.items() if state == "firing"] == []


def test_every_metric_that_is_shown_exists_and_every_one_there_is_is_shown(
    answers: Answers,
) -> None:
    shown = set(re.findall(r"\bquire_\w+", answers.shown)) - WITH_TLS
    assert {PART.sub("", name) for name in shown - answers.names} <= {
        PART.sub("", name) for name in answers.names
    }
    families = {PART.sub("", name) for name in answers.names}
    assert families - {PART.sub("", name) for name in shown} == LEFT_OUT


def test_bookies_go_by_their_names_and_clients_are_scraped_too(answers: Answers) -> None:
    jobs: dict[str, list[str]] = {}
    for target in answers.targets:
        jobs.setdefault(target["labels"]["job"], []).append(target["labels"].get("bookie", ""))
    assert sorted(jobs["quire-bookies"]) == [f"bookie-{number}" for number in range(1, 5)]
    assert len(jobs["quire-clients"]) == 1
