"""Frames, as frame.h lays them out: requests and responses, built and parsed."""

from __future__ import annotations

import enum

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.errors import check

_HEAD_SIZE_MAX = 68
ENTRY_SIZE_MAX = int(lib.BK_ENTRY_SIZE_MAX)
"""Bytes of the largest stored entry that a bookie takes; frame.h says why."""
CALL_SIZE_MAX = int(lib.BK_FRAME_SIZE_MAX) - int(lib.BK_READ_WAIT_HEADER_SIZE)
"""Bytes of the largest body that call and the builders of responses take."""


class Opcode(enum.IntEnum):
    """The opcode of a request frame; frame.h lists them."""

    ADD = lib.BK_OP_ADD
    READ = lib.BK_OP_READ
    AUTH = lib.BK_OP_AUTH
    BATCH_READ = lib.BK_OP_BATCH_READ
    READ_WAIT = lib.BK_OP_READ_WAIT
    WRITE_LAC = lib.BK_OP_WRITE_LAC
    CALL = lib.BK_OP_CALL
    PULSE = lib.BK_OP_PULSE
    INCARNATION = lib.BK_OP_INCARNATION


class Flag(enum.IntFlag):
    """Bits of a request's flags; frame.h lists them."""

    FENCE = lib.BK_FLAG_FENCE
    RECOVERY = lib.BK_FLAG_RECOVERY
    PRIORITY = lib.BK_FLAG_PRIORITY
    MEND = lib.BK_FLAG_MEND
    FROM_LOG = lib.BK_FLAG_FROM_LOG


class Code(enum.IntEnum):
    """Result codes of responses; a peer may send others."""

    OK = lib.BK_CODE_OK
    NO_LEDGER = lib.BK_CODE_NO_LEDGER
    NO_ENTRY = lib.BK_CODE_NO_ENTRY
    BAD_REQUEST = lib.BK_CODE_BAD_REQUEST
    IO_ERROR = lib.BK_CODE_IO_ERROR
    UNAUTHORIZED = lib.BK_CODE_UNAUTHORIZED
    BAD_VERSION = lib.BK_CODE_BAD_VERSION
    FENCED = lib.BK_CODE_FENCED
    READ_ONLY = lib.BK_CODE_READ_ONLY
    TOO_MANY = lib.BK_CODE_TOO_MANY
    UNKNOWN_STATE = lib.BK_CODE_UNKNOWN_STATE
    OTHER_LEDGER = lib.BK_CODE_OTHER_LEDGER


class Request(msgspec.Struct, frozen=True):
    """A request frame. Fields that its opcode lacks are 0 or empty.

    *entry_id* is the start entry of a batch and the LAC of WRITE_LAC; *key* is the master key,
    `None` if the frame has none; *body* is the bytes of AUTH and CALL, or the stored entry of ADD.
    """

    opcode: int
    flags: int = 0
    ledger_id: int = 0
    entry_id: int = 0
    request_id: int = 0
    known_lac: int = 0
    size_max: int = 0
    count_max: int = 0
    wait_ms: int = 0
    key: bytes | None = None
    body: bytes = b""
    incarnation: int = 0
    """of INCARNATION; of others what the connection said of the ledger, 0 for nothing"""
    other_code: int = 0
    """the answer when the ledger is of another incarnation"""


def take_request(raw: CData, source: CData) -> Request:
    """Return a bk_request as a Request; its body offset counts from *source*."""
    return Request(
        raw.opcode,
        raw.flags,
        raw.ledger_id,
        raw.entry_id,
        raw.request_id,
        raw.known_lac,
        raw.size_max,
        raw.count_max,
        raw.wait_ms,
        bytes(raw.key) if raw.has_key else None,
        bytes(ffi.buffer(source + raw.body_offset, raw.body_size)) if raw.body_size else b"",
        raw.incarnation,
        raw.other_code,
    )


def find(data: bytes | bytearray | memoryview) -> tuple[int, bool]:
    """Return the size of the frame at the start of *data*, and whether it is whole.

    The size includes the length word; it is 0 until that has arrived.

    Raises:
        ProtocolBroken: the length is out of bounds.
    """
    size = ffi.new("uint32_t *")
    with ffi.from_buffer(data) as pointer:
        result = lib.bk_frame_find(pointer, len(pointer), size)
    if result != lib.BK_END:
        check(result, "a frame's length")
    return size[0], result == lib.BK_OK


def parse_request(frame: bytes | bytearray | memoryview) -> Request:
    """Parse one whole request frame.

    Raises:
        Corrupt: its version is above 2.
        ProtocolBroken: the bytes are not a request frame.
    """
    raw = ffi.new("bk_request *")
    with ffi.from_buffer(frame) as pointer:
        check(lib.bk_frame_parse_request(pointer, len(pointer), raw), "a request frame")
        return take_request(raw, pointer)


