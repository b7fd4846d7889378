"""Dashboards drawn as pictures, from what a Prometheus answers to their queries.

They look as in Grafana, which a README cannot show, and need nothing but matplotlib.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from panel_queries import Json, PanelQuery, queries_of
from PIL import Image
from prometheus_server import Prometheus, Series

COLUMN_PX = 50
ROW_PX = 27
DPI = 100
STEPS = 240
RATE_INTERVAL_S = 4
LEGENDS_MAX = 8
GROUND, CARD, EDGE, TEXT, FAINT = "#111217", "#181b1f", "#2c3036", "#d8d9da", "#8e949c"
LINES = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#b877d9", "#f2495c", "#56d9d9", "#e0b400"),
    *("#a352cc", "#37872d", "#1f60c4", "#fa6400", "#c4162a", "#8ab8ff", "#c8f2c2", "#ffa6b0"),
)
Drawn = list[tuple[str, Series]]


class Album:
    """Draws dashboards, as they were between two moments in Unix seconds."""

    def __init__(self, server: Prometheus, begin: float, end: float) -> None:
        self._server = server
        self._begin = begin
        self._end = end
        mpl.rcParams.update({"font.family": "DejaVu Sans", "text.color": TEXT})

    def draw(self, dashboard: Json, path: Path) -> None:
        """Write the picture of one dashboard."""
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        width = 24 * COLUMN_PX
        height = max(place["y"] + place["h"] for place in places) * ROW_PX
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=GROUND)
        for panel in dashboard["panels"]:
            self._panel(figure, panel, width, height)
        _save(figure, path)

    def _panel(self, figure: Figure, panel: Json, width: int, height: int) -> None:
        place = panel["gridPos"]
        left, top = place["x"] * COLUMN_PX, place["y"] * ROW_PX
        wide, high = place["w"] * COLUMN_PX, place["h"] * ROW_PX

        def box(x: float, y: float, w: float, h: float) -> tuple[float, float, float, float]:
            """Pixels from the panel's upper left corner, as parts of the figure."""
            return (left + x) / width, 1 - (top + y + h) / height, w / width, h / height

        if panel["type"] == "row":
            x, y, _, _ = box(8, ROW_PX - 9, 0, 0)
            figure.text(x, y, panel["title"], fontsize=12, weight="bold")
            return
        card = figure.add_axes(box(3, 3, wide - 6, high - 6), facecolor=CARD)
        card.set(xticks=[], yticks=[])
        for spine in card.spines.values():
            spine.set_color(EDGE)
        x, y, _, _ = box(12, 21, 0, 0)
        figure.text(x, y, panel["title"], fontsize=9.5, weight="bold")
        if panel["type"] == "stat":
            self._stat(card, panel)
            return
        series = self._series(panel)
        legend_px = 15 * math.ceil(min(len(series), LEGENDS_MAX) / 2)
        axes = figure.add_axes(box(62, 32, wide - 80, high - 32 - 30 - legend_px), facecolor=CARD)
        self._graph(axes, panel, series)
        _legend(figure, series, [box(14, high - 8 - legend_px, wide - 20, legend_px)], wide)

    def _stat(self, card: Axes, panel: Json) -> None:
        (query,) = queries_of(panel)
        found = self._server.query_range(query.expr(RATE_INTERVAL_S), self._end - 1, self._end)
        told = [each for each in found if each.is_told]
        text = "No data"
        if told and query.legend != "__auto":
            text = ", ".join(_label(query, each) for each in told)
        elif told:
            text = _spell(told[0].points[-1][1], panel["fieldConfig"]["defaults"]["unit"])
        card.text(0.5, 0.4, text, fontsize=19, ha="center", va="center", color=LINES[0])

    def _series(self, panel: Json) -> Drawn:
        step = max(1.0, (self._end - self._begin) / STEPS)
        found: Drawn = []
        for query in queries_of(panel):
            answer = self._server.query_range(
                query.expr(RATE_INTERVAL_S), self._begin, self._end, step=step
            )
            found += [(_label(query, each), each) for each in answer if each.is_told]
        return sorted(found, key=lambda each: each[0])

    def _graph(self, axes: Axes, panel: Json, series: Drawn) -> None:
        field = panel["fieldConfig"]["defaults"]
        if field["custom"]["stacking"]["mode"] == "normal":
            _stack(axes, [each for _, each in series])
        else:
            for color, (_, each) in zip(_colors(len(series)), series, strict=True):
                times, values = zip(*each.points, strict=True)
                axes.plot(times, values, color=color, linewidth=1.2)
        axes.set_xlim(self._begin, self._end)
        top = field.get("max") or _top(axes)
        axes.set_ylim(0, top * 1.08)
        axes.set_yticks(_ticks(top, field["unit"]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _spell(y, field["unit"])))
        axes.set_xticks(self._moments())
        axes.xaxis.set_major_formatter(FuncFormatter(self._clock))
        axes.tick_params(colors=FAINT, labelsize=8, length=0)
        axes.grid(color=EDGE, linewidth=0.6)
        for spine in axes.spines.values():
            spine.set_visible(False)

    def _moments(self) -> list[float]:
        """Return whole minutes or parts of them since the beginning, a handful."""
        length = self._end - self._begin
        step = next(step for step in (10, 15, 30, 60, 120, 300, 900, 3600) if length / step < 8)
        return [self._begin + step * place for place in range(1, int(length / step) + 1)]

    def _clock(self, seconds: float, _place: Any) -> str:  # noqa: ANN401 - matplotlib's
        past = round(seconds - self._begin)
        return f"{past // 60}:{past % 60:02d}"


