"""Frames of protocol v2 made by hand, so that tests do not use what they test."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

KEY = hashlib.sha1(b"ledger", usedforsecurity=False).digest()
OTHER_KEY = hashlib.sha1(b"ledgerpasswd", usedforsecurity=False).digest()
FENCE, RECOVERY, PRIORITY = 1, 2, 4
ADD, READ, AUTH, BATCH_READ, READ_WAIT, WRITE_LAC, CALL = 1, 2, 3, 7, 64, 65, 67

# The vectors of BookKeeper's own rules: entry "hello" of ledger 1, CRC32C, no password.
ENTRY_HELLO = bytes.fromhex(
    "00000000000000010000000000000000ffffffffffffffff0000000000000005e3a5f74d68656c6c6f"
)
ADD_HELLO = bytes.fromhex("0000004102010000850bf1071c5e3d8c24235676f8816ae0cbe2f14f") + ENTRY_HELLO
READ_HELLO = bytes.fromhex("000000140202000000000000000000010000000000000000")
FENCE_HELLO = bytes.fromhex(
    "00000028020200010000000000000001ffffffffffffffff850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
)


class Response(NamedTuple):
    """A response; *rest* is what follows its code."""

    opcode: int
    code: int
    rest: bytes

    @property
    def ledger_id(self) -> int:
        return from_int64(self.rest[0:8])

    @property
    def entry_id(self) -> int:
        return from_int64(self.rest[8:16])

    @property
    def body(self) -> bytes:
        """The bytes after the ids, a batch's request id and a wait's LAC."""
        return self.rest[{BATCH_READ: 24, READ_WAIT: 36}.get(self.opcode, 16) :]

    @property
    def entries(self) -> list[bytes]:
        """The entries of a batch."""
        entries, body = [], self.body
        while body:
            size = int.from_bytes(body[:4], "big")
            entries.append(body[4 : 4 + size])
            body = body[4 + size :]
        return entries


def int64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def from_int64(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def frame(opcode: int, body: bytes, *, flags: int = 0, version: int = 2) -> bytes:
    head = bytes([version, opcode]) + flags.to_bytes(2, "big")
    return int32(len(head) + len(body)) + head + body


def entry(ledger_id: int, entry_id: int, payload: bytes = b"hello", *, lac: int = -1) -> bytes:
    """A stored entry without a digest; a bookie does not look at it."""
    return int64(ledger_id) + int64(entry_id) + int64(lac) + int64(len(payload)) + payload


def add(
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"hello",
    *,
    key: bytes = KEY,
    flags: int = 0,
    lac: int = -1,
) -> bytes:
    return frame(ADD, key + entry(ledger_id, entry_id, payload, lac=lac), flags=flags)


def read(ledger_id: int, entry_id: int, *, fence_key: bytes = b"") -> bytes:
    flags = FENCE if fence_key else 0
    return frame(READ, int64(ledger_id) + int64(entry_id) + fence_key, flags=flags)


def batch_read(ledger_id: int, start_id: int, *, count: int = 0, size: int = 5 << 20) -> bytes:
    ids = int64(ledger_id) + int64(start_id) + int64(77)
    return frame(BATCH_READ, ids + int32(count) + int64(size))


def read_wait(ledger_id: int, start_id: int, *, known_lac: int, wait_ms: int) -> bytes:
    ids = int64(ledger_id) + int64(start_id) + int64(78)
    return frame(READ_WAIT, ids + int32(10) + int32(1 << 20) + int64(known_lac) + int32(wait_ms))


def write_lac(ledger_id: int, lac: int, *, key: bytes = KEY) -> bytes:
    return frame(WRITE_LAC, key + int64(ledger_id) + int64(79) + int64(lac))


def call(body: bytes) -> bytes:
    return frame(CALL, int64(80) + body)


def parse(data: bytes) -> Response:
    """Take one whole response apart."""
    return Response(data[5], int.from_bytes(data[8:12], "big"), data[12:])
