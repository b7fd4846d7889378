"""The dashboard of jobs over topics: compaction, replay and writing, mostly by Spark."""

from __future__ import annotations

from grafana.panels import Dashboard, Row, graph, stat

J = "quire_job_"


def _last(name: str) -> str:
    return f"max by(kind,name) ({J}last_{name})"


GLANCE = Row(
    "Now",
    (
        stat("Running", "Jobs of all kinds.", "none", f"sum({J}running)"),
        stat(
            "Compacted last",
            "Since the last compaction of any topic ended.",
            "s",
            f'time() - max({J}last_success_timestamp_seconds{{kind="compaction"}})',
        ),
        stat(
            "Compacted keys",
            "In all compacted sets.",
            "short",
            f'sum(max by(name) ({J}last_keys{{kind="compaction"}}))',
        ),
        stat(
            "Compacted bytes",
            "Of these sets, one copy.",
            "bytes",
            f'sum(max by(name) ({J}last_bytes{{kind="compaction"}}))',
        ),
    ),
    across=4,
)

RUNNING = Row(
    "Running",
    (
        graph(
            "Jobs that run now",
            "By the leases that their drivers hold.",
            "none",
            (f"max by(kind) ({J}running)", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "For how long the oldest runs",
            "Of each kind, while one runs. What it reads is kept from retention meanwhile.",
            "s",
            (f"time() - min by(kind) ({J}running_since_timestamp_seconds)", "{{kind}}"),
        ),
    ),
    across=2,
)

REPORTS = Row(
    "The last ones that ended well",
    (
        graph(
            "How long ago",
            "Since it ended, by topic or by the name of the replay.",
            "s",
            (f"time() - {_last('success_timestamp_seconds')}", "{{kind}} {{name}}"),
        ),
        graph(
            "How long it took",
            "From its beginning to what it published.",
            "s",
            (_last("seconds"), "{{kind}} {{name}}"),
        ),
        graph(
            "Messages read a second",
            "Of the last run.",
            "ops",
            (f"{_last('messages_in')} / {_last('seconds')}", "{{kind}} {{name}}"),
        ),
        graph(
            "Messages read and written",
            "Compaction writes the latest of each key; the rest is what it saves readers.",
            "short",
            (_last("messages_in"), "{{kind}} {{name}} read"),
            (_last("messages_out"), "{{kind}} {{name}} written"),
        ),
        graph(
            "Keys",
            "That have a message after compaction.",
            "short",
            (f'max by(name) ({J}last_keys{{kind="compaction"}})', "{{name}}"),
        ),
        graph(
            "Bytes written",
            "Of the last run, one copy.",
            "bytes",
            (_last("bytes"), "{{kind}} {{name}}"),
        ),
    ),
)

JOBS = Dashboard(
    "jobs",
    "quire / Jobs",
    "Compaction, replay and other jobs over topics, in Spark or beside it. Told by the bookie "
    "that leads.",
    (GLANCE, RUNNING, REPORTS),
)
