"""Walks over keys in their order, folder by folder: see paths.py."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from metadata.zookeeper.paths import Place, children_of
from metadata.zookeeper.znodes import Connection

TOGETHER_MAX = 16
"""Folders that are listed at a time."""


class KeyWalk:
    """Goes over the keys under *root* that start with *prefix* and are greater than *after*."""

    def __init__(
        self,
        connection: Connection,
        root: str,
        prefix: str,
        after: str,
        *,
        fresh: bool,
        on_empty: Callable[[list[str]], None],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a walk.

        Args:
            connection: to ZooKeeper.
            root: the folder of all.
            prefix: what the keys start with.
            after: what they are greater than.
            fresh: see all that was there when the walk began.
            on_empty: called with folders that have no node.
            on_answer: called whenever ZooKeeper has answered.
        """
        self._connection = connection
        self._prefix = prefix
        self._after = after
        self._fresh = fresh
        self._on_empty = on_empty
        self._on_answer = on_answer
        self._places = [Place("", root, is_leaf=False)]

    async def take(self, count: int) -> list[Place]:
        """Return the next *count* keys, fewer at the end. Raises MetadataUnavailable."""
        found: list[Place] = []
        while self._places and len(found) < count:
            if self._places[0].is_leaf:
                found.append(heapq.heappop(self._places))
            else:
                await self._open()
        return found

    async def _open(self) -> None:
        """List the folders that come next, as far as no key is before them."""
        folders: list[Place] = []
        while self._places and not self._places[0].is_leaf and len(folders) < TOGETHER_MAX:
            folders.append(heapq.heappop(self._places))
        found = await self._connection.children(
            [folder.path for folder in folders], fresh=self._fresh
        )
        self._fresh = False
        self._on_answer()
        pairs = zip(folders, found, strict=True)
        self._on_empty([folder.path for folder, listed in pairs if listed and not listed[0]])
        for folder, listed in zip(folders, found, strict=True):
            for place in children_of(folder, listed[0] if listed else []):
                if self._may_hold(place):
                    heapq.heappush(self._places, place)

    def _may_hold(self, place: Place) -> bool:
        text = place.text
        if place.is_leaf:
            return text.startswith(self._prefix) and text > self._after
        is_under = text.startswith(self._prefix) or self._prefix.startswith(text)
        return is_under and (text >= self._after or self._after.startswith(text))
