"""Rows of replays: as JSON that people can read, and what is refused."""

from __future__ import annotations

import json

import msgspec
import pytest

from metadata.errors import BadRecord
from metadata.paged import PAGED_SIZE_MAX
from metadata.replays import (
    PARTS_MAX,
    LaneMark,
    ReplayMark,
    ReplayRecord,
    SentChecksum,
    SourceTopic,
    decode_mark,
    decode_replay,
    encode_mark,
    encode_replay,
    replay_key,
)

END = LaneMark(0, -1, 0, 3, 17, 2, 55, 1017, 9)
RECORD = ReplayRecord(
    name="n",
    run="replay-n-1",
    sources=[SourceTopic("a/b", 7)],
    order="time",
    range_text="everything",
    target="topic a/c",
    end=[END],
    reached=[LaneMark(0, -1, 0, 0)],
    sent=[SentChecksum(-2, 3, (1 << 64) - 1, 1 << 63)],
)


def test_a_record_survives_storage_and_can_be_read() -> None:
    stored = encode_replay(RECORD)
    assert decode_replay("replays/n", stored) == RECORD
    assert json.loads(stored)["end"] == [[0, -1, 0, 3, 17, 2, 55, 1017, 9]]


def test_a_mark_survives_storage_and_one_that_is_over_is_small() -> None:
    mark = ReplayMark(batch_id=3, at_ms=9, reached=RECORD.reached, sent=RECORD.sent, bytes=5)
    assert decode_mark("sinks/x", encode_mark(mark)) == mark
    assert decode_mark("sinks/x", b'{"batch_id":0,"over":true}').over
    assert len(encode_mark(ReplayMark(batch_id=0, over=True))) < 100
    with pytest.raises(BadRecord, match="sinks/x"):
        decode_mark("sinks/x", b'{"reached":[]}')


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"[]",
        b'{"name":"n"}',
        encode_replay(RECORD)[:-1],
        encode_replay(msgspec.structs.replace(RECORD, reached=[])),
        encode_replay(msgspec.structs.replace(RECORD, reached=[LaneMark(0, -1, 1, 0)])),
        encode_replay(RECORD).replace(b'"time"', b'"odd"'),
    ],
    ids=range(7),
)
def test_what_is_no_record_is_told_with_its_key(wrong: bytes) -> None:
    with pytest.raises(BadRecord, match="replays/n"):
        decode_replay("replays/n", wrong)


def test_the_largest_record_fits_a_value_in_pages() -> None:
    marks = [
        LaneMark(9, 9999, lane, 10**7, 10**7, 9999, 10**9, 10**10, 10**12)
        for lane in range(PARTS_MAX // 4)
    ]
    word = (1 << 64) - 1
    sent = [SentChecksum(part, 10**10, word, word) for part in range(PARTS_MAX // 2)]
    record = msgspec.structs.replace(RECORD, end=marks, reached=marks, sent=sent)
    assert len(encode_replay(record)) <= PAGED_SIZE_MAX


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a b", "x" * 201])
def test_what_cannot_be_part_of_a_key_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not 1 to 200"):
        replay_key(name)
