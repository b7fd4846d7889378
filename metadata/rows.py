"""Keys, changes and counters in SQLite. Each function runs inside a transaction.

Each change takes the next revision, which becomes the version of its key. So versions rise across
all keys, even if a key was deleted in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from metadata.errors import VersionConflict
from metadata.store import ABSENT, PAGE_SIZE_MAX, Changes, Check, Delete, Page, Put, Versioned

CHANGES_MAX = 10_000
"""Changes that are kept; a watch further behind gets one hint for everything."""

KEYS_TOLD_MAX = 1000
"""Keys in one reply about changes."""

LAST_CHARACTER = "\U0010ffff"
"""Greater than every printable character: closes the range of a prefix."""


def get(connection: sqlite3.Connection, key: str) -> Versioned | None:
    """Return the value of *key*, or None."""
    row = connection.execute("SELECT value, version FROM keys WHERE key = ?", (key,)).fetchone()
    return None if row is None else Versioned(*row)


def check(connection: sqlite3.Connection, op: Check | Put | Delete) -> int:
    """Return the version of the op's key. Raises VersionConflict if another is expected."""
    row = connection.execute("SELECT version FROM keys WHERE key = ?", (op.key,)).fetchone()
    found: int = ABSENT if row is None else row[0]
    if op.expected is not None and found != op.expected:
        raise VersionConflict(key=op.key, expected=op.expected, found=found)
    return found


def put(connection: sqlite3.Connection, op: Put) -> int:
    """Do *op* and return the new version. Raises VersionConflict."""
    if op.expected is not None:
        check(connection, op)
    version = record_change(connection, op.key)
    connection.execute(
        "INSERT INTO keys VALUES (?1, ?2, ?3)"
        " ON CONFLICT (key) DO UPDATE SET value = ?2, version = ?3",
        (op.key, op.value, version),
    )
    return version


def delete(connection: sqlite3.Connection, op: Delete) -> int:
    """Do *op* and return ABSENT. Raises VersionConflict."""
    if check(connection, op) != ABSENT:
        record_change(connection, op.key)
        connection.execute("DELETE FROM keys WHERE key = ?", (op.key,))
    return ABSENT


def page(connection: sqlite3.Connection, prefix: str, after: str, limit: int) -> Page:
    """Return the next keys under *prefix*, up to *limit* and 2 MiB of values."""
    rows = connection.execute(
        "SELECT key, value, version FROM keys"
        " WHERE key >= ? AND key < ? AND key != ? ORDER BY key LIMIT ?",
        (max(prefix, after), prefix + LAST_CHARACTER, after, limit),
    )
    found: Page = []
    size = 0
    for key, value, version in rows:
        size += len(value)
        if found and size > PAGE_SIZE_MAX:
            break
        found.append((key, Versioned(value, version)))
    return found


def next_id(connection: sqlite3.Connection, counter: str, count: int) -> int:
    """Return the first of *count* ids that were never issued."""
    (following,) = connection.execute(
        "INSERT INTO counters VALUES (?1, 1 + ?2)"
        " ON CONFLICT (name) DO UPDATE SET next = next + ?2 RETURNING next",
        (counter, count),
    ).fetchone()
    return int(following) - count


def counters(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the next id of each counter."""
    return dict(connection.execute("SELECT name, next FROM counters ORDER BY name"))


def raise_counters(connection: sqlite3.Connection, floors: Mapping[str, int]) -> None:
    """Issue no id of a counter below its floor."""
    connection.executemany(
        "INSERT INTO counters VALUES (?1, ?2)"
        " ON CONFLICT (name) DO UPDATE SET next = max(next, ?2)",
        floors.items(),
    )


def raise_revision(connection: sqlite3.Connection, floor: int) -> None:
    """Give no version or epoch up to *floor*: watches see a change of everything."""
    if revision(connection) < floor:
        connection.execute("INSERT INTO changes (revision, key) VALUES (?, '')", (floor,))


def record_change(connection: sqlite3.Connection, key: str) -> int:
    """Record a change of *key* (or of the lease of that name); return the new revision."""
    cursor = connection.execute("INSERT INTO changes (key) VALUES (?)", (key,))
    newest = cursor.lastrowid or 0
    connection.execute("DELETE FROM changes WHERE revision <= ?", (newest - CHANGES_MAX,))
    return newest


def revision(connection: sqlite3.Connection) -> int:
    """Return the revision of the newest change, 0 when there was none."""
    (newest,) = connection.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
    return int(newest)


def changes(connection: sqlite3.Connection, prefix: str, since: int | None) -> Changes:
    """Return the changes under *prefix* after revision *since*: all, or the first KEYS_TOLD_MAX."""
    newest = revision(connection)
    if since is None or since == newest:
        return Changes(newest, [])
    if since > newest or since + 1 < _oldest(connection):
        return Changes(newest, [], everything=True)
    found = connection.execute(
        "SELECT revision, key FROM changes WHERE revision > ? AND key >= ? AND key < ?"
        " ORDER BY revision LIMIT ?",
        (since, prefix, prefix + LAST_CHARACTER, KEYS_TOLD_MAX),
    ).fetchall()
    if len(found) == KEYS_TOLD_MAX:
        newest = found[-1][0]
    return Changes(newest, list(dict.fromkeys(key for _, key in found)))


def _oldest(connection: sqlite3.Connection) -> int:
    (oldest,) = connection.execute("SELECT coalesce(min(revision), 0) FROM changes").fetchone()
    return int(oldest)
