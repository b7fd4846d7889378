"""All dashboards, and the files that they are in."""

from __future__ import annotations

import json
from pathlib import Path

from grafana.bookies import BOOKIES
from grafana.cluster import CLUSTER
from grafana.jobs import JOBS
from grafana.panels import Dashboard, to_json
from grafana.topics import TOPICS

DASHBOARDS: tuple[Dashboard, ...] = (BOOKIES, TOPICS, CLUSTER, JOBS)
FOLDER = Path(__file__).resolve().parent / "dashboards"


def file_of(dashboard: Dashboard) -> Path:
    """Return where the dashboard's JSON is."""
    return FOLDER / f"{dashboard.name}.json"


def text_of(dashboard: Dashboard) -> str:
    """Return what is in that file."""
    return json.dumps(to_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def write_all() -> None:
    """Write every dashboard's file."""
    for dashboard in DASHBOARDS:
        file_of(dashboard).write_text(text_of(dashboard), encoding="utf-8")
