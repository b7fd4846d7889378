"""Versions, epochs and times above those of another store, for a cluster that moved here.

Versions are zxids, which a new ensemble counts from the beginning. After an import
(metadata/moving.py) they must be above all that the former store gave. So the node /quire/floor
holds a number, and RaisedConnection adds it to every zxid that the driver sees. It is set while
nobody else uses the cluster, and every store reads it when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import (
    Applied,
    Connection,
    Create,
    Folder,
    Node,
    Op,
    Refused,
    Set,
    Stat,
)


class RaisedConnection:
    """A Connection whose zxids are greater by *above*."""

    def __init__(self, connection: Connection, above: int = 0) -> None:
        self.above = above
        self._connection = connection
        self.name = connection.name

    @property
    def session_id(self) -> int:
        """As Connection.session_id."""
        return self._connection.session_id

    @property
    def session_timeout_s(self) -> float:
        """As Connection.session_timeout_s."""
        return self._connection.session_timeout_s

    @property
    def is_connected(self) -> bool:
        """As Connection.is_connected."""
        return self._connection.is_connected

    @property
    def heard_at(self) -> float:
        """As Connection.heard_at."""
        return self._connection.heard_at

    async def connected(self) -> None:
        """As Connection.connected."""
        await self._connection.connected()

    async def get(self, paths: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        """As Connection.get."""
        found = await self._connection.get(paths, fresh=fresh)
        return [each and (each[0], self._raised(each[1])) for each in found]

    async def stat(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        """As Connection.stat."""
        found = await self._connection.stat(paths, fresh=fresh, watch=watch)
        return [each and self._raised(each) for each in found]

    async def children(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Folder | None]:
        """As Connection.children."""
        found = await self._connection.children(paths, fresh=fresh, watch=watch)
        return [each and (each[0], self._raised(each[1])) for each in found]

    async def make_root(self) -> None:
        """As Connection.make_root."""
        await self._connection.make_root()

    async def above_with(self, name: str) -> list[str]:
        """As Connection.above_with."""
        return await self._connection.above_with(name)

    async def aclose(self) -> None:
        """As Connection.aclose."""
        await self._connection.aclose()

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        """As Connection.multi."""
        outcome = await self._connection.multi(ops)
        if isinstance(outcome, Refused):
            return outcome
        return [self._raised(each) if isinstance(each, Stat) else each for each in outcome]

    def _raised(self, stat: Stat) -> Stat:
        if not self.above:
            return stat
        return stat._replace(created=stat.created + self.above, modified=stat.modified + self.above)

    # --- the floor itself ----------------------------------------------------------------

    async def find_floor(self) -> None:
        """Read what is to be added. Raises MetadataBroken, MetadataUnavailable."""
        self.above = await number_at(self, paths.FLOOR) or 0

    async def newest(self) -> int:
        """Return a version at or above all that were ever given."""
        # A change of ours is newer than all before it.
        await raise_number(self, paths.FLOOR, self.above)
        (stat,) = await self.stat([paths.FLOOR], fresh=True)
        return stat.modified if stat else self.above

    async def raise_above(self, version: int) -> None:
        """Give only versions above *version* from now on. Nobody else may use the cluster."""
        missing = version - await self.newest()
        if missing > 0:
            await raise_number(self, paths.FLOOR, self.above + missing)
            self.above += missing


async def number_at(connection: Connection, path: str) -> int | None:
    """Return the number in a node, None if there is no such node. Raises MetadataBroken."""
    (node,) = await connection.get([path], fresh=True)
    return None if node is None else _parse(path, node[0])


async def raise_number(connection: Connection, path: str, floor: int) -> None:
    """Write a node whose number is at least *floor*, also if it is already.

    Raises:
        MetadataUnavailable: it may have been written.
    """
    while True:
        (node,) = await connection.get([path], fresh=True)
        change: Op
        if node is None:
            change = Create(path, str(floor).encode())
        else:
            number = max(_parse(path, node[0]), floor)
            change = Set(path, str(number).encode(), node[1].version)
        try:
            outcome = await connection.multi([change])
        except MetadataUnavailable as lost:
            raise MetadataUnavailable(lost.message) from lost
        if not isinstance(outcome, Refused):
            return


def _parse(path: str, data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise MetadataBroken(f"{path} holds {data[:20]!r} and no number") from None
