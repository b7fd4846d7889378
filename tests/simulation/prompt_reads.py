"""Stores that find out whether what they read was up to date when the read began.

metadata/store.py promises it: a read that starts after a change returned sees that change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from metadata.store import ABSENT, Page, Versioned, is_last
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.store import ZooKeeperStore

Values = Mapping[str, Versioned]
TOLD_MAX = 3


class Reads:
    """The reads that are under way. *old* says which of those that ended showed old values."""

    def __init__(self, values: Values) -> None:
        self.old: list[str] = []
        self._values = values
        self._under_way: list[set[str]] = []

    def note(self, key: str) -> None:
        """The *key* was changed: reads that are under way may show it so or so."""
        for changed in self._under_way:
            changed.add(key)

    @contextmanager
    def checked(self, includes: Callable[[str], bool]) -> Iterator[Callable[[Values], None]]:
        """Yield a function that takes what was read of those keys that the read *includes*."""
        before = {key: value for key, value in self._values.items() if includes(key)}
        changed: set[str] = set()

        def check(found: Values) -> None:
            for key in (before.keys() | found.keys()) - changed:
                if before.get(key) != found.get(key) and len(self.old) < TOLD_MAX:
                    was, seen = _version(before.get(key)), _version(found.get(key))
                    self.old.append(f"{key} had version {was}, and was read in version {seen}")

        self._under_way.append(changed)
        try:
            yield check
        finally:
            self._under_way = [each for each in self._under_way if each is not changed]


class CheckedStore(ZooKeeperStore):
    """A ZooKeeperStore whose reads are checked."""

    def __init__(self, connection: RaisedConnection, layout: Layout, reads: Reads) -> None:
        super().__init__(connection, layout)
        self._reads = reads

    async def get(self, key: str) -> Versioned | None:
        with self._reads.checked(lambda each: each == key) as check:
            found = await super().get(key)
            check({} if found is None else {key: found})
        return found

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        with self._reads.checked(lambda each: each.startswith(prefix) and each > after) as check:
            page = await super().list(prefix, after=after, limit=limit)
            if is_last(page, limit):
                check(dict(page))
        return page


def _version(found: Versioned | None) -> int:
    return ABSENT if found is None else found.version
