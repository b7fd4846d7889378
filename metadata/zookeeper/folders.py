"""Creates the folders of nodes that are about to be created, and remembers which exist."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import Connection, Create, Reason, Refused

KNOWN_MAX = 200_000
TOGETHER_MAX = 300
"""Folders that are created in one multi."""
WAITING_MAX = 10_000


class Folders:
    """The persistent nodes that one store knows to exist."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: set[str] = set()
        self._turn = trio.Lock()
        self._wanted: deque[dict[str, None]] = deque(maxlen=WAITING_MAX)

    async def ensure_above(self, nodes: Iterable[str]) -> None:
        """Create all folders above *nodes* that are missing. Raises MetadataUnavailable."""
        await self.ensure(folder for node in nodes for folder in paths.parents(node))

    async def ensure(self, folders: Iterable[str]) -> None:
        """Create *folders*, each after those above it, as far as they are missing."""
        wanted = dict.fromkeys(folders)
        if self._known.issuperset(wanted):
            return
        self._wanted.append(wanted)
        async with self._turn:  # who comes first creates those of all who wait
            if self._known.issuperset(wanted):
                return
            needed = self._take(wanted)
            while unknown := [each for each in needed if each not in self._known]:
                found = await self._connection.stat(unknown)
                missing = [each for each, stat in zip(unknown, found, strict=True) if stat is None]
                if not missing:
                    break
                if not await self._make(missing[:TOGETHER_MAX]):
                    # One above them is gone, though it is known: another store removed it.
                    needed = list(_with_parents(needed))
                    self.forget(needed)
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            self._known.update(unknown)

    def _take(self, wanted: Iterable[str]) -> list[str]:
        """Return what *wanted* and those that wait need, each folder after those above it."""
        taken = dict.fromkeys(wanted)
        while self._wanted and len(taken) < TOGETHER_MAX:
            taken |= self._wanted.popleft()
        return list(taken)

    def forget(self, nodes: Iterable[str]) -> None:
        """Look anew at the folders above *nodes*: one of them was not there."""
        self._known.difference_update(folder for node in nodes for folder in paths.parents(node))
        self._known.difference_update(nodes)

    def drop(self, folders: Iterable[str]) -> None:
        """Forget *folders*, which are gone."""
        self._known.difference_update(folders)

    async def _make(self, missing: list[str]) -> bool:
        """Create them, or none of them if another process created one meanwhile.

        False: a folder above one of them is not there.
        """
        try:
            outcome = await self._connection.multi([Create(path) for path in missing])
        except MetadataUnavailable as lost:
            if not lost.outcome_unknown:
                raise
            return True
        if isinstance(outcome, Refused) and outcome.reason not in (Reason.EXISTS, Reason.NO_NODE):
            raise MetadataBroken(f"{missing[outcome.place]}: {outcome.reason.value}")
        return not (isinstance(outcome, Refused) and outcome.reason is Reason.NO_NODE)


def _with_parents(folders: Iterable[str]) -> dict[str, None]:
    """Return *folders*, each after those above it."""
    return dict.fromkeys(each for folder in folders for each in (*paths.parents(folder), folder))
