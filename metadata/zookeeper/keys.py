"""Keys: which node holds one, reading it, and pages of them.

Every key of a page is read by itself. Then the change log says which of them were changed
meanwhile, and these are read again, until none was: so a page is what one moment saw. Changes
of BookKeeper's own clients are not in the log, and each of them concerns one node.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from metadata.store import PAGE_SIZE_MAX, Page, Versioned, is_last
from metadata.zookeeper import paths
from metadata.zookeeper.changelog import ChangeLog
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.listing import KeyWalk
from metadata.zookeeper.plan import Place
from metadata.zookeeper.sweeping import EmptyFolders
from metadata.zookeeper.znodes import Connection, Node

READ_MAX = 100
"""Values that are read at a time for a page."""
Found = dict[str, Versioned]
Where = tuple[str, str]
"""A key and its node."""


class Keys:
    """The keys of a cluster, in our own nodes and in BookKeeper's."""

    def __init__(
        self, connection: Connection, layout: Layout, log: ChangeLog, empty: EmptyFolders
    ) -> None:
        self._connection = connection
        self._layout = layout
        self._log = log
        self._empty = empty

    def place(self, key: str) -> Place:
        """Return the node of *key*, and how a value stands in it."""
        path = self._layout.path(key)
        if path is None:
            return Place(paths.leaf_path(paths.KEYS, key), lambda value: value)
        return Place(f"/{path}", lambda value: self._layout.encode(key, value))

    async def get(self, key: str) -> Versioned | None:
        """Return a key's value and version. Raises MetadataUnavailable."""
        (node,) = await self._connection.get([self.place(key).path], fresh=True)
        return None if node is None else self._value(key, node)

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """Return the next keys, up to *limit* and 2 MiB, as one moment saw them."""
        while True:
            await self._log.catch_up(fresh=True)
            revision = self._log.revision
            found, end = await self._read_page(prefix, after, limit)
            while self._log.remembers(revision):
                await self._log.catch_up(fresh=True)
                changed = [
                    key
                    for key in self._log.changed_since(prefix, revision)
                    if key > after and (end is None or key <= end)
                ]
                if not changed:
                    page = _cut(found, limit)
                    if end is None or not is_last(page, limit):
                        return page
                    after = after if page else end  # some of them were deleted meanwhile
                    break
                revision = self._log.revision
                for key in changed:
                    found.pop(key, None)
                found |= await self._read([(key, self.place(key).path) for key in changed])

    async def _read_page(self, prefix: str, after: str, limit: int) -> tuple[Found, str | None]:
        """Return some keys and the last one that was looked at; None at the end."""
        found: Found = {}
        size = 0
        batch: list[Where] = []
        async with aclosing(self._places(prefix, after, limit)) as places:
            async for where in places:
                batch.append(where)
                if len(batch) >= min(READ_MAX, limit - len(found)):
                    more = await self._read(batch)
                    size += sum(len(each.value) for each in more.values())
                    found |= more
                    if len(found) >= limit or size > PAGE_SIZE_MAX:
                        return found, batch[-1][0]
                    batch = []
        return found | await self._read(batch), None

    async def _read(self, wanted: Sequence[Where]) -> Found:
        nodes = await self._connection.get([path for _, path in wanted], fresh=True)
        return {
            key: self._value(key, node)
            for (key, _), node in zip(wanted, nodes, strict=True)
            if node is not None
        }

    def _value(self, key: str, node: Node) -> Versioned:
        data, stat = node
        if self._layout.path(key) is not None:
            data = self._layout.decode(key, data, created_ms=stat.created_ms)
        return Versioned(data, stat.modified)

    # --- places of keys, in order ------------------------------------------------------------

    async def _places(self, prefix: str, after: str, limit: int) -> AsyncGenerator[Where]:
        """Yield the keys that have nodes, ours and BookKeeper's, in order."""
        walk = KeyWalk(
            *(self._connection, paths.KEYS, prefix, after), fresh=True, on_empty=self._empty.note
        )
        ours = await walk.take(limit)
        async with aclosing(self._layout.listing(prefix, after, self._names)) as theirs:
            async for key, path in theirs:
                while ours and ours[0].text < key:
                    place = ours.pop(0)
                    yield place.text, place.path
                    ours = ours or await walk.take(limit)
                yield key, f"/{path}"
        while ours:
            for place in ours:
                yield place.text, place.path
            ours = await walk.take(limit)

    async def _names(self, folder: str) -> Iterable[str]:
        (found,) = await self._connection.children([f"/{folder}"], fresh=True)
        return found[0] if found else ()


def _cut(found: Found, limit: int) -> Page:
    """Return the page in order, no larger than a page may be."""
    page: Page = []
    size = 0
    for key in sorted(found)[:limit]:
        size += len(found[key].value)
        if page and size > PAGE_SIZE_MAX:
            break
        page.append((key, found[key]))
    return page
