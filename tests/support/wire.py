"""Frames and entries written by hand, so that a test does not check C with itself."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

KEY = hashlib.sha1(b"ledger", usedforsecurity=False).digest()


class AddResponse(NamedTuple):
    """A response of 28 bytes; *last* is the entry id, or the request id of WRITE_LAC."""

    opcode: int
    code: int
    ledger_id: int
    last: int


def be(value: int, size: int = 8) -> bytes:
    """*value* in *size* bytes, big-endian, in two's complement."""
    return (value % (1 << 8 * size)).to_bytes(size, "big")


def crc32c(data: bytes, seed: int = 0) -> int:
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def header(opcode: int, flags: int = 0, version: int = 2) -> bytes:
    return be(version << 24 | opcode << 16 | flags, 4)


def framed(body: bytes) -> bytes:
    return be(len(body), 4) + body


def stored_entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """An entry without a digest, sent when all before it were confirmed."""
    return be(ledger_id) + be(entry_id) + be(entry_id - 1) + be(len(payload)) + payload


def add(
    ledger_id: int, entry_id: int, payload: bytes, *, key: bytes = KEY, flags: int = 0
) -> bytes:
    return framed(header(1, flags) + key + stored_entry(ledger_id, entry_id, payload))


def write_lac(ledger_id: int, request_id: int, lac: int, *, key: bytes = KEY) -> bytes:
    return framed(header(65) + key + be(ledger_id) + be(request_id) + be(lac))


def add_responses(data: bytes) -> list[AddResponse]:
    """Responses of ADD and WRITE_LAC, one after the other."""
    responses = []
    for start in range(0, len(data), 28):
        one = data[start : start + 28]
        assert one[:4] == be(24, 4)
        numbers = (int.from_bytes(one[at : at + 8], "big", signed=True) for at in (12, 20))
        responses.append(AddResponse(one[5], int.from_bytes(one[8:12], "big"), *numbers))
    return responses
