from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, strategies as st

from metadata import topics
from metadata.errors import BadRecord
from metadata.topics import (
    LaneLedger,
    LaneOwner,
    LaneRecord,
    LastEvent,
    Retention,
    RollPolicy,
    Schema,
    TopicEvent,
    TopicRecord,
    TopicRow,
    decode_event,
    decode_lane,
    decode_lane_ledger,
    decode_last_event,
    decode_owner,
    decode_topic,
    encode_row,
    lane_ledger_key,
    lane_of,
    last_number,
    split_topic,
    topic_key,
    writer_lease,
)

Decode = Callable[[str, bytes], TopicRow]

TOPIC = TopicRecord(
    name="shop/orders",
    uid=7,
    partitions=4,
    replication=3,
    ack_quorum=2,
    order="event-time",
    compression="zstd",
    schema=Schema(kind="json", definition="{}"),
    properties={"team": "till"},
    created_ms=1_700_000_000_000,
)
LEDGER = LaneLedger(
    ledger_id=12,
    state="closed",
    base_version=100,
    epoch=3,
    created_ms=1,
    closed_ms=2,
    entries=4,
    messages=40,
    size=400,
    last_timestamp=9,
    first_event_time=-5,
    last_event_time=5,
    shares_first=True,
)
ROWS: list[tuple[TopicRow, Decode]] = [
    (TOPIC, decode_topic),
    (TopicEvent(kind="altered", topic="shop/orders", at_ms=5, record=TOPIC), decode_event),
    (LastEvent(number=12), decode_last_event),
    (LaneRecord(epoch=2, producer="p", current=1, next_version=9, last_event_time=-1), decode_lane),
    (LEDGER, decode_lane_ledger),
    (LaneOwner(producer="p", host="h", process_id=4, since_ms=1), decode_owner),
]


def spoilt(row: TopicRow, changes: dict[str, object]) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(row) | changes)


# --- values -----------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "decode"), ROWS)
def test_rows_come_back_as_they_were(row: TopicRow, decode: Decode) -> None:
    assert decode("k", encode_row(row)) == row


def test_a_topic_is_json_that_people_can_read() -> None:
    """PS-07, PS-35, TB-05, TB-24: the limits of a ledger, what stays, how many copies."""
    record = TopicRecord(name="shop/orders", uid=1)
    assert msgspec.json.decode(encode_row(record)) == {
        "name": "shop/orders",
        "uid": 1,
        "partitions": 0,
        "replication": 2,
        "ack_quorum": 1,
        "order": "none",
        "timesync": False,
        "compression": "none",
        "roll": {"size": 100_000_000, "entries": 0, "age_s": 14400.0, "age_min_s": 0.0},
        "retention": {"age_s": 604800.0, "size": -1},
        "schema": {"kind": "bytes", "definition": ""},
        "properties": {},
        "created_ms": 0,
        "grown": [],
        "created_timestamp": 0,
        "altered_timestamp": 0,
        "deleted_timestamp": 0,
        "state": "active",
    }


def test_a_ledger_of_a_lane_tells_its_interval_once_it_is_closed() -> None:
    """TB-13: from which time to which; of a new one without messages nobody knows yet."""
    text = encode_row(LEDGER).decode()
    assert '"first_event_time":-5,"last_event_time":5' in text
    begun = msgspec.json.decode(encode_row(LaneLedger(ledger_id=1, state="open")))
    assert (begun["first_event_time"], begun["last_event_time"]) == (None, None)
    assert (begun["first_timestamp"], begun["last_timestamp"]) == (0, 0)


