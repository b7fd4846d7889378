"""Ids that are never issued twice: a node for each counter, changed by compare-and-set.

Requests of one store that wait together take one range. The ids of ledgers are BookKeeper's: see
ledger_ids.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import suppress

import trio

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.records import LEDGER_COUNTER
from metadata.zookeeper import paths
from metadata.zookeeper.floors import number_at, raise_number
from metadata.zookeeper.folders import Folders
from metadata.zookeeper.ledger_ids import NODE, LedgerIds
from metadata.zookeeper.znodes import (
    Applied,
    Connection,
    Create,
    Op,
    Refused,
    Remove,
    Set,
    entries_made,
)

TAKEN_MAX = 500
"""Sequential nodes that are made in one multi."""


class _Request:
    def __init__(self, count: int) -> None:
        self.count = count
        self.first: int | None = None


class Counters:
    """The counters of a cluster, as one store takes ids from them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ledgers = LedgerIds(_IdNodes(connection))
        self._turns: dict[str, trio.Lock] = {}
        self._waiting: dict[str, list[_Request]] = {}

    async def take(self, counter: str, count: int) -> int:
        """Return the first of *count* fresh ids. Raises MetadataUnavailable."""
        mine = _Request(count)
        self._waiting.setdefault(counter, []).append(mine)
        try:
            async with self._turns.setdefault(counter, trio.Lock()):
                if mine.first is None:
                    await self._serve(counter)
        finally:
            if mine.first is None and mine in self._waiting.get(counter, ()):
                self._waiting[counter].remove(mine)
        assert mine.first is not None
        return mine.first

    async def take_session(self) -> int:
        """Return the epoch of a new session. Raises MetadataUnavailable."""
        return await self._take_range(paths.SESSIONS, 1)

    async def following(self) -> dict[str, int]:
        """Return the next id of each counter from which ids were taken. MetadataUnavailable."""
        (folder,) = await self._connection.children([paths.COUNTERS], fresh=True)
        names = sorted(map(paths.counter_name, folder[0] if folder else ()))
        found = {
            name: await number_at(self._connection, paths.counter_path(name)) for name in names
        }
        following = {name: number for name, number in found.items() if number is not None}
        ledgers = await self._ledgers.following()
        return following | ({LEDGER_COUNTER: ledgers} if ledgers > 1 else {})

    async def raise_to(self, counter: str, following: int) -> None:
        """Issue no id of *counter* below *following*. Nobody else may take ids meanwhile."""
        if counter == LEDGER_COUNTER:
            await self._ledgers.raise_to(following)
        else:
            await raise_number(self._connection, paths.counter_path(counter), following)

    async def _serve(self, counter: str) -> None:
        """Take one range for all who wait."""
        requests = list(self._waiting[counter])
        count = sum(request.count for request in requests)
        if counter == LEDGER_COUNTER:
            first = await self._ledgers.next(count)
        else:
            first = await self._take_range(paths.counter_path(counter), count)
        for request in requests:
            request.first = first
            first += request.count
        del self._waiting[counter][: len(requests)]

    async def _take_range(self, path: str, count: int) -> int:
        while True:
            (node,) = await self._connection.get([path], fresh=True)
            change: Op
            if node is None:
                first, change = 1, Create(path, str(1 + count).encode())
            else:
                first = _parse(path, node[0])
                change = Set(path, str(first + count).encode(), node[1].version)
            # An unknown outcome may lose ids, and never issues one twice.
            if not isinstance(await _known(self._connection.multi([change])), Refused):
                return first


class _IdNodes:
    """What LedgerIds needs of ZooKeeper."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._folders = Folders(connection)

    async def children(self, folder: str) -> Iterable[str] | None:
        """As IdNodes.children."""
        (found,) = await self._connection.children([f"/{folder}"], fresh=True)
        return found[0] if found else None

    async def numbered(self, folder: str) -> int:
        """As IdNodes.numbered."""
        (stat,) = await self._connection.stat([f"/{folder}"], fresh=True)
        return entries_made(stat) if stat else 0

    async def create(self, folder: str) -> None:
        """As IdNodes.create."""
        await self._folders.ensure_above([f"/{folder}/"])

    async def take(self, folder: str, count: int) -> int:
        """As IdNodes.take."""
        await self.create(folder)
        first, taken = 0, 0
        while taken < count:
            some = min(count - taken, TAKEN_MAX)
            number = await self._take(f"/{folder}/{NODE}", some)
            if taken and number == first + taken:
                taken += some
            else:  # the first ones, or another client came in between
                first, taken = number, some
        return first

    async def _take(self, prefix: str, count: int) -> int:
        node = Create(prefix, ephemeral=True, sequence=True)
        made = await _known(self._connection.multi([node] * count))
        if isinstance(made, Refused):
            raise MetadataBroken(f"{prefix}: {made.reason.value}")
        nodes = [node for node in made if isinstance(node, str)]
        with suppress(MetadataUnavailable):  # those that stay end with the session
            await self._connection.multi([Remove(node) for node in nodes])
        return int(nodes[0].rpartition(NODE)[2])


async def _known(change: Awaitable[Applied | Refused]) -> Applied | Refused:
    """Return the outcome of a change that does no harm if it is made and not known to be."""
    try:
        return await change
    except MetadataUnavailable as lost:
        raise MetadataUnavailable(lost.message) from lost


def _parse(path: str, data: bytes) -> int:
    try:
        return int(data or b"1")  # that of sessions begins empty
    except ValueError:
        raise MetadataBroken(f"{path} holds {data[:20]!r} and no id") from None
