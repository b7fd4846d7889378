"""Parsing of a stored entry: header, digest and payload, as digest.h lays them out."""

from __future__ import annotations

import msgspec

from native.digest import Digest
from native.errors import Corrupt

_HEADER_SIZE = 32


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry with its header.

    Attributes:
        lac: last add confirmed when the writer sent the entry; -1 for none.
        length: payload bytes of the ledger up to and including this entry.
        digest: in hex, as stored.
        sound: whether the stored digest is correct for the given kind and password.
    """

    ledger_id: int
    entry_id: int
    lac: int
    length: int
    digest: str
    sound: bool
    payload: bytes


def take_apart(body: bytes, digest: Digest) -> StoredEntry | None:
    """Return the entry in *body*, or None if *body* is too short for its header."""
    payload_offset = _HEADER_SIZE + digest.size
    if len(body) < payload_offset:
        return None
    ledger_id, entry_id, lac, length = (
        int.from_bytes(body[at : at + 8], "big", signed=True) for at in range(0, _HEADER_SIZE, 8)
    )
    return StoredEntry(
        ledger_id=ledger_id,
        entry_id=entry_id,
        lac=lac,
        length=length,
        digest=body[_HEADER_SIZE:payload_offset].hex(),
        sound=_is_sound(body, digest, ledger_id, entry_id),
        payload=body[payload_offset:],
    )


def _is_sound(body: bytes, digest: Digest, ledger_id: int, entry_id: int) -> bool:
    try:
        digest.check(body, ledger_id, entry_id)
    except Corrupt:
        return False
    return True


def hexdump(data: bytes) -> list[str]:
    """Return lines of sixteen bytes each: offset, hex, and the printable characters."""
    lines = []
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset:08x}  {row.hex(' '):<47}  |{text}|")
    return lines
