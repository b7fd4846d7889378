"""Metadata in SQLite: a file that all bookies of a simulation open, and nobody else.

    client ─► BookieStore ─► the simulated network ─► CALL of a bookie ─► SqliteStore ─┐
    bookie ─► SqliteStore ───────────────────────────────────────────────────────────► file

So all bookies are processes of one host. They have one CLOCK_BOOTTIME, trio's clock, but what
they take for the time of day may differ. Transactions follow one another at moments of
the loop: a process is killed before one or after it, and SQLite is trusted with the rest. What
was committed outlives power cuts, as it is synced. The pragmas are the product's: the folder is
in memory where there is /dev/shm, and a sync costs nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import trio
from memory_store import trio_clock_ms
from network import Network
from troubles import SQLITE

from ledger_client.background import Background
from ledger_client.wire.stores import BookieStore
from metadata import rows
from metadata.address import Address
from metadata.announcements import Announcements
from metadata.calls import Reply
from metadata.clock import host_wall_ms
from metadata.schema import open_connection
from metadata.sqlite import TIMEOUT_S, SqliteStore
from metadata.store import Put, Versioned
from metadata.transactions import Transactions

PORT = 1
_BOOT = "the only one"
T = TypeVar("T")


class MetadataFile:
    """A ClusterMetadata in the SQLite file at *path*, behind *bookies*.

    *happened* counts what these answered.
    """

    def __init__(
        self, path: Path, bookies: Sequence[str], network: Network, happened: Counter[str]
    ) -> None:
        self.values: dict[str, Versioned] = {}
        self.on_change: Callable[[str, Versioned | None], None] = lambda _key, _value: None
        self._path = path
        self._addresses = [Address(name, PORT) for name in bookies]
        self._network = network
        self._happened = happened
        self._seen = 0
        self._open = ExitStack()
        self._connection = self._open.enter_context(closing(self._connect()))
        self.observer = self._open.enter_context(self._opened())

    async def run(self) -> None:
        """There is nothing to do."""
        await trio.sleep_forever()

    @asynccontextmanager
    async def at_bookie(self) -> AsyncIterator[SqliteStore]:
        """Open the file as a process does; it is closed also when the process is killed."""
        with self._opened() as store:
            yield store

    @contextmanager
    def _opened(self) -> Iterator[SqliteStore]:
        with closing(self._connect()) as to_write, closing(self._connect()) as to_read:
            yield SqliteStore(
                _Watched(self, self._path, to_write),
                Transactions(self._path, to_read, timeout_s=TIMEOUT_S),
                Announcements(None),  # a kernel's would come at any time
                trio_clock_ms,
                host_wall_ms,
                _BOOT,
            )

    @asynccontextmanager
    async def at_client(self) -> AsyncIterator[BookieStore]:
        """Open a store that asks one bookie after the other."""
        async with Background() as nursery:
            store = Asking(self._addresses, nursery, self._network, self._happened, SQLITE)
            try:
                yield store
            finally:
                await store.aclose()

    def change(self, key: str, value: bytes) -> int:
        """Put at once."""
        return self._at_once(lambda connection: rows.put(connection, Put(key, value)))

    def set_back(self, keys: Iterable[str], counter: str, next_id: int) -> None:
        """Lose *keys* and the ids from *next_id* on, as a restore from a backup does."""

        def lose(connection: Connection) -> None:
            connection.execute("UPDATE counters SET next = ? WHERE name = ?", (next_id, counter))
            for key in keys:
                connection.execute("DELETE FROM keys WHERE key = ?", (key,))
                rows.record_change(connection, key)

        self._at_once(lose)

    def close(self) -> None:
        """Close what the harness itself has open."""
        self._open.close()

    def look(self) -> None:
        """Take note of what changed since the last time: call it after each transaction."""
        found = self._connection.execute(
            "SELECT key, max(revision), value, version FROM changes LEFT JOIN keys USING (key)"
            " WHERE revision > ? GROUP BY key ORDER BY min(revision)",
            (self._seen,),
        ).fetchall()
        self._seen = max([self._seen, *(revision for _, revision, _, _ in found)])
        for key, _, value, version in found:
            if version is not None:
                self.values[key] = Versioned(value, version)
            elif self.values.pop(key, None) is None:
                continue  # a lease
            self.on_change(key, self.values.get(key))

    def _at_once(self, work: Callable[[Connection], T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        result = work(self._connection)
        self._connection.execute("COMMIT")
        self.look()
        return result

    def _connect(self) -> Connection:
        return open_connection(self._path, timeout_s=TIMEOUT_S)


class _Watched(Transactions):
    """Transactions whose changes the harness sees at once."""

    def __init__(self, file: MetadataFile, path: Path, connection: Connection) -> None:
        super().__init__(path, connection, timeout_s=TIMEOUT_S)
        self._file = file

    async def change(self, work: Callable[[Connection], T]) -> T:
        result = await super().change(work)
        # At the same moment of the loop: nothing waits between the COMMIT and here (virtual.py).
        self._file.look()
        return result


class Asking(BookieStore):
    """A client's store; it counts what bookies answered, as *kind*."""

    def __init__(
        self,
        addresses: Sequence[Address],
        nursery: trio.Nursery,
        network: Network,
        happened: Counter[str],
        kind: str,
    ) -> None:
        super().__init__(addresses, nursery=nursery, open_stream=network.open_stream)
        self._happened, self._kind = happened, kind

    async def _attempt(self, body: bytes, limit_s: float, wait_s: float) -> Reply:
        reply = await super()._attempt(body, limit_s, wait_s)
        self._happened[self._kind] += 1
        return reply
