"""Dashboards as files: what Grafana asks of them, and what we ask of every panel."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from panel_queries import dashboards, panels, queries_of

from grafana.pages import DASHBOARDS, file_of, text_of
from grafana.panels import COLUMNS, Dashboard

pytestmark = pytest.mark.facts

Json = dict[str, Any]
ALL = dashboards()
UNITS = {"none", "short", "ops", "Bps", "bytes", "s", "percentunit"}


@pytest.fixture(params=ALL, ids=str)
def page(request: pytest.FixtureRequest) -> Json:
    return ALL[request.param]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_the_file_is_what_the_module_says(dashboard: Dashboard) -> None:
    assert file_of(dashboard).read_text() == text_of(dashboard), "run: python -m grafana"


def test_there_is_a_file_for_each_dashboard_and_no_other() -> None:
    assert set(ALL) == {dashboard.name for dashboard in DASHBOARDS}
    assert len({page["uid"] for page in ALL.values()}) == len(ALL)


def test_panels_have_ids_of_their_own(page: Json) -> None:
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_stand_beside_each_other(page: Json) -> None:
    places = [panel["gridPos"] for panel in page["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places)
    assert not any(_overlap(one, other) for one, other in combinations(places, 2))


def _overlap(one: Json, other: Json) -> bool:
    apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (apart or below)


def test_every_panel_says_what_it_means_and_in_which_unit(page: Json) -> None:
    for panel in panels(page):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    titles = [panel["title"] for panel in panels(page)]
    assert len(set(titles)) == len(titles)


def test_data_come_from_the_source_that_the_user_chose(page: Json) -> None:
    variables = {each["name"]: each for each in page["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    for panel in panels(page):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources)


def test_queries_use_variables_that_the_dashboard_has(page: Json) -> None:
    known = {each["name"] for each in page["templating"]["list"]} | {"__rate_interval"}
    for panel in panels(page):
        for query in queries_of(panel):
            assert set(re.findall(r"\$(\w+)", query.text)) <= known
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_lines_of_a_panel_with_several_are_told_apart(page: Json) -> None:
    for panel in panels(page):
        legends = [query.legend for query in queries_of(panel)]
        assert len(set(legends)) == len(legends), panel["title"]
        if panel["type"] == "timeseries":
            assert all(legend != "__auto" for legend in legends), panel["title"]


def test_every_dashboard_has_a_picture_of_a_bearable_size() -> None:
    folder = file_of(DASHBOARDS[0]).parents[1] / "pictures"
    sizes = {path.stem: path.stat().st_size for path in folder.glob("*.png")}
    assert set(sizes) == set(ALL)
    assert max(sizes.values()) <= 250 * 1024
