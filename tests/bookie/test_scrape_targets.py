from __future__ import annotations

import json
from pathlib import Path

from bookie.member import Running
from bookie.scrape_targets import TARGETS_NAME, write_targets


def bookie(name: str, address: str, metrics_port: int) -> Running:
    return Running(name, address, 1, metrics_port, "/data")


def test_each_bookie_with_a_page_is_a_target_named_for_it(tmp_path: Path) -> None:
    one, two = bookie("b1", "10.0.0.1:3181", 9101), bookie("b2", "[::1]:3182", 9102)
    write_targets(tmp_path, [one, two, bookie("b3", "10.0.0.3:3181", 0)])
    assert json.loads((tmp_path / TARGETS_NAME).read_text()) == [
        {"targets": ["10.0.0.1:9101"], "labels": {"bookie": "b1"}},
        {"targets": ["[::1]:9102"], "labels": {"bookie": "b2"}},
    ]


def test_a_file_of_before_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_targets(tmp_path, [bookie("b1", "h:1", 9)])
    write_targets(tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == [TARGETS_NAME]
    assert json.loads((tmp_path / TARGETS_NAME).read_text()) == []
