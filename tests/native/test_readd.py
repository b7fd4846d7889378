"""Entries that a bookie gave, made into ADD frames for another one, verbatim."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from wire import KEY, be, framed, header

from native.digest import Digest, DigestKind
from native.errors import Corrupt
from native.frame import Flag, parse_request
from native.link import add_frame, readd, readd_one

CRC32C = Digest(DigestKind.CRC32C)
FLAGS = Flag.RECOVERY | Flag.PRIORITY


def stored(entry_id: int, payload: bytes) -> bytes:
    return add_frame(CRC32C, 1, entry_id, entry_id - 1, 7, payload)[28:]


def batch(entries: list[bytes]) -> bytes:
    return b"".join(be(len(entry), 4) + entry for entry in entries)


@given(st.lists(st.binary(max_size=50), max_size=9))
def test_a_batch_becomes_frames_of_the_very_same_bytes(payloads: list[bytes]) -> None:
    entries = [stored(i, payload) for i, payload in enumerate(payloads)]
    frames, count = readd(KEY, FLAGS, batch(entries))
    assert count == len(entries)
    assert bytes(frames) == b"".join(framed(header(1, FLAGS) + KEY + entry) for entry in entries)


def test_one_entry_becomes_the_frame_that_stored_it() -> None:
    built = add_frame(CRC32C, 1, 5, 4, 7, b"hello", flags=FLAGS)
    assert bytes(readd_one(CRC32C.master_key, FLAGS, built[28:])) == built
    assert parse_request(built).flags == FLAGS


def test_every_cut_of_a_batch_is_damage_unless_an_entry_ends_there() -> None:
    entries = [stored(i, b"payload") for i in range(3)]
    body = batch(entries)
    ends = [len(batch(entries[:n])) for n in range(4)]
    for size in range(len(body)):
        if size in ends:
            assert readd(KEY, 0, body[:size])[1] == ends.index(size)
        else:
            with pytest.raises(Corrupt):
                readd(KEY, 0, body[:size])


@pytest.mark.parametrize("size", [0, 31, (5 << 20) - 47])
def test_what_no_add_frame_holds_is_no_entry(size: int) -> None:
    with pytest.raises(Corrupt):
        readd_one(KEY, 0, bytes(size))
    with pytest.raises(Corrupt):
        readd(KEY, 0, be(size, 4) + bytes(size))


def test_the_largest_entry_fits() -> None:
    largest = bytes((5 << 20) - 48)
    assert len(readd_one(KEY, 0, largest)) == (5 << 20) - 20
    assert readd(KEY, 0, batch([largest]))[1] == 1


def test_a_key_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="20 bytes"):
        readd_one(b"short", 0, bytes(32))
