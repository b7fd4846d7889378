"""The SQLite file: its tables, how it is opened, and the meaning of its errors.

``application_id`` marks the file as a metadata store, ``user_version`` is its layout. Another
program's file is left unchanged.

keys      key, value, version: the revision of its last change
changes   revision, key: the last 10 000 changes; the newest row always stays,
          because its revision is the store's
sessions  epoch: the revision of its opening; owner; times in milliseconds of the
          host's clock (metadata/lease_rows.py)
leases    name, owner, epoch: the revision of the grant, session: its epoch
counters  name, next: the next id to issue
clock     one row that maps the host's clock to the store's time (metadata/clock_rows.py)
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from metadata.errors import MetadataBroken, MetadataError, MetadataUnavailable
from metadata.lock_holder import describe_holder

APPLICATION_ID = 0x71756972  # "quir"
SCHEMA_VERSION = 3
"""Version 1 had no clock, and version 2 no sessions; they are added when such a file is opened."""
WAL_SIZE_KEPT = 64 << 20
RESERVE_SIZE = 512 << 10

_TABLES = {
    "keys": "key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL",
    "changes": "revision INTEGER PRIMARY KEY, key TEXT NOT NULL",
    "sessions": "epoch INTEGER PRIMARY KEY, owner TEXT NOT NULL,"
    " ttl_ms INTEGER NOT NULL, kept_ms INTEGER NOT NULL",
    "leases": "name TEXT PRIMARY KEY, owner TEXT NOT NULL, epoch INTEGER NOT NULL,"
    " value BLOB NOT NULL, session INTEGER NOT NULL",
    "counters": "name TEXT PRIMARY KEY, next INTEGER NOT NULL",
    "clock": "id INTEGER PRIMARY KEY, boot TEXT NOT NULL, boot_ms INTEGER NOT NULL,"
    " store_ms INTEGER NOT NULL, slew_ms INTEGER NOT NULL",
}
_LEASES_BY_SESSION = "CREATE INDEX IF NOT EXISTS leases_by_session ON leases (session)"
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_OUTAGES = {
    *_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


def open_connection(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """Open the store at *path*, creating it if the file is missing or empty; blocks.

    Several processes may do so at once. The connection may move between threads, but
    serves one at a time, and leaves transactions to the caller.

    Raises:
        MetadataBroken: the file is foreign, damaged, or of a newer version.
        MetadataUnavailable: it cannot be opened, or was locked for *timeout_s*.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _open_once(path, max(deadline - time.monotonic(), 0.0))
        except sqlite3.Error as error:
            # Switching to WAL does not wait for the lock, whatever the timeout.
            if error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise translate(error, path) from error
        time.sleep(0.02)


def translate(error: sqlite3.Error, path: Path, *, committing: bool = False) -> MetadataError:
    """Return *error* as a MetadataError; an error that is our own bug is raised again.

    With *committing*, the outcome of the transaction is unknown.
    """
    code = error_code(error)
    if code in _DAMAGE:
        return MetadataBroken(f"{path} is not a sound metadata store: {error}")
    if code in _OUTAGES:
        unknown = committing and code == sqlite3.SQLITE_IOERR
        holder = describe_holder(path) if code in _LOCKED else ""
        reason = f"{path}: {error}; {holder}" if holder else f"{path}: {error}"
        return MetadataUnavailable(reason, outcome_unknown=unknown)
    raise error


def error_code(error: sqlite3.Error) -> int | None:
    """Return the primary result code of *error*, or None if it has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _open_once(path: Path, timeout_s: float) -> sqlite3.Connection:
    _make_private(path)
    connection = sqlite3.connect(
        path, timeout=timeout_s, isolation_level=None, check_same_thread=False
    )
    try:
        fresh = _is_empty(connection)
        if not fresh:
            _check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_KEPT}")
        if fresh:
            _create(connection)
            _check(connection, path)
            _reserve(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Create the file if it is missing, readable by its owner only: it holds ledgers' passwords.

    SQLite creates its other files with the same permissions. The file is closed before it gets
    its name, because closing a database drops this process's fcntl locks on it.
    """
    if path.exists():
        return
    with suppress(OSError):  # SQLite reports the error of the path
        file, fresh = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        os.close(file)
        try:
            os.link(fresh, path)  # fails if another process was faster
        finally:
            Path(fresh).unlink()


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if _is_empty(connection):  # else another process was faster
        for name, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.execute(_LEASES_BY_SESSION)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _reserve(connection: sqlite3.Connection) -> None:
    """Make the file larger than needed, so that changes still fit when the disk is full."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB)")
    connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_SIZE,))
    connection.execute("COMMIT")
    # Written before it is freed, because SQLite never writes a free page.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DROP TABLE IF EXISTS reserve")
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version = _pragma(connection, "user_version")
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise MetadataBroken(f"{path} is a database of another program")
    if version > SCHEMA_VERSION:
        raise MetadataBroken(
            f"{path} has version {version} of the schema, made by a newer quire;"
            f" this one knows {SCHEMA_VERSION}"
        )
    if 0 < version < SCHEMA_VERSION:
        _upgrade(connection)
    if version < 1 or not set(_TABLES) <= _tables(connection):
        raise MetadataBroken(f"{path} lacks tables that a metadata store has")


def _upgrade(connection: sqlite3.Connection) -> None:
    """Add what older versions lack.

    Their leases had a time to live each. They are dropped, so whoever has one takes it again.
    """
    connection.execute("BEGIN IMMEDIATE")
    version = _pragma(connection, "user_version")
    if version < SCHEMA_VERSION:  # else another process was faster
        connection.execute("DROP TABLE IF EXISTS leases")
        for name in ("clock", "sessions", "leases"):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({_TABLES[name]})")
        connection.execute(_LEASES_BY_SESSION)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return (
        not _tables(connection)
        and _pragma(connection, "application_id") == 0
        and _pragma(connection, "user_version") == 0
    )


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
