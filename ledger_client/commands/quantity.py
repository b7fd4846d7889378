"""Sizes, counts and times as people read them."""

from __future__ import annotations

import time


def size(number: int) -> str:
    """Write a size in bytes: "17 B", "3.4 MiB"."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int, noun: str) -> str:
    """Write "1 ledger" or "3 ledgers", "2 entries", "2 keys", with separators for thousands."""
    changes = noun.endswith("y") and noun[-2:-1] not in tuple("aeiou")
    plural = f"{noun[:-1]}ies" if changes else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def copies(number: int) -> str:
    """Write "1 copy" or "3 copies"."""
    return count(number, "copy")


def age(since_ms: int) -> str:
    """Write how long ago the time *since_ms* (Unix milliseconds) was: "12 s", "3 min", "2 h"."""
    seconds = max(time.time() - since_ms / 1000, 0.0)
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