def _top(axes: Axes) -> float:
    """Return the greatest value that is drawn, 1 if that is 0."""
    drawn: list[Any] = [line.get_ydata() for line in axes.lines]
    values = [float(y) for line in drawn for y in line if math.isfinite(y)]
    return max(values, default=0.0) or 1.0


def _ticks(top: float, unit: str) -> list[float]:
    """Return a few round values up to *top*, round in the unit's own terms."""
    factor = 1024 if unit in {"bytes", "Bps"} else 60 if unit == "s" and top >= 60 else 1000
    scale = 1.0
    while top / scale >= min(factor, 1000):
        scale *= factor
    integer = unit in {"none", "short"} and top >= 2
    found = MaxNLocator(3, integer=integer, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top / scale)
    return [tick * scale for tick in found if tick * scale <= top * 1.08]


def _colors(count: int) -> list[str]:
    return [LINES[place % len(LINES)] for place in range(count)]


def _stack(axes: Axes, series: Sequence[Series]) -> None:
    times = sorted({at for each in series for at, _ in each.points})
    levels = [0.0] * len(times)
    for color, each in zip(_colors(len(series)), series, strict=True):
        known = dict(each.points)
        below = levels
        levels = [low + known.get(at, 0.0) for at, low in zip(times, below, strict=True)]
        axes.fill_between(times, below, levels, color=color, alpha=0.35, linewidth=0)
        axes.plot(times, levels, color=color, linewidth=1.2)


def _legend(
    figure: Figure, series: Drawn, boxes: list[tuple[float, float, float, float]], wide: int
) -> None:
    """Write names in two columns under the graph; how many more there are, when too many."""
    ((left, bottom, width, height),) = boxes
    shown = series[:LEGENDS_MAX]
    lines = math.ceil(len(shown) / 2)
    for place, (color, (label, _)) in enumerate(zip(_colors(len(shown)), shown, strict=True)):
        column, line = place % 2, place // 2
        x = left + column * width / 2
        y = bottom + height * (1 - (line + 0.7) / lines)
        is_last = place == LEGENDS_MAX - 1 and len(series) > LEGENDS_MAX
        text = f"and {len(series) - LEGENDS_MAX + 1} more" if is_last else label
        room = round(wide / 2 / 6.4)
        text = text if len(text) <= room else text[: room - 1] + "…"
        figure.text(x, y, "━", fontsize=8, color=FAINT if is_last else color)
        figure.text(x + width * 14 / wide, y, text, fontsize=8, color=TEXT)


def _label(query: PanelQuery, series: Series) -> str:
    text = query.legend
    for name, value in series.labels.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _spell(value: float, unit: str) -> str:
    """Write a value as Grafana does in this unit."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return _seconds(value)
    if unit in {"bytes", "Bps"}:
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB")) + "/s" * (unit == "Bps")
    return _scaled(value, 1000, ("", "K", "M", "G")) + "/s" * (unit == "ops")


def _seconds(value: float) -> str:
    for length, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if value >= length:
            return f"{value / length:.3g} {name}"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def _scaled(value: float, factor: int, names: Sequence[str]) -> str:
    place = 0
    while abs(value) >= 1000 and place < len(names) - 1:
        value, place = value / factor, place + 1
    text = f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {names[place]}".strip()


def _save(figure: Figure, path: Path) -> None:
    """Few colours, those that are there and their edges, make the file several times smaller."""
    raw = io.BytesIO()
    figure.savefig(raw, format="png", facecolor=GROUND)
    palette = Image.new("P", (1, 1))
    palette.putpalette(_palette())
    with Image.open(raw) as image:
        small = image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
        small.save(path, optimize=True)


def _palette() -> list[int]:
    """Return red, green and blue of each colour: plain, and as it fades into the card."""
    found = [_rgb(GROUND), _rgb(CARD), _rgb(EDGE), _mix(TEXT, GROUND, 0.5)]
    found += [_mix(color, CARD, part) for color in LINES for part in (0.2, 0.35, 0.55, 0.8, 1)]
    found += [_mix(TEXT, CARD, part) for part in (0.15, 0.3, 0.5, 0.7, 0.85, 1)]
    found += [_mix(FAINT, CARD, part) for part in (0.3, 0.6, 1)]
    return [part for color in found for part in color]


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))


def _mix(color: str, ground: str, part: float) -> tuple[int, ...]:
    pairs = zip(_rgb(color), _rgb(ground), strict=True)
    return tuple(round(above * part + below * (1 - part)) for above, below in pairs)
