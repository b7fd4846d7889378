"""Sessions and their leases in SQLite. Each function runs inside a transaction.

Times are milliseconds of CLOCK_BOOTTIME. All processes of a host share this clock, nobody can set
it, it runs while the host sleeps, and it starts at 0 when the host boots. A session is live from
when it was kept last until its time to live has passed. A session kept "in the future" is from
before the last boot, so its process is gone. If the clock differs between processes nevertheless
(a container may have its own), a session may end early, or live once more for its time to live;
epochs keep that safe.

A lease is live while its row is there and its session is live.
"""

from __future__ import annotations

import sqlite3
import time

from metadata import rows
from metadata.errors import LeaseHeld, LeaseLost, SessionOver
from metadata.store import PAGE_COUNT_MAX, CheckLease, Lease, Leases, StoreSession

SESSIONS = "sessions"
"""Hint about a session that was opened."""
_COLUMNS = "name, leases.owner, leases.epoch, value, kept_ms + ttl_ms - :now, session"
_TABLES = "leases JOIN sessions ON sessions.epoch = session"
_LIVE = "kept_ms <= :now AND :now < kept_ms + ttl_ms"


def host_clock_ms() -> int:
    """Return milliseconds since the host was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


# --- sessions ------------------------------------------------------------------------------


def open_session(
    connection: sqlite3.Connection, owner: str, *, ttl_ms: int, now_ms: int
) -> StoreSession:
    """Open a session that lives for *ttl_ms* unless it is kept."""
    sweep(connection, now_ms)
    epoch = rows.record_change(connection, SESSIONS)
    connection.execute(
        "INSERT INTO sessions (epoch, owner, ttl_ms, kept_ms) VALUES (?, ?, ?, ?)",
        (epoch, owner, ttl_ms, now_ms),
    )
    return StoreSession(owner, epoch, ttl_ms / 1000)


def keep_session(connection: sqlite3.Connection, session: StoreSession, now_ms: int) -> None:
    """Let the session live for its full time from *now_ms* on. Raises SessionOver."""
    kept = connection.execute(
        f"UPDATE sessions SET kept_ms = :now WHERE epoch = :epoch AND owner = :owner AND {_LIVE}",
        {"now": now_ms, "epoch": session.epoch, "owner": session.owner},
    )
    if not kept.rowcount:
        raise SessionOver(owner=session.owner, epoch=session.epoch)


def end_session(connection: sqlite3.Connection, session: StoreSession) -> None:
    """End the session and its leases, if it is not over."""
    ended = connection.execute(
        "DELETE FROM sessions WHERE epoch = ? AND owner = ?", (session.epoch, session.owner)
    )
    if ended.rowcount:
        _end_leases(connection, session.epoch)


def next_over_ms(connection: sqlite3.Connection, now_ms: int) -> int | None:
    """Return the moment when the first session is over unless it is kept; None without sessions.

    It is *now_ms* or earlier if the time of a session has passed.
    """
    (found,) = connection.execute(
        "SELECT min(CASE WHEN kept_ms <= :now THEN kept_ms + ttl_ms ELSE :now END) FROM sessions",
        {"now": now_ms},
    ).fetchone()
    return None if found is None else int(found)


def sweep(connection: sqlite3.Connection, now_ms: int) -> None:
    """Delete sessions whose time has passed, and record each of their leases as a change."""
    over = connection.execute(
        f"DELETE FROM sessions WHERE NOT ({_LIVE}) RETURNING epoch", {"now": now_ms}
    ).fetchall()
    for (epoch,) in over:
        _end_leases(connection, epoch)


def _end_leases(connection: sqlite3.Connection, session: int) -> None:
    ended = connection.execute("DELETE FROM leases WHERE session = ? RETURNING name", (session,))
    for (name,) in ended.fetchall():
        rows.record_change(connection, name)


def _left_ms(connection: sqlite3.Connection, session: StoreSession, now_ms: int) -> int:
    """Return how long the session lives unless it is kept. Raises SessionOver."""
    found = connection.execute(
        f"SELECT kept_ms + ttl_ms - :now FROM sessions"
        f" WHERE epoch = :epoch AND owner = :owner AND {_LIVE}",
        {"now": now_ms, "epoch": session.epoch, "owner": session.owner},
    ).fetchone()
    if found is None:
        raise SessionOver(owner=session.owner, epoch=session.epoch)
    return int(found[0])


# --- leases --------------------------------------------------------------------------------


def grant(
    connection: sqlite3.Connection,
    name: str,
    session: StoreSession,
    *,
    owner: str,
    value: bytes,
    now_ms: int,
) -> Lease:
    """Give the lease to *owner*. Raises LeaseHeld if another one has it, and SessionOver."""
    sweep(connection, now_ms)
    left_ms = _left_ms(connection, session, now_ms)
    held = _find(connection, name, now_ms)
    if held is not None and held.owner != owner:
        raise LeaseHeld(name=name, owner=held.owner, expires_in_s=held.expires_in_s)
    epoch = rows.record_change(connection, name)
    connection.execute(
        "INSERT OR REPLACE INTO leases (name, owner, epoch, value, session) VALUES (?, ?, ?, ?, ?)",
        (name, owner, epoch, value, session.epoch),
    )
    return Lease(name, owner, epoch, value, left_ms / 1000, session.epoch)


def update(connection: sqlite3.Connection, lease: Lease, value: bytes, now_ms: int) -> Lease:
    """Set the lease's value. Raises LeaseLost if it is over."""
    held = _held(connection, lease, now_ms)
    if value != held.value:
        rows.record_change(connection, lease.name)
        connection.execute("UPDATE leases SET value = ? WHERE name = ?", (value, lease.name))
    return Lease(held.name, held.owner, held.epoch, value, held.expires_in_s, held.session)


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
        f"SELECT {_COLUMNS} FROM {_TABLES} WHERE name >= :start AND name < :end"
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


def _held(connection: sqlite3.Connection, lease: Lease | CheckLease, now_ms: int) -> Lease:
    held = _find(connection, lease.name, now_ms)
    if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
        raise LeaseLost(name=lease.name, owner=lease.owner, epoch=lease.epoch)
    return held


def _find(connection: sqlite3.Connection, name: str, now_ms: int) -> Lease | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM {_TABLES} WHERE name = :name AND {_LIVE}",
        {"name": name, "now": now_ms},
    ).fetchone()
    return None if row is None else _lease(row)


def _lease(row: tuple[str, str, int, bytes, int, int]) -> Lease:
    name, owner, epoch, value, left_ms, session = row
    return Lease(name, owner, epoch, value, left_ms / 1000, session)
