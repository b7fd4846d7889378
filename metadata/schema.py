"""The SQLite file: what it holds, how it is opened, and what its errors mean.

``application_id`` says that the file is ours, ``user_version`` which layout it
has. A file that is neither ours nor empty is left as it is.

keys      key, value, version: the revision of its last change
changes   revision, key: the last 10 000 changes; the newest row always stays,
          for its revision is the store's
leases    name, owner, epoch: the revision of the grant; times in milliseconds
          of the host's clock (metadata/lease_rows.py)
counters  name, next: the next id that was never given
clock     one row: the store's time at a moment of the host's (metadata/clock_rows.py)
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from metadata.errors import BadStore, MetadataError, MetadataUnavailable
from metadata.lock_holder import describe_holder

APPLICATION_ID = 0x71756972  # "quir"
SCHEMA_VERSION = 2
"""1 had no clock; it is made when such a file is opened."""
WAL_SIZE_KEPT = 64 << 20
RESERVE_SIZE = 512 << 10

_TABLES = {
    "keys": "key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL",
    "changes": "revision INTEGER PRIMARY KEY, key TEXT NOT NULL",
    "leases": "name TEXT PRIMARY KEY, owner TEXT NOT NULL, epoch INTEGER NOT NULL,"
    " value BLOB NOT NULL, ttl_ms INTEGER NOT NULL, renewed_ms INTEGER NOT NULL",
    "counters": "name TEXT PRIMARY KEY, next INTEGER NOT NULL",
    "clock": "id INTEGER PRIMARY KEY, boot TEXT NOT NULL, boot_ms INTEGER NOT NULL,"
    " store_ms INTEGER NOT NULL, slew_ms INTEGER NOT NULL",
}
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
    """Open the store at *path*, making it when the file is missing or empty; blocks.

    Several processes may do so at once. The connection may move between threads, but
    serves one at a time, and leaves transactions to the caller.

    Raises:
        BadStore: the file is foreign, damaged, or of a newer version.
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
    """Return what *error* means to a caller; an error that is our own bug is raised again.

    With *committing*, a failed write leaves open whether the transaction will be there.
    """
    code = error_code(error)
    if code in _DAMAGE:
        return BadStore(f"{path} is not a sound metadata store: {error}", path=str(path))
    if code in _OUTAGES:
        unknown = committing and code == sqlite3.SQLITE_IOERR
        holder = describe_holder(path) if code in _LOCKED else ""
        reason = f"{path}: {error}; {holder}" if holder else f"{path}: {error}"
        return MetadataUnavailable(reason, outcome_unknown=unknown)
    raise error


def error_code(error: sqlite3.Error) -> int | None:
    """Return the primary result code of *error*; None when it has none."""
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
    """Make the file if it is missing, for its owner alone: it holds passwords of ledgers.

    SQLite gives the same permissions to the files that it puts beside it. The file is closed
    before it gets its name: to close a database drops this process's locks on it (fcntl).
    """
    if path.exists():
        return
    with suppress(OSError):  # SQLite reports what is wrong with the path
        file, fresh = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        os.close(file)
        try:
            os.link(fresh, path)  # fails when another process was quicker
        finally:
            Path(fresh).unlink()


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if _is_empty(connection):  # else another process was quicker
        for name, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _reserve(connection: sqlite3.Connection) -> None:
    """Make the file larger than it need be, for changes on a disk that is full later."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS reserve (bytes BLOB)")
    connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_SIZE,))
    connection.execute("COMMIT")
    # Written out before it is given up: a page that is free is not written at all.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DROP TABLE IF EXISTS reserve")
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version = _pragma(connection, "user_version")
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise BadStore(f"{path} is a database of another program", path=str(path))
    if version > SCHEMA_VERSION:
        raise BadStore(
            f"{path} has version {version} of the schema, made by a newer quire;"
            f" this one knows {SCHEMA_VERSION}",
            path=str(path),
        )
    if version == 1:
        _add_clock(connection)
    if version < 1 or not set(_TABLES) <= _tables(connection):
        raise BadStore(f"{path} lacks tables that a metadata store has", path=str(path))


def _add_clock(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"CREATE TABLE IF NOT EXISTS clock ({_TABLES['clock']})")
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
