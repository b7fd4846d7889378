"""The store's clock in SQLite. Each function runs inside a transaction.

One row holds the store's time at one moment of the host's own clock, CLOCK_BOOTTIME:

    boot      id of the boot from which that clock counts
    boot_ms   the moment, in milliseconds since that boot
    store_ms  the store's time at that moment, in Unix milliseconds
    slew_ms   added (or subtracted, if negative) over the SPAN_MS that follow

From that moment the store's time advances with CLOCK_BOOTTIME, which nobody can set, so a step of
the wall clock does not move it. Every SPAN_MS the row is rewritten, and the store's time is slewed
towards the wall clock by at most a tenth of the time that passes: if the wall clock is eight
hours ahead for one hour, the store's time ends up six minutes ahead.

After a reboot the wall clock is trusted, because the length of the outage is unknown. But the
store's time continues above any value that may have been read before. It never goes back.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

SPAN_MS = 60_000
SLEW_PART = 10
"""The store's time runs at most a tenth faster or slower than real time."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """One reading of the host's clocks."""

    boot: str
    """id of the boot"""
    boot_ms: int
    """milliseconds since the boot"""
    wall_ms: int
    """the wall clock, in Unix milliseconds"""


def host_boot() -> str:
    """Return an id of this boot of the host, "" if the host has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read(connection: sqlite3.Connection, now: Moment) -> int | None:
    """Return the store's time, or None if advance() must rewrite the row first."""
    row = _row(connection)
    if row is None or row[0] != now.boot or not 0 <= now.boot_ms - row[1] <= SPAN_MS:
        return None
    return _time(row, now)


def advance(connection: sqlite3.Connection, now: Moment) -> int:
    """Rewrite the row for this moment and return the store's time."""
    row = _row(connection)
    if row is None:
        store_ms = now.wall_ms
    elif row[0] == now.boot and now.boot_ms >= row[1]:
        store_ms = _time(row, now)
    elif row[0] == now.boot and row[0]:
        return int(row[2])  # another process was faster
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


def raise_to(connection: sqlite3.Connection, floor_ms: int, now: Moment) -> None:
    """Let the store's time continue at *floor_ms*, unless it is later already."""
    missing_ms = floor_ms - advance(connection, now)
    if missing_ms > 0:
        connection.execute("UPDATE clock SET store_ms = store_ms + ?", (missing_ms,))


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
