"""The store's clock in SQLite. Each function runs inside a transaction.

One row says what the store's time was at a moment of the host's own clock, CLOCK_BOOTTIME:

    boot      which start of the host that clock counts from
    boot_ms   the moment, in milliseconds since that start
    store_ms  the store's time then, Unix milliseconds
    slew_ms   added, or taken away, over the SPAN_MS that follow

From there on the store's time goes as CLOCK_BOOTTIME does, which nobody sets: a step of the
wall clock, forward or back, moves it not at all. Every SPAN_MS the row is written anew, and the
store's time is led towards the wall clock, by at most a tenth of the time that passes; so after
the wall clock was set eight hours ahead for an hour, the store's time is six minutes ahead.

When the host was started anew, the wall clock is believed, as nobody knows how long the host
was down; but the store's time goes on behind the last that may have been read. It never goes
back.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

SPAN_MS = 60_000
SLEW_PART = 10
"""The store's time goes at most a tenth faster, or slower, than time."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """A moment by the clocks of the host."""

    boot: str
    """which start of the host"""
    boot_ms: int
    """since then"""
    wall_ms: int
    """Unix time, as far as the host knows"""


def host_boot() -> str:
    """Return what names this start of the host, "" where the host does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read(connection: sqlite3.Connection, now: Moment) -> int | None:
    """Return the store's time; None: the row is to be written anew first, with advance()."""
    row = _row(connection)
    if row is None or row[0] != now.boot or not 0 <= now.boot_ms - row[1] <= SPAN_MS:
        return None
    return _time(row, now)


def advance(connection: sqlite3.Connection, now: Moment) -> int:
    """Write the row anew for this moment, and return the store's time."""
    row = _row(connection)
    if row is None:
        store_ms = now.wall_ms
    elif row[0] == now.boot and now.boot_ms >= row[1]:
        store_ms = _time(row, now)
    elif row[0] == now.boot and row[0]:
        return int(row[2])  # another process was faster by a moment
    else:
        store_ms = max(now.wall_ms, row[2] + SPAN_MS + SPAN_MS // SLEW_PART)
    slew_max = SPAN_MS // SLEW_PART
    slew_ms = max(-slew_max, min(now.wall_ms - store_ms, slew_max))
    connection.execute(
        "INSERT OR REPLACE INTO clock (id, boot, boot_ms, store_ms, slew_ms)"
        " VALUES (0, ?, ?, ?, ?)",
        (now.boot, now.boot_ms, store_ms, slew_ms),
    )
    return store_ms


_Row = tuple[str, int, int, int]


def _row(connection: sqlite3.Connection) -> _Row | None:
    row: _Row | None = connection.execute(
        "SELECT boot, boot_ms, store_ms, slew_ms FROM clock"
    ).fetchone()
    return row


def _time(row: _Row, now: Moment) -> int:
    _, boot_ms, store_ms, slew_ms = row
    passed_ms = now.boot_ms - boot_ms
    return store_ms + passed_ms + slew_ms * min(passed_ms, SPAN_MS) // SPAN_MS
