"""Frames: the documented bytes, every cut, every flipped bit, any bytes at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from wire import KEY, be, framed, header

from native import frame
from native._core import ffi, lib  # noqa: TID251 - parts without a binding of their own
from native.errors import Corrupt, ProtocolBroken
from native.frame import Code, Flag, Opcode, Request

HELLO = bytes.fromhex(
    "00000000000000010000000000000000ffffffffffffffff0000000000000005e3a5f74d68656c6c6f"
)
ADD_HELLO = bytes.fromhex("0000004102010000") + KEY + HELLO
READ_HELLO = bytes.fromhex("000000140202000000000000000000010000000000000000")
FENCE_HELLO = bytes.fromhex("00000028020200010000000000000001ffffffffffffffff") + KEY

AUTH = framed(header(3) + b"\x0a\x01x\x12\x00")
REQUESTS: dict[str, tuple[bytes, Request]] = {
    "add": (
        ADD_HELLO,
        Request(Opcode.ADD, ledger_id=1, entry_id=0, key=KEY, body=HELLO),
    ),
    "recovery add": (
        framed(header(1, 6) + KEY + HELLO),
        Request(
            Opcode.ADD, Flag.RECOVERY | Flag.PRIORITY, ledger_id=1, entry_id=0, key=KEY, body=HELLO
        ),
    ),
    "read": (READ_HELLO, Request(Opcode.READ, ledger_id=1, entry_id=0)),
    "fencing read": (
        FENCE_HELLO,
        Request(Opcode.READ, Flag.FENCE, ledger_id=1, entry_id=-1, key=KEY),
    ),
    "batch read": (
        framed(header(7) + be(1) + be(2) + be(3) + be(4, 4) + be(5)),
        Request(Opcode.BATCH_READ, ledger_id=1, entry_id=2, request_id=3, count_max=4, size_max=5),
    ),
    "fencing batch read": (
        framed(header(7, 1) + be(1) + be(2) + be(3) + be(-4, 4) + be(-5) + KEY),
        Request(
            Opcode.BATCH_READ,
            Flag.FENCE,
            ledger_id=1,
            entry_id=2,
            request_id=3,
            count_max=-4,
            size_max=-5,
            key=KEY,
        ),
    ),
    "auth": (AUTH, Request(Opcode.AUTH, body=AUTH[8:])),
    "read wait": (
        framed(header(64) + be(1) + be(2) + be(3) + be(4, 4) + be(5, 4) + be(-6) + be(7, 4)),
        Request(
            Opcode.READ_WAIT,
            ledger_id=1,
            entry_id=2,
            request_id=3,
            count_max=4,
            size_max=5,
            known_lac=-6,
            wait_ms=7,
        ),
    ),
    "write lac": (
        framed(header(65) + KEY + be(1) + be(2) + be(3)),
        Request(Opcode.WRITE_LAC, ledger_id=1, request_id=2, entry_id=3, key=KEY),
    ),
    "call": (
        framed(header(67) + be(-8) + b"\x81\xa1"),
        Request(Opcode.CALL, request_id=-8, body=b"\x81\xa1"),
    ),
    "empty call": (framed(header(67) + be(1)), Request(Opcode.CALL, request_id=1)),
    "pulse": (bytes.fromhex("0000000402440000"), Request(Opcode.PULSE)),
}
BUILT: dict[str, bytes] = {
    "read": frame.read(1, 0),
    "fencing read": frame.read(1, -1, flags=Flag.FENCE, key=KEY),
    "batch read": frame.batch_read(1, 2, 3, 4, 5),
    "fencing batch read": frame.batch_read(1, 2, 3, -4, -5, flags=Flag.FENCE, key=KEY),
    "read wait": frame.read_wait(1, 2, 3, 4, 5, -6, 7),
    "write lac": frame.write_lac(KEY, 1, 2, 3),
    "call": frame.call(-8, b"\x81\xa1"),
    "empty call": frame.call(1, b""),
    "pulse": frame.pulse(),
}
RESPONSES: dict[str, tuple[bytes, bytes]] = {
    "add": (
        frame.response(Opcode.ADD, Code.OK, 1, 2),
        bytes.fromhex("000000180201000000000000") + be(1) + be(2),
    ),
    "read": (
        frame.response(Opcode.READ, Code.OK, 1, -1, b"entry"),
        framed(header(2) + be(0, 4) + be(1) + be(-1) + b"entry"),
    ),
    "failed read": (
        frame.response(Opcode.READ, Code.NO_ENTRY, 1, 7),
        framed(header(2) + be(2, 4) + be(1) + be(7)),
    ),
    "batch read": (
        frame.batch_response(Code.OK, 1, 2, 3, b"entries"),
        framed(header(7) + be(0, 4) + be(1) + be(2) + be(3) + b"entries"),
    ),
    "read wait": (
        frame.read_wait_response(Code.OK, 1, 2, 3, -4, True, b"entries"),
        framed(header(64) + be(0, 4) + be(1) + be(2) + be(3) + be(-4) + be(1, 4) + b"entries"),
    ),
    "write lac": (
        frame.response(Opcode.WRITE_LAC, Code.OK, 1, 2),
        framed(header(65) + be(0, 4) + be(1) + be(2)),
    ),
    "call": (
        frame.call_response(Code.BAD_REQUEST, 9, b"reply"),
        framed(header(67) + be(100, 4) + be(9) + b"reply"),
    ),
    "pulse": (frame.pulse(), framed(header(68))),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_taken_apart(name: str) -> None:
    data, expected = REQUESTS[name]
    assert frame.parse_request(data) == expected
    assert frame.find(data + b"more") == (len(data), True)


@pytest.mark.parametrize("name", BUILT)
def test_a_request_is_built_byte_for_byte(name: str) -> None:
    assert BUILT[name] == REQUESTS[name][0]


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_built_byte_for_byte(name: str) -> None:
    built, expected = RESPONSES[name]
    assert built == expected


@pytest.mark.parametrize("name", REQUESTS)
def test_a_cut_frame_is_not_whole_and_never_parsed(name: str) -> None:
    data = REQUESTS[name][0]
    for size in range(len(data)):
        assert frame.find(data[:size]) == (0 if size < 4 else len(data), False)
        with pytest.raises(ProtocolBroken):
            frame.parse_request(data[:size])


VARIABLE = {"add", "recovery add", "auth", "call", "empty call"}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_frame_that_is_too_long_or_short_for_its_opcode_breaks_the_protocol(name: str) -> None:
    body = REQUESTS[name][0][4:]
    if name not in VARIABLE:
        for wrong in (body + b"x", body[:-1], body + KEY):
            with pytest.raises(ProtocolBroken):
                frame.parse_request(framed(wrong))
    shortest = {Opcode.ADD: 56, Opcode.AUTH: 4, Opcode.CALL: 12}.get(Opcode(body[1]), len(body))
    for size in range(4, shortest):
        with pytest.raises(ProtocolBroken):
            frame.parse_request(framed(body[:size]))


@pytest.mark.parametrize("name", REQUESTS)
def test_every_flipped_bit_gives_a_verdict(name: str) -> None:
    data = REQUESTS[name][0]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        judge(bytes(flipped), lib.bk_frame_parse_request, "bk_request")


@pytest.mark.parametrize("name", RESPONSES)
def test_every_cut_and_flipped_bit_of_a_response_gives_a_verdict(name: str) -> None:
    data = RESPONSES[name][0]
    for size in range(len(data)):
        assert judge(data[:size], lib.bk_frame_parse_response, "bk_response") == lib.BK_CLOSE
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        judge(bytes(flipped), lib.bk_frame_parse_response, "bk_response")


@given(
    st.binary(max_size=80),
    st.sampled_from([*Opcode, 4, 5, 6, 66, 255]),
    st.integers(0, 3),
    st.integers(0, 7),
)
def test_any_body_of_any_opcode_gives_a_verdict(
    body: bytes, opcode: int, version: int, flags: int
) -> None:
    data = framed(header(opcode, flags, version) + body)
    judge(data, lib.bk_frame_parse_request, "bk_request")
    judge(data, lib.bk_frame_parse_response, "bk_response")


@given(st.binary(max_size=80))
def test_any_bytes_give_a_verdict(data: bytes) -> None:
    judge(data, lib.bk_frame_parse_request, "bk_request")
    judge(data, lib.bk_frame_parse_response, "bk_response")


def judge(data: bytes, parse: Callable[..., int], kind: str) -> int:
    """Parse bytes that end at the end of their memory; the body found lies in them."""
    parsed = ffi.new(f"{kind} *")
    lent = ffi.new("uint8_t[]", data)
    verdict = parse(lent, len(data), parsed)
    assert verdict in {lib.BK_OK, lib.BK_CORRUPT, lib.BK_CLOSE}
    if verdict == lib.BK_OK:
        assert parsed.body_offset + parsed.body_size <= len(data)
    return verdict


@pytest.mark.parametrize("version", [3, 10, 127, 128, 255])
def test_a_version_above_two_is_a_bad_version(version: int) -> None:
    with pytest.raises(Corrupt):
        frame.parse_request(framed(header(2, 0, version) + be(1) + be(0)))


@pytest.mark.parametrize("version", [0, 1])
def test_a_fencing_read_of_an_old_version_has_no_key(version: int) -> None:
    request = frame.parse_request(framed(header(2, Flag.FENCE, version) + be(1) + be(0)))
    assert request == Request(Opcode.READ, Flag.FENCE, ledger_id=1)


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 63, 66, 69, 255])
def test_an_unknown_opcode_breaks_the_protocol(opcode: int) -> None:
    with pytest.raises(ProtocolBroken):
        frame.parse_request(framed(header(opcode) + bytes(40)))


@pytest.mark.parametrize("size", [0, 3, (5 << 20) + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_an_impossible_length_breaks_the_protocol_at_once(size: int) -> None:
    with pytest.raises(ProtocolBroken):
        frame.find(be(size, 4))


def test_the_greatest_length_is_allowed() -> None:
    assert frame.find(be(5 << 20, 4)) == ((5 << 20) + 4, False)


def test_a_key_has_twenty_bytes() -> None:
    with pytest.raises(ValueError, match="20 bytes"):
        frame.read(1, 0, flags=Flag.FENCE, key=b"short")


def test_a_body_larger_than_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="most"):
        frame.call(1, bytes(5 << 20))
