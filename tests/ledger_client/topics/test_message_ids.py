from __future__ import annotations

from array import array

import pytest

from ledger_client.topics.message_id import MessageId
from ledger_client.topics.message_ids import MessageIds, Run


def test_ids_are_a_sequence_made_of_runs() -> None:
    ids = MessageIds([Run(7, 3, -1, 0, 2), Run(7, 4, -1, 0, 1), Run(8, 1, -1, 0, 2)])
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
    assert list(MessageIds([Run(7, 3, 2, -1, 1)])) == [MessageId(7, 3, 2, -1)]


def test_routed_messages_are_found_by_the_rows_of_their_partitions() -> None:
    runs = [Run(1, 0, 0, 0, 2), Run(2, 0, 1, 0, 1), Run(1, 1, 0, 0, 1), Run(2, 1, 1, 0, 1)]
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
