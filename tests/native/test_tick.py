"""Ticks as entries: the documented bytes, a model, every cut, every flipped bit."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from native.batch import BatchKind, decode, encode_control
from native.errors import Corrupt, TooLarge
from native.tick import COVERS_MAX, WHOLE_EVERY, LaneIndex, TickEntry, decode_tick, encode_tick

DOCUMENTED = bytes.fromhex(
    "5142010200000000 0000000000000000 2800000000000000 e803000000000000 0605040302010000"
    "0000000000000080 0000000000000080 ffffffffffffffff 0100000002000000"
    "ffffffff00000000 0700000000000000 0100000002000000 0900000000000000"
)
COVERS = {(-1, 0): 7, (1, 2): 9}
lanes = st.tuples(st.integers(-1, 9999), st.integers(0, (1 << 32) - 1))
covers = st.dictionaries(lanes, st.integers(0, (1 << 63) - 1), max_size=20)
HEAD_SIZE = 64


def body_of(flags: int, *these: tuple[int, int, int], count: int | None = None) -> bytes:
    body = flags.to_bytes(4, "little")
    body += (len(these) if count is None else count).to_bytes(4, "little")
    for partition, lane, version in these:
        body += partition.to_bytes(4, "little", signed=True)
        body += lane.to_bytes(4, "little") + version.to_bytes(8, "little")
    return body


def test_the_documented_tick_is_what_encode_returns() -> None:
    """MV-21: a tick is an entry of a kind of its own."""
    payload = encode_tick(0x010203040506, COVERS, is_whole=True, created_ms=1000)
    assert payload == DOCUMENTED


def test_the_documented_tick_decodes_to_what_it_says() -> None:
    assert decode_tick(DOCUMENTED) == TickEntry(0x010203040506, COVERS, True, 1000)


@given(st.integers(1, (1 << 64) - 1), covers, st.booleans())
def test_every_tick_is_what_the_model_says_and_comes_back(
    timestamp: int, these: dict[LaneIndex, int], is_whole: bool
) -> None:
    payload = encode_tick(timestamp, these, is_whole=is_whole)
    body = body_of(is_whole, *((*lane, these[lane]) for lane in sorted(these)))
    assert payload == encode_control(BatchKind.TICK, body, last_timestamp=timestamp)
    assert decode_tick(payload) == TickEntry(timestamp, these, is_whole, 0)


def test_every_cut_of_a_tick_is_found() -> None:
    for size in range(len(DOCUMENTED)):
        with pytest.raises(Corrupt):
            decode_tick(DOCUMENTED[:size])


def test_every_flipped_bit_gives_damage_or_a_sound_tick() -> None:
    for bit in range(8 * len(DOCUMENTED)):
        flipped = bytearray(DOCUMENTED)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            tick = decode_tick(bytes(flipped))
        except Corrupt:
            continue
        assert tick.timestamp > 0
        assert sorted(tick.covers) == list(tick.covers)
        assert len(tick.covers) == len(COVERS)
        assert all(p >= -1 and 0 <= version < 1 << 63 for (p, _), version in tick.covers.items())


@pytest.mark.parametrize(
    "body",
    [
        body_of(2),
        body_of(1, count=1),
        body_of(1, (-2, 0, 0)),
        body_of(1, (0, 0, 1 << 63)),
        body_of(1, (0, 1, 0), (0, 1, 0)),
        body_of(1, (1, 0, 0), (0, 1, 0)),
    ],
    ids=["flag", "size", "partition", "version", "twice", "order"],
)
def test_covers_that_break_a_rule_are_damage(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_tick(encode_control(BatchKind.TICK, body, last_timestamp=1))


def test_only_a_tick_with_a_timestamp_is_one() -> None:
    """MV-21: a tick is no message, and an entry of another kind is no tick."""
    body = DOCUMENTED[HEAD_SIZE:]
    assert decode_tick(encode_control(BatchKind.TICK, body, last_timestamp=1)).covers == COVERS
    with pytest.raises(Corrupt):
        decode_tick(encode_control(BatchKind.TICK, body))
    with pytest.raises(Corrupt):
        decode_tick(encode_control(BatchKind.LANE_STATE, body, last_timestamp=1))
    with pytest.raises(Corrupt):
        decode_tick(encode_control(BatchKind.TICK, body, producer=b"p", last_timestamp=1))
    with pytest.raises(Corrupt):
        decode(DOCUMENTED)


def test_a_tick_of_too_many_lanes_is_refused() -> None:
    many = {(0, lane): lane for lane in range(COVERS_MAX)}
    assert decode_tick(encode_tick(5, many, is_whole=True)).covers == many
    with pytest.raises(TooLarge):
        encode_tick(5, {**many, (1, 0): 0}, is_whole=True)
    assert WHOLE_EVERY == 100
