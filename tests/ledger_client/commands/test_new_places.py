from __future__ import annotations

import json

import pytest

from ledger_client.commands.group.new_places import GroupReset, print_reset
from ledger_client.topics.positions import EARLIEST, LanePlace, Place, Position

PLACES = Position(
    [
        LanePlace("shop/bills", 2, -1, 0, Place(1)),
        LanePlace("shop/orders", 1, 0, 0, EARLIEST),
        LanePlace("shop/orders", 1, 1, 0, Place(0, 5, 0, 41, 5)),
    ]
)


def test_each_lane_is_shown_with_its_new_place(capsys: pytest.CaptureFixture[str]) -> None:
    print_reset(GroupReset("billing", True, PLACES), False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["shop/bills", "-", "0", "next", "message"],
        ["shop/orders", "0", "0", "first", "message"],
        ["shop/orders", "1", "0", "41:5"],
    ]


def test_each_lane_is_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_reset(GroupReset("billing", True, PLACES), True)
    assert json.loads(capsys.readouterr().out) == {
        "group": "billing",
        "dry_run": True,
        "places": [
            ["shop/bills", 2, -1, 0, [1, 0, 0, -1, -1]],
            ["shop/orders", 1, 0, 0, [-1, 0, 0, -1, -1]],
            ["shop/orders", 1, 1, 0, [0, 5, 0, 41, 5]],
        ],
    }


def test_a_topic_without_lanes_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    print_reset(GroupReset("billing", True, Position()), False)
    assert capsys.readouterr().out == "no lanes: nothing changes\n"
