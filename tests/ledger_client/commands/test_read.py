"""Command lines of ``quire read`` that are refused, because an option would have no effect."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ledger_client.__main__ import quire
from ledger_client.commands.places import PlaceOrTime
from ledger_client.commands.read import _lane
from ledger_client.topics.positions import LanePlace, Place, Position


def refusal(*words: str) -> str:
    done = CliRunner().invoke(quire, ["read", "t/x", *words])
    assert done.exit_code == 2
    return done.output


@pytest.mark.parametrize(
    "words",
    [
        ("--reverse",),
        ("-f",),
        ("--follow",),
        ("--compacted",),
        ("--lane", "3"),
        ("--from", "earliest"),
        ("--before", "latest"),
        ("--by", "timestamp"),
        ("--ending-cut", "noon"),
    ],
)
def test_the_latest_of_each_key_takes_no_range_and_no_direction(words: tuple[str, ...]) -> None:
    option = {"-f": "--follow"}.get(words[0], words[0])
    assert f"as it is at a moment, without {option}" in refusal("--latest", *words)


@pytest.mark.parametrize("order", ["arrival", "event-time"])
@pytest.mark.parametrize("words", [("--latest",), ("--as-of", "5"), ("--consistency", "strong")])
def test_what_is_read_at_a_moment_has_no_other_order(words: tuple[str, ...], order: str) -> None:
    assert "need --order timestamp" in refusal("--order", order, *words)


@pytest.mark.parametrize("option", ["--starting-cut", "--ending-cut"])
def test_a_cut_without_a_name_is_not_the_whole_topic(option: str) -> None:
    assert "the name is empty" in refusal(option, "")
    done = CliRunner().invoke(quire, ["replay", "t/x", "--to", "t/y", option, ""])
    assert done.exit_code == 2
    assert "the name is empty" in done.output


def test_a_place_may_be_a_position_as_it_was_stored() -> None:
    position = Position([LanePlace("t/x", 1, 0, 0, Place(0, 4, 1, 9, 4))])
    read = PlaceOrTime().convert(f" {position.to_json()}\n", None, None)
    assert read.at("publish-time") == position
    assert "it is no position" in refusal("--from", '{"topic": "t/x"}')


@pytest.mark.parametrize(
    "words", [(), ("--consistency", "strong"), ("--as-of", "1h"), ("--latest",), ("--follow",)]
)
def test_staleness_is_for_bounded_reads_alone(words: tuple[str, ...]) -> None:
    assert "--staleness is for --consistency bounded" in refusal("--staleness", "2s", *words)


def test_a_lane_may_have_a_number_as_its_name() -> None:
    assert [_lane(text) for text in ("1", "=1", "a", "=a", "", "=", "==1", "-1", "1a")] == [
        1, "1", "a", "a", "", "", "=1", "-1", "1a",
    ]  # fmt: skip