# --- requests ---------------------------------------------------------------------


def read(ledger_id: int, entry_id: int, *, flags: int = 0, key: bytes | None = None) -> bytes:
    """Return a READ; entry -1 is the last one. With Flag.FENCE it needs the *key*."""
    out = _head()
    return _cut(out, lib.bk_frame_read(out, flags, ledger_id, entry_id, _lend_key(key)))


def batch_read(
    ledger_id: int,
    start_id: int,
    request_id: int,
    count_max: int,
    size_max: int,
    *,
    flags: int = 0,
    key: bytes | None = None,
) -> bytes:
    """Return a BATCH_READ; *count_max* 0 sets no limit, *size_max* is bytes of the response."""
    out = _head()
    size = lib.bk_frame_batch_read(
        out, flags, ledger_id, start_id, request_id, count_max, size_max, _lend_key(key)
    )
    return _cut(out, size)


def read_wait(
    ledger_id: int,
    start_id: int,
    request_id: int,
    count_max: int,
    size_max: int,
    known_lac: int,
    wait_ms: int,
) -> bytes:
    """Return a READ_WAIT, answered when the LAC passes *known_lac* or after *wait_ms*."""
    out = _head()
    size = lib.bk_frame_read_wait(
        out, ledger_id, start_id, request_id, count_max, size_max, known_lac, wait_ms
    )
    return _cut(out, size)


def write_lac(key: bytes, ledger_id: int, request_id: int, lac: int) -> bytes:
    """Return a WRITE_LAC: every entry up to *lac* is confirmed."""
    out = _head()
    return _cut(out, lib.bk_frame_write_lac(out, _lend_key(key), ledger_id, request_id, lac))


def pulse() -> bytes:
    """Return a PULSE, which looks the same as request and as response."""
    out = _head()
    return _cut(out, lib.bk_frame_pulse(out))


def incarnation(ledger_id: int, number: int) -> bytes:
    """Return an INCARNATION, which later requests refer to; 0 accepts any again."""
    out = _head()
    return _cut(out, lib.bk_frame_incarnation(out, ledger_id, number))


def call(request_id: int, body: bytes) -> bytes:
    """Return a CALL with *body*.

    Raises:
        ValueError: the frame would be too large.
    """
    out = _head()
    return _cut(out, lib.bk_frame_call(out, request_id, _room_for(body))) + body


# --- responses --------------------------------------------------------------------


def response(opcode: int, code: int, ledger_id: int, entry_id: int, body: bytes = b"") -> bytes:
    """Return a response to ADD, READ, or WRITE_LAC (with its request id as *entry_id*)."""
    out = _head()
    size = lib.bk_frame_response(out, opcode, code, ledger_id, entry_id, _room_for(body))
    return _cut(out, size) + body


def batch_response(
    code: int, ledger_id: int, start_id: int, request_id: int, body: bytes = b""
) -> bytes:
    """Return a response to BATCH_READ; *body* is a run of sizes and stored entries."""
    out = _head()
    size = lib.bk_frame_batch_response(out, code, ledger_id, start_id, request_id, _room_for(body))
    return _cut(out, size) + body


def read_wait_response(
    code: int,
    ledger_id: int,
    start_id: int,
    request_id: int,
    lac: int,
    fenced: bool,
    body: bytes = b"",
) -> bytes:
    """Return a response to READ_WAIT; *body* as in batch_response."""
    out = _head()
    size = lib.bk_frame_read_wait_response(
        out, code, ledger_id, start_id, request_id, lac, fenced, _room_for(body)
    )
    return _cut(out, size) + body


def call_response(code: int, request_id: int, body: bytes) -> bytes:
    """Return a response to CALL.

    Raises:
        ValueError: *body* does not fit a frame.
    """
    out = _head()
    return _cut(out, lib.bk_frame_call_response(out, code, request_id, _room_for(body))) + body


def _head() -> CData:
    return ffi.new("uint8_t[]", _HEAD_SIZE_MAX)


def _cut(out: CData, size: int) -> bytes:
    return bytes(ffi.buffer(out, size))


def _lend_key(key: bytes | None) -> CData:
    if key is None:
        return ffi.NULL
    if len(key) != lib.BK_KEY_SIZE:
        raise ValueError(f"a master key has {lib.BK_KEY_SIZE} bytes, not {len(key)}")
    return key


def _room_for(body: bytes) -> int:
    """Return the body's size, or raise ValueError if it may not fit a frame."""
    if len(body) > CALL_SIZE_MAX:
        raise ValueError(f"{len(body)} bytes in one frame; {CALL_SIZE_MAX} are the most")
    return len(body)
