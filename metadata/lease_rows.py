"""Leases in SQLite. Each function runs inside a transaction.

Times are milliseconds of CLOCK_BOOTTIME. All processes of a host share this clock, nobody can set
it, it runs while the host sleeps, and it starts at 0 when the host boots. A lease is live from its
renewal until its time to live has passed. A lease renewed "in the future" is from before the
last boot, so its holder is gone. If the clock differs between processes nevertheless (a
container may have its own), a lease may end early, or live once more for its time to live; epochs
keep that safe.
"""

from __future__ import annotations

import sqlite3
import time

from metadata import rows
from metadata.errors import LeaseHeld, LeaseLost
from metadata.store import PAGE_COUNT_MAX, CheckLease, Lease, Leases

_COLUMNS = "name, owner, epoch, value, renewed_ms + ttl_ms - :now"
_LIVE = "renewed_ms <= :now AND :now < renewed_ms + ttl_ms"


def host_clock_ms() -> int:
    """Return milliseconds since the host was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def grant(
    connection: sqlite3.Connection, name: str, owner: str, *, ttl_ms: int, value: bytes, now_ms: int
) -> Lease:
    """Give the lease to *owner*. Raises LeaseHeld if another owner has it."""
    sweep(connection, now_ms)
    held = _find(connection, name, now_ms)
    if held is not None and held.owner != owner:
        raise LeaseHeld(name=name, owner=held.owner, expires_in_s=held.expires_in_s)
    epoch = rows.record_change(connection, name)
    connection.execute(
        "INSERT OR REPLACE INTO leases (name, owner, epoch, value, ttl_ms, renewed_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (name, owner, epoch, value, ttl_ms, now_ms),
    )
    return Lease(name, owner, epoch, value, ttl_ms / 1000)


def renew(connection: sqlite3.Connection, lease: Lease, value: bytes | None, now_ms: int) -> Lease:
    """Renew the lease at *now_ms*. Raises LeaseLost if it is over."""
    held = _held(connection, lease, now_ms)
    new_value = held.value if value is None else value
    if new_value != held.value:
        rows.record_change(connection, lease.name)
    (ttl_ms,) = connection.execute(
        "UPDATE leases SET renewed_ms = ?, value = ? WHERE name = ? RETURNING ttl_ms",
        (now_ms, new_value, lease.name),
    ).fetchone()
    return Lease(lease.name, lease.owner, lease.epoch, new_value, ttl_ms / 1000)


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    """End the lease, if it is not over."""
    cursor = connection.execute(
        "DELETE FROM leases WHERE name = ? AND owner = ? AND epoch = ?",
        (lease.name, lease.owner, lease.epoch),
    )
    if cursor.rowcount:
        rows.record_change(connection, lease.name)


def check(connection: sqlite3.Connection, op: CheckLease, now_ms: int) -> int:
    """Return the epoch. Raises LeaseLost if the lease is over."""
    return _held(connection, op, now_ms).epoch


def live(connection: sqlite3.Connection, prefix: str, after: str, now_ms: int) -> Leases:
    """Return the live leases under *prefix* with names above *after*, up to 1000."""
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM leases WHERE name >= :start AND name < :end"
        f" AND name != :after AND {_LIVE} ORDER BY name LIMIT :limit",
        {
            "start": max(prefix, after),
            "end": prefix + rows.LAST_CHARACTER,
            "after": after,
            "now": now_ms,
            "limit": PAGE_COUNT_MAX,
        },
    )
    return [_lease(row) for row in found]


def any_over(connection: sqlite3.Connection, now_ms: int) -> bool:
    """Return True if some lease has expired."""
    found = connection.execute(f"SELECT 1 FROM leases WHERE NOT ({_LIVE}) LIMIT 1", {"now": now_ms})
    return found.fetchone() is not None


def sweep(connection: sqlite3.Connection, now_ms: int) -> None:
    """Delete expired leases, and record each as a change."""
    over = connection.execute(
        f"DELETE FROM leases WHERE NOT ({_LIVE}) RETURNING name", {"now": now_ms}
    ).fetchall()
    for (name,) in over:
        rows.record_change(connection, name)


def _held(connection: sqlite3.Connection, lease: Lease | CheckLease, now_ms: int) -> Lease:
    held = _find(connection, lease.name, now_ms)
    if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
        raise LeaseLost(name=lease.name, owner=lease.owner, epoch=lease.epoch)
    return held


def _find(connection: sqlite3.Connection, name: str, now_ms: int) -> Lease | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM leases WHERE name = :name AND {_LIVE}",
        {"name": name, "now": now_ms},
    ).fetchone()
    return None if row is None else _lease(row)


def _lease(row: tuple[str, str, int, bytes, int]) -> Lease:
    name, owner, epoch, value, left_ms = row
    return Lease(name, owner, epoch, value, left_ms / 1000)
