"""Batches: the documented bytes, a model, every cut, every flipped bit, any columns."""

from __future__ import annotations

from array import array

import pytest
from batches import Sent, batches, columns_of, messages_of, model, plain
from hypothesis import given, settings, strategies as st

from native import batch
from native.batch import (
    BatchKind,
    Binary,
    Columns,
    Compression,
    Headers,
    decode,
    decode_control,
    encode,
    encode_control,
    read_header,
    stamp,
)
from native.errors import Corrupt, TooLarge

DOCUMENTED = bytes.fromhex(
    "51420100 00001f00 01000000 02000000 3a000000 03000000 e803000000000000 0000000000000000"
    "0000000000000080 0000000000000080 0700000000000000 7000000000000000"
    "0100000000000000 000000000200000002000000 00000000"
    "0100000000000000 000000000100000001000000 00000000 6b00000000000000 6869"
)
COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]


def test_the_documented_batch_is_what_encode_returns() -> None:
    columns = Columns.of([b"hi", None], keys=[b"k", None])
    payload = encode(columns, 0, 2, producer=b"p", sequence=7, epoch=3, created_ms=1000)
    assert payload == DOCUMENTED


def test_the_documented_batch_decodes_to_what_it_says() -> None:
    header, columns = decode(DOCUMENTED)
    assert messages_of(columns) == [Sent(b"hi", b"k"), Sent(None)]
    assert (header.producer, header.sequence, header.last_sequence) == ("p", 7, 8)
    assert (header.count, header.epoch, header.created_ms) == (2, 3, 1000)
    assert (header.event_time_min, header.event_time_max, header.last_timestamp) == (None, None, 0)
    assert header == read_header(DOCUMENTED)


@given(batches, st.binary(max_size=9).filter(lambda name: name.isascii()), st.integers(-1, 1 << 40))
def test_every_batch_is_what_the_model_says(
    messages: list[Sent], producer: bytes, sequence: int
) -> None:
    columns = columns_of(messages)
    payload = encode(columns, 0, columns.count, producer=producer, sequence=sequence)
    assert payload == model(messages, producer, sequence)


@given(batches, st.sampled_from(COMPRESSIONS), st.integers(0, 7))
def test_what_was_encoded_comes_back_wherever_the_payload_lies(
    messages: list[Sent], compression: Compression, shift: int
) -> None:
    payload = encode(columns_of(messages), 0, len(messages), compression=compression)
    found = decode(memoryview(bytes(shift) + payload)[shift:])
    assert messages_of(found.columns) == messages
    times = [m.event_time for m in messages if m.event_time is not None]
    assert found.header.event_time_min == min(times, default=None)
    assert found.header.event_time_max == max(times, default=None)
    assert found.header.last_timestamp == max(m.timestamp for m in messages)


@given(batches, st.data())
def test_a_batch_takes_the_rows_that_are_named(messages: list[Sent], data: st.DataObject) -> None:
    places = st.integers(0, len(messages) - 1)
    rows = array("I", data.draw(st.lists(places, min_size=1, max_size=30)))
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    payload = encode(columns_of(messages), start, stop, rows=rows)
    assert payload == model([messages[row] for row in rows[start:stop]])


@given(batches, st.data())
def test_decoded_columns_can_be_encoded_again(messages: list[Sent], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    once = decode(encode(columns_of(messages), 0, len(messages))).columns
    assert encode(once, start, stop) == model(messages[start:stop])


def test_what_is_null_in_every_message_takes_no_bytes() -> None:
    values = [bytes([i]) * 100 for i in range(200)]
    alone = encode(Columns.of(values), 0, 200)
    assert alone == encode(columns_of([Sent(value) for value in values]), 0, 200)
    assert len(alone) == 64 + 4 * 201 + 4 + 100 * 200
    assert len(encode(Columns.of([None] * 1000), 0, 1000)) == 64


def test_a_message_that_is_no_batch_says_so() -> None:
    payload = encode(Columns.of([b"alone"]), 0, 1, batched=False)
    assert not decode(payload).header.batched
    with pytest.raises(ValueError, match="2 messages in a batch, batched=False"):
        encode(Columns.of([b"a", b"b"]), 0, 2, batched=False)


# --- compression ------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_batch_tells_its_header_without_its_body(compression: Compression) -> None:
    messages = plain(300)
    payload = encode(columns_of(messages), 0, 300, compression=compression, producer=b"me")
    assert len(payload) < len(model(messages)) / 2
    # The body is damaged, and the header none the worse for it.
    header = read_header(payload[:72] + bytes(len(payload) - 72))
    assert (header.count, header.compression, header.producer) == (300, compression, "me")
    assert header.last_timestamp == 399


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_body_that_does_not_shrink_is_left_as_it_is(compression: Compression) -> None:
    columns = Columns.of([b"x"])
    payload = encode(columns, 0, 1, compression=compression)
    assert payload == encode(columns, 0, 1)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [400, 600])
