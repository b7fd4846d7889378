"""Rows of what members of shared groups have."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from ledger_client.groups.share import Share, State, messages_left
from metadata.errors import BadRecord
from metadata.groups.shares import (
    FREE,
    ShareRecord,
    decode_share,
    decode_want,
    holder_of,
    row_of_holder,
    share_key,
)

RECORD = ShareRecord(
    topic=7,
    partition=3,
    lane=1,
    number=2,
    ledger_id=40,
    entry=5,
    version=90,
    counts=[2, 0, 3],
    done=bytes([0b00101]),
    run="r",
    deliveries=1,
    is_blind=True,
    tries={1: 2},
)
ROW = (
    b'{"topic":7,"partition":3,"lane":1,"number":2,"ledger_id":40,"entry":5,"version":90,'
    b'"counts":[2,0,3],"done":"BQ==","run":"r","deliveries":1,"is_blind":true,"tries":{"1":2}}'
)


def test_a_share_is_stored_as_documented() -> None:
    assert msgspec.json.encode(RECORD) == ROW
    assert decode_share("k", ROW) == RECORD
    share = Share(RECORD, "s", is_blind=True)
    assert share.in_state(State.READY) == [1, 3, 4]
    assert share.left == messages_left(RECORD) == 3
    assert [share.count(index) for index in (1, 3)] == [2, 1]
    assert [share.is_new(index) for index in (1, 3)] == [False, True]


@pytest.mark.parametrize("size", range(len(ROW)))
def test_a_row_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(BadRecord, match="shares/a"):
        decode_share("shares/a", ROW[:size])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"BQ=="', b'"BQU="'),  # two bytes of bits for five messages
        (b'"BQ=="', b'""'),
        (b"[2,0,3]", b"[]"),
        (b"[2,0,3]", b"[2,0,9]"),
        (b"[2,0,3]", b"[2,0,9999999]"),
        (b"[2,0,3]", b"[2,-1,3]"),
        (b'{"1":2}', b'{"5":2}'),
        (b'{"1":2}', b'{"-1":2}'),
        (b'"deliveries":1', b'"deliveries":-1'),
        (b'"partition":3', b'"partition":160000'),
        (b'"version":90', b'"version":"x"'),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(old: bytes, new: bytes) -> None:
    assert old in ROW
    with pytest.raises(BadRecord):
        decode_share("shares/a", ROW.replace(old, new))
    with pytest.raises(BadRecord):
        decode_want("share-wants/a", b"")


def test_a_key_names_the_holder() -> None:
    key = share_key("billing", "till-3", "ab")
    assert holder_of(key) == "till-3"
    assert row_of_holder("billing", key) == "group-members/billing/till-3"
    assert row_of_holder("billing", share_key("billing", FREE, "ab")) is None


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(sum),
    st.sets(st.integers(0, 800)),
    st.sets(st.integers(0, 800)),
)
def test_a_share_and_what_leaves_it_hold_each_message_once(
    counts: list[int], done: set[int], leaving: set[int]
) -> None:
    messages = sum(counts)
    bits = bytearray((messages + 7) // 8)
    for index in done:
        if index < messages:
            bits[index // 8] |= 1 << index % 8
    record = msgspec.structs.replace(RECORD, counts=counts, done=bytes(bits), tries={})
    share = Share(record, "s", is_blind=True)
    expected = [index for index in range(messages) if index not in done]
    assert share.in_state(State.READY) == expected
    gone = [index for index in expected if index in leaving]
    rest = Share(share.row("r", without=gone), "s", is_blind=True)
    left = Share(share.part_of(gone), "t", is_blind=False)
    assert rest.in_state(State.READY) == [index for index in expected if index not in leaving]
    assert left.in_state(State.READY) == gone
    assert messages_left(rest.record) + messages_left(left.record) == len(expected)
