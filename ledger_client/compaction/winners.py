"""The winner of each key found on the local disk: exact, whatever the keys are.

A database in a temporary folder holds one row for each key, so memory is bounded by its cache.
It is a scratch: nothing of it is ever synced.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ledger_client.compaction.candidates import Candidate

CACHE_KIB = 65_536
PAGE_ROWS = 10_000
_TABLE = """
CREATE TABLE winners (
    key BLOB PRIMARY KEY, place INTEGER, part INTEGER, lane INTEGER, ordinal INTEGER,
    tombstone INTEGER
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO winners VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET place = excluded.place, part = excluded.part,
    lane = excluded.lane, ordinal = excluded.ordinal, tombstone = excluded.tombstone
WHERE (excluded.place, excluded.part, excluded.lane) > (place, part, lane)
"""


class Winners:
    """Of each key the candidate that wins. Calls block: make them in a thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, some: Sequence[Candidate]) -> None:
        """Let candidates compete.

        Raises:
            OSError: the disk is full, or fails.
        """
        try:
            self._connection.executemany(_ADD, some)
        except sqlite3.Error as error:
            raise OSError(f"the scratch of a compaction: {error}") from error

    def pages(self) -> Iterator[list[Candidate]]:
        """Yield the winners, some at a time, without their keys. Raises as add()."""
        try:
            rows = self._connection.execute(
                "SELECT x'', place, part, lane, ordinal, tombstone FROM winners"
            )
            while page := rows.fetchmany(PAGE_ROWS):
                yield [Candidate(*row) for row in page]
        except sqlite3.Error as error:
            raise OSError(f"the scratch of a compaction: {error}") from error


@contextmanager
def open_winners() -> Iterator[Winners]:
    """Lend an empty Winners to the block; nothing of it is left behind."""
    with tempfile.TemporaryDirectory(prefix="quire-compact-") as folder:
        connection = sqlite3.connect(
            Path(folder) / "winners.db", isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute(_TABLE)
            yield Winners(connection)
        finally:
            connection.close()