def test_a_body_of_another_size_than_the_header_says_is_damage(
    compression: Compression, size: int
) -> None:
    # Of LZ4, the codec would leave the rest of the body as it found the memory.
    payload = encode(Columns.of([b"x" * 500]), 0, 1, compression=compression)
    other = batch.codec(compression).compress(b"x" * size, asbytes=True)
    with pytest.raises(Corrupt, match="a batch's body"):
        decode(payload[:64] + other)


# --- damage -----------------------------------------------------------------------


STAMPED = b"".join(
    (DOCUMENTED[:6], b"\x1f\x02", DOCUMENTED[8:32], b"\6\5\4\3\2\1\0\0", DOCUMENTED[40:])
)


def test_a_batch_gets_consecutive_timestamps_once_it_is_encoded() -> None:
    payload = stamp(DOCUMENTED, 0x010203040505)
    assert payload == STAMPED
    header, columns = decode(payload)
    assert header.last_timestamp == 0x010203040506
    assert columns.timestamps is not None
    assert columns.timestamps.tolist() == [0x010203040505, 0x010203040506]
    assert header.last_sequence == 8


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(batches, st.integers(1, (1 << 64) - 1))
def test_a_stamped_batch_is_the_same_but_for_its_timestamps(
    compression: Compression, messages: list[Sent], first: int
) -> None:
    unstamped = columns_of([each._replace(timestamp=0) for each in messages])
    payload = encode(unstamped, 0, unstamped.count, compression=compression)
    if first + len(messages) > 1 << 64:
        with pytest.raises(ValueError, match="cannot have these timestamps"):
            stamp(payload, first)
        return
    found = messages_of(decode(stamp(stamp(payload, 1), first)).columns)
    stamps = range(first, first + len(messages))
    assert found == [each._replace(timestamp=at) for each, at in zip(messages, stamps, strict=True)]
    assert read_header(stamp(payload, first)).last_timestamp == stamps[-1]


def test_what_cannot_have_consecutive_timestamps_is_refused() -> None:
    columns = columns_of([Sent(b"a", timestamp=5)])
    for payload, first in (
        (encode(columns, 0, 1), 9),
        (encode_control(BatchKind.LANE_STATE, b"x"), 9),
        (DOCUMENTED[:63], 9),
        (DOCUMENTED, 0),
        (DOCUMENTED, 1 << 64),
    ):
        with pytest.raises(ValueError, match="timestamp"):
            stamp(payload, first)


def test_consecutive_timestamps_and_a_column_of_them_are_corrupt() -> None:
    payload = encode(columns_of([Sent(b"a", timestamp=5)]), 0, 1)
    with pytest.raises(Corrupt):
        decode(_with(payload, 7, bytes([payload[7] | 2])))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_truncated_batch_is_corrupt(compression: Compression) -> None:
    payload = encode(columns_of(plain(30)), 0, 30, producer=b"me", compression=compression)
    for size in range(len(payload)):
        with pytest.raises(Corrupt):
            decode(payload[:size])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_flipped_bit_does_more_than_change_messages(compression: Compression) -> None:
    payload = encode(columns_of(plain(12)), 0, 12, producer=b"me", compression=compression)
    for i in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[i // 8] ^= 1 << i % 8
        try:
            found = decode(damaged)
        except Corrupt:
            continue
        assert len(messages_of(found.columns)) == found.header.count


@settings(max_examples=300)
@given(batches, st.data())
def test_no_damaged_batch_is_read_out_of_bounds(messages: list[Sent], data: st.DataObject) -> None:
    payload = bytearray(model(messages))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(payload)
    except Corrupt:
        return
    assert len(messages_of(found.columns)) == found.header.count


def _with(payload: bytes, at: int, cells: bytes) -> bytes:
    return payload[:at] + cells + payload[at + len(cells) :]


@pytest.mark.parametrize(
    ("at", "cells"),
    [
        pytest.param(0, b"X", id="magic"),
        pytest.param(2, b"\x02", id="a later version"),
        pytest.param(3, b"\x03", id="kind"),
        pytest.param(4, b"\x03", id="compression"),
        pytest.param(5, b"\x01", id="a zero that is none"),
        pytest.param(7, b"\x04", id="an unknown flag"),
        pytest.param(7, b"\x02", id="a first timestamp below 1"),
        pytest.param(6, b"\x1d", id="nulls of no column"),
        pytest.param(6, b"\x1e", id="two messages and no batch"),
        pytest.param(12, b"\xff\xff\xff\x7f", id="too many messages"),
        pytest.param(12, bytes(4), id="no messages"),
        pytest.param(16, b"\xff\xff\xff\xff", id="a huge body"),
        pytest.param(56, b"\xfe" + b"\xff" * 7, id="sequence -2"),
        pytest.param(64, b"\xff", id="a producer that is no text"),
        pytest.param(80, b"\x01", id="offsets that do not begin with 0"),
        pytest.param(84, b"\x03", id="offsets that fall"),
        pytest.param(88, b"\xff\xff\xff\x7f", id="offsets beyond the end"),
        pytest.param(88, b"\xff\xff\xff\xff", id="negative offsets"),
    ],
)
def test_what_no_encoder_writes_is_corrupt(at: int, cells: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(_with(DOCUMENTED, at, cells))


@pytest.mark.parametrize(
    "name", [b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xff"]
)
def test_header_names_that_are_no_text_are_refused_on_both_ways(name: bytes) -> None:
    good = encode(columns_of([Sent(b"", headers={"n" * len(name): b"v"})]), 0, 1)
    with pytest.raises(Corrupt):
        decode(good.replace(b"n" * len(name), name))
    headers = Headers(memoryview(array("i", [0, 1])), Binary.of([name]), Binary.of([b"v"]))
    with pytest.raises(ValueError, match="do not fit"):
        encode(Columns(count=1, values=Binary.of([b""]), headers=headers), 0, 1)


# --- limits -----------------------------------------------------------------------


def test_a_batch_that_fits_no_frame_is_refused_with_its_size() -> None:
    room = batch.SIZE_MAX - 64 - 8
    assert len(encode(Columns.of([bytes(room)]), 0, 1)) == batch.SIZE_MAX
    with pytest.raises(TooLarge) as refused:
        encode(Columns.of([bytes(room + 1)]), 0, 1, compression="zstd")
    assert refused.value.size_max == batch.SIZE_MAX
    assert refused.value.size == room + 1 + 8


def test_too_many_messages_for_a_batch_are_refused() -> None:
    columns = Columns.of([None] * (batch.COUNT_MAX + 1))
    assert decode(encode(columns, 0, batch.COUNT_MAX)).header.count == batch.COUNT_MAX
    with pytest.raises(TooLarge):
        encode(columns, 0, columns.count)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1), (1, 1)])
