"""The AUTH frame, and logins in it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from metadata.access import (
    MESSAGE_SIZE_MAX,
    auth_frame,
    parse_auth,
    parse_login,
)
from metadata.errors import BadRecord


@given(st.text(max_size=200), st.binary(max_size=300))
def test_a_message_is_read_as_it_was_written(plugin: str, payload: bytes) -> None:
    frame = auth_frame(plugin, payload)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert parse_auth(frame[8:]) == (plugin, payload)


def test_the_bytes_are_those_of_protobuf() -> None:
    frame = auth_frame("PLAIN", b"\0a\0b")
    assert frame.hex(" ") == "00 00 00 11 02 03 00 00 0a 05 50 4c 41 49 4e 12 04 00 61 00 62"


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(body: bytes) -> None:
    try:
        parse_auth(body)
    except BadRecord:
        return


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_message_that_is_cut_is_refused_or_lacks_a_field(cut: int) -> None:
    body = auth_frame("PLAIN", b"\0a\0b")[8:]
    try:
        assert parse_auth(body[:-cut]) != ("PLAIN", b"\0a\0b")
    except BadRecord:
        return


def test_a_message_without_end_is_refused() -> None:
    with pytest.raises(BadRecord, match="4096"):
        parse_auth(bytes(MESSAGE_SIZE_MAX + 1))
    with pytest.raises(BadRecord):
        parse_auth(b"\x0a\xff\xff\xff\xff\xff")


@pytest.mark.parametrize("payload", [b"", b"alice", b"\0alice", b"\0a\0b\0c", b"\xff\0a\0b"])
def test_a_payload_that_names_nobody_is_none(payload: bytes) -> None:
    assert parse_login(payload) is None
