"""The events of a history, and the marks that stand for contents."""

from __future__ import annotations

import hashlib
import zlib

import msgspec


class Event(msgspec.Struct, kw_only=True, tag=True):
    """Something that happened, *at* seconds of the recorder's clock, which it sets."""

    at: float = 0.0


def digest_of(payload: bytes | memoryview) -> int:
    """Return the mark of *payload* in a history: its CRC-32, with its size above that."""
    return zlib.crc32(payload) | len(payload) << 32


def size_of(digest: int) -> int:
    """Return the size of the payload that *digest* stands for."""
    return digest >> 32


def mark_of(content: bytes) -> int:
    """Return the mark of a message's value or key in a history; wide enough for very many."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")
