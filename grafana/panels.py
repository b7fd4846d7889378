"""Panels and dashboards, and their JSON for Grafana.

A panel has a title, a description, a unit and queries. Its position follows: rows of panels
from left to right, on a grid of 24 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

COLUMNS = 24
HEIGHT = 8
STAT_HEIGHT = 4
SCHEMA_VERSION = 39
"""The schema of Grafana 10 and later."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


class Query(NamedTuple):
    """An expression of PromQL, and the legend of each of its series."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One panel; *text* is its description. Without *decimals*, Grafana chooses."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    decimals: int | None = None
    minimum: float | None = 0
    """of the axis; `None`: the least value, also below 0"""
    maximum: float | None = None


class PanelRow(NamedTuple):
    """Panels under a heading, *across* of them side by side."""

    title: str
    panels: tuple[Panel, ...]
    across: int = 3


class Variable(NamedTuple):
    """A label to filter by; the user chooses one value or several, by default all."""

    name: str
    label: str
    metric: str


class Dashboard(NamedTuple):
    """A page. *name* is that of its file and of its URL in Grafana."""

    name: str
    title: str
    text: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = ()


def graph(
    title: str,
    text: str,
    unit: str,
    *queries: tuple[str, str],
    **more: Any,  # noqa: ANN401
) -> Panel:
    """Return a panel of lines over time; *queries* are pairs of expression and legend."""
    return Panel(title, text, unit, tuple(Query(*query) for query in queries), **more)


def stat(title: str, text: str, unit: str, expr: str, legend: str = "") -> Panel:
    """Return a panel with one number, that of now; with a *legend*, with that instead."""
    return Panel(title, text, unit, (Query(expr, legend),), kind="stat")


def quantiles(
    metric: str, where: str, by: str, *, levels: Sequence[float] = (0.5, 0.99)
) -> tuple[tuple[str, str], ...]:
    """Return queries for quantiles of a histogram *metric*, for each value of the label *by*."""
    rate = f"sum by(le,{by}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({level}, {rate})", f"{{{{{by}}}}} p{level * 100:g}")
        for level in levels
    )


def to_json(dashboard: Dashboard) -> Json:
    """Return the dashboard as Grafana takes it."""
    return {
        "uid": f"quire-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["quire"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_links()],
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": []},
        "panels": list(_panels(dashboard.rows)),
    }


def _panels(rows: Sequence[PanelRow]) -> Iterable[Json]:
    number, y = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        number, y = number + 1, y + 1
        width = COLUMNS // row.across
        height = STAT_HEIGHT if all(panel.kind == "stat" for panel in row.panels) else HEIGHT
        for place, panel in enumerate(row.panels):
            line, column = divmod(place, row.across)
            position = {"x": column * width, "y": y + line * height, "w": width, "h": height}
            yield {"id": number, "gridPos": position, **_panel(panel)}
            number += 1
        y += height * -(-len(row.panels) // row.across)


def _panel(panel: Panel) -> Json:
    is_stat = panel.kind == "stat"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "targets": [
            _target(chr(ord("A") + place), query, instant=is_stat)
            for place, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _stat_options(panel) if is_stat else _graph_options(panel),
    }


def _target(ref: str, query: Query, *, instant: bool) -> Json:
    return {
        "refId": ref,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
    }


def _field(panel: Panel) -> Json:
    field: Json = {"unit": panel.unit, "color": {"mode": "palette-classic"}}
    if panel.kind == "stat":
        field["color"] = {"mode": "fixed", "fixedColor": "text"}
        field["mappings"] = []
    else:
        if panel.minimum is not None:
            field["min"] = panel.minimum
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    if panel.decimals is not None:
        field["decimals"] = panel.decimals
    if panel.maximum is not None:
        field["max"] = panel.maximum
    return field


def _stat_options(panel: Panel) -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "name" if panel.queries[0].legend else "value",
        "justifyMode": "center",
    }


def _graph_options(panel: Panel) -> Json:
    calcs = ["lastNotNull", "max"]
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": calcs},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "values"},
        "definition": query,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 7,
        "hide": 0,
    }


def _links() -> Json:
    return {
        "title": "quire",
        "type": "dashboards",
        "tags": ["quire"],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
    }
