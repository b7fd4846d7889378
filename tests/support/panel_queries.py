"""The queries of a dashboard's file, as Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
Json = dict[str, Any]


class PanelQuery(NamedTuple):
    """One query. *text* has Grafana's variables in it."""

    dashboard: str
    panel: str
    text: str
    legend: str
    instant: bool

    def expr(self, interval_s: int) -> str:
        """Return the expression for all bookies, topics, groups, at this interval of scraping."""
        text = self.text.replace("$__rate_interval", f"{4 * interval_s}s")
        return re.sub(r"\$(bookie|topic|group)\b", ".*", text)


def dashboards() -> dict[str, Json]:
    """Return every dashboard that is shipped, by the name of its file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: Json) -> list[Json]:
    """Return its panels without the headings of rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries_of(panel: Json, dashboard: str = "") -> Iterator[PanelQuery]:
    """Yield the queries of one panel."""
    for target in panel["targets"]:
        legend = target["legendFormat"]
        yield PanelQuery(dashboard, panel["title"], target["expr"], legend, target["instant"])


def all_queries() -> list[PanelQuery]:
    """Return the queries of all panels of all dashboards."""
    return [
        query
        for name, dashboard in dashboards().items()
        for panel in panels(dashboard)
        for query in queries_of(panel, name)
    ]
