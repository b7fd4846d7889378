"""What a caller says of itself, against a peer that answers as it is told."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from metadata.access import (
    ACCEPTED,
    MESSAGE_SIZE_MAX,
    NO_PLUGIN,
    PLUGIN,
    REFUSED,
    Access,
    Login,
    auth_frame,
    parse_auth,
    parse_login,
)
from metadata.errors import AccessDenied, BadRecord

ALICE = Access(login=Login("alice", "secret"))


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


async def call(answer: bytes) -> tuple[trio.abc.Stream, bytes]:
    """Log in as alice at a peer that answers *answer* and leaves; return what it received."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def reach(_host: str, _port: int) -> trio.abc.Stream:
        return ours

    await theirs.send_all(answer)
    await theirs.send_eof()
    stream = await ALICE.opener(reach)("host", 1)
    return stream, bytes(await theirs.receive_some())


async def test_a_caller_says_who_it_is_before_anything_else() -> None:
    _, received = await call(auth_frame(PLUGIN, ACCEPTED))
    assert parse_login(parse_auth(received[8:])[1]) == ALICE.login


async def test_a_bookie_that_wants_no_login_is_as_good() -> None:
    await call(auth_frame(NO_PLUGIN, b""))


async def test_a_refusal_is_final_and_does_not_tell_the_password() -> None:
    with pytest.raises(AccessDenied, match="alice") as refused:
        await call(auth_frame(PLUGIN, REFUSED))
    assert "secret" not in str(refused.value)
    with pytest.raises(AccessDenied, match="KERBEROS"):
        await call(auth_frame("KERBEROS", b""))


@pytest.mark.parametrize("answer", [b"", b"\0\0", b"\xff" * 64, auth_frame(PLUGIN, b"")[:-1]])
async def test_an_answer_that_is_none_is_a_lost_connection(answer: bytes) -> None:
    with pytest.raises(OSError, match="host:1"):
        await call(answer)
