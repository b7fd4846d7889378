"""The dashboard of jobs over topics: compaction, replay and writes, mostly by Spark."""

from __future__ import annotations

from grafana.panels import Dashboard, PanelRow, graph, stat

J = "quire_job_"


def _last(name: str) -> str:
    return f"max by(kind,name) ({J}last_{name})"


GLANCE = PanelRow(
    "Now",
    (
        stat("Running", "Running jobs of all kinds.", "none", f"sum({J}running)"),
        stat(
            "Last compaction",
            "Time since the last compaction of any topic ended.",
            "s",
            f'time() - max({J}last_success_timestamp_seconds{{kind="compaction"}})',
        ),
        stat(
            "Compacted keys",
            "Keys in all compacted sets; beyond 100, in those that were compacted longest ago.",
            "short",
            f'sum(max by(name) ({J}last_keys{{kind="compaction"}}))',
        ),
        stat(
            "Compacted bytes",
            "Bytes of these sets, one copy.",
            "bytes",
            f'sum(max by(name) ({J}last_bytes{{kind="compaction"}}))',
        ),
    ),
    across=4,
)

RUNNING = PanelRow(
    "Running",
    (
        graph(
            "Running jobs",
            "Jobs whose drivers hold a lease.",
            "none",
            (f"max by(kind) ({J}running)", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "Age of the oldest running job",
            "By kind. Retention keeps the messages that it reads meanwhile.",
            "s",
            (f"time() - min by(kind) ({J}running_since_timestamp_seconds)", "{{kind}}"),
        ),
    ),
    across=2,
)

REPORTS = PanelRow(
    "Last successful runs",
    (
        graph(
            "Time since the end",
            "Time since the last successful run ended, by topic or name of the replay.",
            "s",
            (f"time() - {_last('success_timestamp_seconds')}", "{{kind}} {{name}}"),
        ),
        graph(
            "Duration",
            "Time from the start to the published result.",
            "s",
            (_last("seconds"), "{{kind}} {{name}}"),
        ),
        graph(
            "Messages read a second",
            "Messages read a second in the last run.",
            "ops",
            (f"{_last('messages_in')} / {_last('seconds')}", "{{kind}} {{name}}"),
        ),
        graph(
            "Messages read and written",
            "Compaction writes the latest message of each key; the difference is what readers "
            "save.",
            "short",
            (_last("messages_in"), "{{kind}} {{name}} read"),
            (_last("messages_out"), "{{kind}} {{name}} written"),
        ),
        graph(
            "Keys",
            "Keys with a message after compaction.",
            "short",
            (f'max by(name) ({J}last_keys{{kind="compaction"}})', "{{name}}"),
        ),
        graph(
            "Bytes written",
            "Bytes written in the last run, one copy.",
            "bytes",
            (_last("bytes"), "{{kind}} {{name}}"),
        ),
    ),
)

JOBS = Dashboard(
    "jobs",
    "quire / Jobs",
    "Compaction, replay and other jobs over topics, with Spark or without. Published by the "
    "leader.",
    (GLANCE, RUNNING, REPORTS),
)
