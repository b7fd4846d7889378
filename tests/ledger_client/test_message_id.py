"""Message ids: four parts, printed and parsed."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, strategies as st

from ledger_client.message_id import IdRange, MessageId, MessageIds

IDS = st.integers(0, 2**63 - 1)
PARTS = st.integers(-1, 2**31 - 1)


@given(IDS, IDS, PARTS, PARTS)
def test_an_id_is_parsed_as_it_was_printed(
    ledger_id: int, entry_id: int, partition: int, index: int
) -> None:
    """PS-01: ledgerId:entryId:partition-index:batch-index."""
    message_id = MessageId(ledger_id, entry_id, partition, index)
    assert MessageId.parse(str(message_id)) == message_id


def test_the_text_has_pulsars_form() -> None:
    """PS-02, PS-03, PS-42: -1 without partitions; the batch index only where there is one."""
    assert str(MessageId(7, 3)) == "7:3:-1"
    assert str(MessageId(7, 3, 2)) == "7:3:2"
    assert str(MessageId(7, 3, 2, 11)) == "7:3:2:11"
    assert MessageId.parse("7:3:-1:-1") == MessageId(7, 3)


NO_IDS = """
7|7:3|7:3:|7:3:0:|7:3:0:1:2|-7:3:0|7:-1:0|7:3:-2|7:3:0:-2|a:3:0| 7:3:0|7:3:0\x00
9223372036854775808:0:0|\u0667:3:0
"""


@pytest.mark.parametrize("text", ["", *NO_IDS.strip().replace("\n", "|").split("|")])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a message id"):
        MessageId.parse(text)


def test_ids_of_a_lane_order_as_they_were_written() -> None:
    ids = [MessageId(1, 0, 0, 0), MessageId(1, 0, 0, 1), MessageId(1, 1, 0), MessageId(2, 0, 0)]
    assert sorted(ids, reverse=True)[::-1] == ids


def test_the_id_of_a_duplicate_whose_place_is_unknown_is_parsed_as_it_prints() -> None:
    unknown = MessageId(-1, -1, 3)
    assert str(unknown) == "-1:-1:3"
    assert MessageId.parse("-1:-1:3") == unknown
    for text in ("-1:0:3", "0:-1:3", "-2:-2:3"):
        with pytest.raises(ValueError, match="is not a message id"):
            MessageId.parse(text)


def test_ids_are_a_sequence_made_of_runs() -> None:
    ids = MessageIds([IdRange(7, 3, -1, 0, 2), IdRange(7, 4, -1, 0, 1), IdRange(8, 1, -1, 0, 2)])
    listed = [
        MessageId(7, 3, -1, 0),
        MessageId(7, 3, -1, 1),
        MessageId(7, 4, -1, 0),
        MessageId(8, 1, -1, 0),
        MessageId(8, 1, -1, 1),
    ]
    assert list(ids) == listed
    assert ids == listed
    assert [ids[i] for i in range(-5, 5)] == listed * 2
    assert ids[1:4] == listed[1:4]
    assert list(reversed(ids)) == listed[::-1]
    assert ids != listed[1:]
    assert MessageId(8, 1, -1, 1) in ids
    for index in (5, -6):
        with pytest.raises(IndexError):
            ids[index]
    assert repr(ids) == "<5 message ids: 7:3:-1:0, 7:3:-1:1, 7:4:-1:0, ...>"


def test_messages_that_are_no_batch_have_no_index() -> None:
    assert list(MessageIds([IdRange(7, 3, 2, -1, 1)])) == [MessageId(7, 3, 2, -1)]


def test_routed_messages_are_found_by_the_rows_of_their_partitions() -> None:
    runs = [
        IdRange(1, 0, 0, 0, 2),
        IdRange(2, 0, 1, 0, 1),
        IdRange(1, 1, 0, 0, 1),
        IdRange(2, 1, 1, 0, 1),
    ]
    rows = [
        (0, array("I", [0, 2])),
        (0, array("I", [1])),
        (3, array("I", [1])),
        (3, array("I", [0])),
    ]
    ids = MessageIds(runs, rows)
    listed = [(1, 0, 0, 0), (2, 0, 1, 0), (1, 0, 0, 1), (2, 1, 1, 0), (1, 1, 0, 0)]
    assert list(ids) == [MessageId(*parts) for parts in listed]


def test_no_ids_at_all() -> None:
    assert list(MessageIds([])) == []
    assert len(MessageIds([])) == 0
