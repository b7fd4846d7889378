from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledger_client.errors import BadTopic, SparkError
from ledger_client.message_id import MessageId
from ledger_client.spark.options import (
    SourceOptions,
    check_topics,
    offset_of,
    parse_options,
    position_of,
)
from ledger_client.spark.schema import columns_of
from ledger_client.spark.source import QuireSource, QuireStreamReader
from ledger_client.topics.positions import LanePlace, Place, Version
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.topics import TopicRecord

NOON_S = 1_714_564_800  # 2024-05-01T12:00Z
POSITION = (
    LanePlace("a/b", 7, -1, 0, Place(3, 17, 2, 88, 1017)),
    LanePlace("a/b", 7, -1, 1, Place(-1)),
)


def parsed(**given: str) -> SourceOptions:
    return parse_options({"topic": "a/b", **given})


def test_a_stream_may_name_a_group() -> None:
    assert (parsed().group, parsed(group="spark").group) == ("", "spark")
    with pytest.raises(SparkError, match=r"option 'group': 'a/b' is not a name"):
        parsed(group="a/b")


def test_names_are_taken_in_any_case_and_topics_as_a_list() -> None:
    found = parse_options({"TOPICS": "a/b, c/d", "ROWSPERBATCH": "10"})
    assert found.topics == ("a/b", "c/d")
    assert found.rows_per_batch == 10


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("Ids", "earliest", "earliest"),
        ("Ids", "latest", "latest"),
        ("Ids", "3:4:-1", MessageId(3, 4)),
        ("Ids", "3:4:0:7", MessageId(3, 4, 0, 7)),
        ("Ids", msgspec.json.encode(POSITION).decode(), POSITION),
        ("Ids", msgspec.json.encode(offset_of(POSITION, {"a/b": 7})).decode(), POSITION),
        ("Version", "12", Version(12)),
        ("Time", "2024-05-01T12:00Z", PublishTime(NOON_S * 1000)),
        ("Time", "2024-05-01 12:00:00.0001", PublishTime(NOON_S * 1000 + 1)),
        ("Time", "1714564800000", PublishTime(NOON_S * 1000)),
        ("Timestamp", "18446744073709551615", Timestamp((1 << 64) - 1)),
        ("Timestamp", "-1", Timestamp((1 << 64) - 1)),
        ("EventTime", "2024-05-01T14:00:00.000001+02:00", EventTime(NOON_S * 10**9 + 1000)),
        ("EventTime", "-5", EventTime(-5)),
    ],
)
def test_places_are_said_in_several_ways(name: str, text: str, place: object) -> None:
    assert parsed(**{f"starting{name}": text}).start == place
    assert parsed(**{f"ending{name}": text}).end == place


@pytest.mark.parametrize(
    ("text", "lanes"),
    [
        ("3", (3,)),
        ("left, 3,right", ("left", 3, "right")),
        ('["7", "a,b", 3, ""]', ("7", "a,b", 3, "")),
    ],
)
def test_lanes_are_named_by_number_or_name(text: str, lanes: tuple[int | str, ...]) -> None:
    assert parsed(lanes=text).lanes == lanes


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("startingIdz", "x", "is startingIds meant"),
        ("xyzzy", "x", "there is none of this name; there are asOf, .*topic"),
        ("startingIds", "x", "is not a message id"),
        ("startingIds", "[[1]]", "is no position"),
        ("startingIds", '{"a/b": {"0/0": "1:2"}}', "has no uid"),
        ("startingIds", '{"a/b": {"uid": 1, "0/0": "1:2"}}', "is no place in a lane"),
        ("startingVersion", "-1", "is no number from 0"),
        ("startingTime", "noon", "is no point of time"),
        ("startingTimestamp", "18446744073709551616", "is no number"),
        ("endingCut", "a/b", "is not a name"),
        ("startingInclusive", "yes", "neither true nor false"),
        ("partitions", "a", "are no numbers"),
        ("columns", "key,key", "a column twice"),
        ("lanes", "[1.5]", "is no list of lanes"),
        ("lanes", "3,", "a comma too many"),
        ("mode", "dropmalformed", "neither permissive nor failfast"),
        ("rowsPerBatch", "0", "is no count"),
        ("topics", "a/b", "named twice"),
    ],
)
def test_an_option_that_cannot_be_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(SparkError, match=words) as told:
        parsed(**{name: text})
    assert "\n" not in str(told.value)
    assert msgspec.json.encode(str(told.value))


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(
    "name",
    [
        *("asOf", "group", "partitions", "lanes", "startingIds", "endingIds", "startingVersion"),
        *("startingTime", "endingTime", "startingTimestamp", "endingTimestamp", "endingVersion"),
        *("startingEventTime", "endingEventTime", "startingCut", "endingCut"),
    ],
)
def test_an_option_that_says_what_is_read_is_not_empty(name: str, text: str) -> None:
    """A variable that is not set makes it so, and then everything would be read."""
    with pytest.raises(SparkError, match=f"option '{name}': it is empty"):
        parsed(**{name: text})


@pytest.mark.parametrize(
    ("name", "text"), [("endingCut", "noon"), ("asOf", "5"), ("compacted", "true")]
)
def test_a_stream_refuses_an_end_at_its_first_question(name: str, text: str) -> None:
    """Spark would hide what streamReader() raises beneath an error of its own."""
    options = {"topic": "a/b", "cluster": "bookie://127.0.0.1:1", name: text}
    source = QuireSource(options)
    columns = columns_of([TopicRecord(name="a/b", uid=7)], None)
    source.__dict__["_columns"] = columns
    reader = source.streamReader(columns.schema)
    assert isinstance(reader, QuireStreamReader)
    for question in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
        with pytest.raises(SparkError, match=f"option '{name}': a streaming query"):
            question()


def test_there_is_one_beginning() -> None:
    with pytest.raises(SparkError, match="said by startingIds already"):
        parsed(startingIds="earliest", startingTime="0")
    with pytest.raises(SparkError, match="said by endingTime already"):
        parsed(endingCut="noon", endingTime="0")
    assert parsed(endingCut="noon").end is None
    assert parsed(startingCut="noon", endingCut="night").starting_cut == "noon"
    with pytest.raises(SparkError, match="which topic"):
        parse_options({})


def test_an_offset_is_a_position_and_names_topics_without_lanes() -> None:
    offset = offset_of(POSITION, {"a/b": 7, "c/d": 8})
    assert offset == {
        "a/b": {"uid": 7, "-1/0": "3:17:2:88:1017", "-1/1": "-1:0:0:-1:-1"},
        "c/d": {"uid": 8},
    }
    assert position_of(offset) == POSITION


def test_an_offset_of_a_topic_that_was_made_again_is_refused() -> None:
    """Also where neither of them has had a lane: a query would go on in the new one unnoticed."""
    offset = offset_of((), {"a/b": 7})
    check_topics(offset, {"a/b": 7, "c/d": 8})
    with pytest.raises(BadTopic, match="of another topic of this name"):
        check_topics(offset, {"a/b": 9})


@pytest.mark.parametrize(
    "offset", [{"a/b": 5}, {"a/b": None}, {"a/b": {}}, {"a/b": {"uid": "x"}}, {"a/b": {"uid": [1]}}]
)
def test_what_is_no_offset_is_said_to_be_none(offset: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises(ValueError, match="a/b has no uid"):
        position_of(offset)