def test_messages_that_are_not_there_cannot_be_encoded(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="messages"):
        encode(Columns.of([b"a", b"b"]), start, stop)


def test_rows_that_are_not_there_cannot_be_encoded() -> None:
    for columns in (Columns.of([b"a"]), columns_of([Sent(b"a", b"k", 1, 1, {"n": b"v"})])):
        with pytest.raises(ValueError, match="out of bounds"):
            encode(columns, 0, 2, rows=array("I", [0, 1]))
    with pytest.raises(ValueError, match="'I' is needed"):
        encode(Columns.of([b"a"]), 0, 1, rows=array("Q", [0]))


@pytest.mark.parametrize("offsets", [[0, 2], [-1, 1], [1, 0], [5, 6]])
def test_offsets_out_of_bounds_cannot_be_encoded(offsets: list[int]) -> None:
    strings = Binary(memoryview(array("i", offsets)), memoryview(b"a"))
    with pytest.raises(ValueError, match="out of bounds"):
        encode(Columns(count=1, values=strings), 0, 1)
    with pytest.raises(ValueError, match="out of bounds"):
        encode(Columns(count=1, values=Binary.of([b""]), keys=strings), 0, 1)


def test_the_event_time_that_stands_for_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a time"):
        encode(Columns.of([b""], event_times=[-(1 << 63)]), 0, 1)


@pytest.mark.parametrize("producer", [b"\xff", b"x" * 65536])
def test_a_producer_whose_name_cannot_be_read_again_is_refused(producer: bytes) -> None:
    with pytest.raises(ValueError, match=r"producer's name|codec"):
        encode(Columns.of([b""]), 0, 1, producer=producer)


def test_the_longest_producer_name_comes_back() -> None:
    payload = encode(Columns.of([b"v"]), 0, 1, producer=b"x" * 65535)
    assert decode(payload).header.producer == "x" * 65535
    assert decode(payload).columns.values.to_list() == [b"v"]


# --- control entries --------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_control_entry_keeps_what_it_was_given(compression: Compression) -> None:
    payload = encode_control(
        BatchKind.LANE_STATE, b"state" * 50, compression=compression, epoch=4, created_ms=5
    )
    header, body = decode_control(payload)
    assert (header.kind, header.count, header.epoch) == (BatchKind.LANE_STATE, 0, 4)
    assert body == b"state" * 50
    assert read_header(payload) == header


def test_control_entries_and_messages_are_not_taken_for_each_other() -> None:
    with pytest.raises(Corrupt):
        decode(encode_control(BatchKind.TICK, b"", last_timestamp=9))
    with pytest.raises(Corrupt, match="not a control entry"):
        decode_control(DOCUMENTED)


def test_a_control_entry_has_the_limit_of_all_entries() -> None:
    assert len(encode_control(BatchKind.LANE_STATE, bytes(batch.SIZE_MAX - 64))) == batch.SIZE_MAX
    with pytest.raises(TooLarge):
        encode_control(BatchKind.LANE_STATE, bytes(batch.SIZE_MAX - 63))
