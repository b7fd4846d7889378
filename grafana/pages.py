"""All dashboards, and the JSON files that Grafana loads them from."""

from __future__ import annotations

import json
from pathlib import Path

from grafana.bookies import BOOKIES
from grafana.cluster import CLUSTER
from grafana.groups import GROUPS
from grafana.jobs import JOBS
from grafana.panels import Dashboard, to_json
from grafana.topics import TOPICS

DASHBOARDS: tuple[Dashboard, ...] = (BOOKIES, TOPICS, GROUPS, CLUSTER, JOBS)
FOLDER = Path(__file__).resolve().parent / "dashboards"


def file_of(dashboard: Dashboard) -> Path:
    """Return the path of the dashboard's JSON."""
    return FOLDER / f"{dashboard.name}.json"


def text_of(dashboard: Dashboard) -> str:
    """Return the dashboard as JSON, as its file has it."""
    return json.dumps(to_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def write_all() -> None:
    """Write every dashboard's file, replacing the former ones."""
    for dashboard in DASHBOARDS:
        file_of(dashboard).write_text(text_of(dashboard), encoding="utf-8")