@pytest.mark.parametrize(("row", "decode"), ROWS)
def test_fields_of_a_newer_version_are_let_pass(row: TopicRow, decode: Decode) -> None:
    assert decode("k", spoilt(row, {"colour": "green"})) == row


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "orders"},
        {"name": "shop/"},
        {"name": "/orders"},
        {"name": "shop/or/ders"},
        {"name": "shop/" + "x" * 201},
        {"name": "shop/or ders"},
        {"name": "shöp/orders"},
        {"uid": -1},
        {"uid": 1 << 63},
        {"partitions": -1},
        {"partitions": 10_001},
        {"replication": 0},
        {"replication": 65},
        {"ack_quorum": 4},
        {"ack_quorum": 0},
        {"order": "random"},
        {"compression": "gzip"},
        {"roll": {"size": 0}},
        {"roll": {"entries": -1}},
        {"roll": {"age_s": -0.5}},
        {"retention": {"age_s": -2}},
        {"retention": {"size": -2}},
        {"schema": {"kind": "xml"}},
        {"properties": {"a": 1}},
        {"state": "asleep"},
    ],
)
def test_a_topic_that_breaks_a_rule_is_refused_by_its_key(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match="topics/x is not a TopicRecord"):
        decode_topic("topics/x", spoilt(TOPIC, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"ledger_id": -1},
        {"state": "half open"},
        {"base_version": -2},
        {"entries": -1},
        {"last_timestamp": 1 << 64},
        {"first_event_time": 1 << 63},
        {"last_event_time": "noon"},
        {"shares_first": 1},
    ],
)
def test_a_lanes_ledger_that_breaks_a_rule_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match="k is not a LaneLedger"):
        decode_lane_ledger("k", spoilt(LEDGER, changes))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_bad_record(value: bytes) -> None:
    for _, decode in ROWS:
        with pytest.raises(BadRecord):
            decode("k", value)


@given(st.data())
def test_a_row_with_a_byte_changed_is_a_row_or_refused(data: st.DataObject) -> None:
    row, decode = data.draw(st.sampled_from(ROWS))
    value = bytearray(encode_row(row))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadRecord):
        decode("k", bytes(value))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BadRecord):
        decode_topic("k", b'{"x":' * 100_000)


def test_limits_have_the_defaults_that_they_promise() -> None:
    assert RollPolicy() == RollPolicy(size=100_000_000, entries=0, age_s=14400, age_min_s=0)
    assert Retention() == Retention(age_s=7 * 86400, size=-1)


# --- keys -------------------------------------------------------------------------------


def test_keys_are_as_they_are_documented() -> None:
    assert topic_key("shop/orders") == "topics/shop/orders"
    assert topics.namespace_prefix("shop") == "topics/shop/"
    assert topics.event_key("shop", 3) == "topic-events/shop/00000000000000000003"
    assert topics.last_event_key("shop") == "topic-event-last/shop"
    assert topics.lane_key(7, 0, 2) == "lanes/00000000000000000007/0000000001/0000000002"
    assert topics.lane_key(7, -1, 0) == "lanes/00000000000000000007/0000000000/0000000000"
    assert lane_ledger_key(7, 1, 2, 3) == (
        "lane-ledgers/00000000000000000007/0000000002/0000000002/00000000000000000003"
    )
    assert writer_lease(7, 1, 2) == "writers/00000000000000000007/0000000002/0000000002"


def test_one_namespace_is_not_the_beginning_of_another() -> None:
    assert not topic_key("shopping/a").startswith(topics.namespace_prefix("shop"))
    assert not topics.topic_prefix(topics.LANES, 12).startswith(topics.topic_prefix("lanes/", 1))


def test_keys_order_as_numbers_do_and_give_them_back() -> None:
    numbers = [0, 9, 10, 99, (1 << 63) - 1]
    keys = [lane_ledger_key(1, 0, 0, number) for number in numbers]
    assert sorted(keys) == keys
    assert [last_number(key) for key in keys] == numbers
    assert lane_of(topics.lane_key(7, -1, 3)) == (-1, 3)
    assert lane_of(writer_lease(7, 9999, 3)) == (9999, 3)


@pytest.mark.parametrize("key", ["lanes/x", "lanes/1/", "", "lanes/\u0661/\u0661"])
def test_a_key_without_a_number_is_refused(key: str) -> None:
    with pytest.raises(BadRecord):
        lane_of(key)


@pytest.mark.parametrize("name", ["", "/", "a", "a/", "/b", "a/b/c", "a /b", "a/b\n", "a/\x00"])
def test_what_is_no_name_has_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="is not namespace/name"):
        topic_key(name)


def test_a_name_has_two_parts() -> None:
    assert split_topic("a-b.c/D_9") == ("a-b.c", "D_9")
