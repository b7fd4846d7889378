"""Ids of ledgers, taken as BookKeeper's clients take them, so that none is ever given twice.

A client creates an ephemeral sequential node ``idgen/ID-``: ZooKeeper completes its name with a
number that rises with every node created in the folder, and that is the id. The node goes again.

Numbers have 31 bits. Once they have run out, the folder ``idgen-long`` exists, and in it
``HOB-<high>``: the number of a node in there is the lower half of an id, *high* the upper one.
When that is full, the next one follows. A client that sees ``idgen-long`` never goes back to
``idgen``; so creating it is also how ids continue above a great one after an import.

Id 0, which BookKeeper gives first, is skipped: counters of a store begin at 1.

Facts: ZkLedgerIdGenerator.java and LongZkLedgerIdGenerator.java of BookKeeper 4.18.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

FOLDER = "idgen"
LONG_FOLDER = "idgen-long"
NODE = "ID-"
NUMBER_MAX = (1 << 31) - 2
"""The last number that is used."""
TAKEN_MAX = 20_000
"""Numbers that raise_to() takes at most; above, it goes over to long ids, which costs nothing."""
_TAKEN_AT_ONCE = 1000
_HIGH = "HOB-"


class IdNodes(Protocol):
    """What LedgerIds needs of ZooKeeper. Folders are below BookKeeper's root."""

    async def children(self, folder: str) -> Iterable[str] | None:
        """Return the names under *folder*, None if it does not exist."""

    async def numbered(self, folder: str) -> int:
        """Return the number of the next sequential node in *folder*, 0 if that does not exist."""

    async def create(self, folder: str) -> None:
        """Create *folder* and those above it, as far as they are missing."""

    async def take(self, folder: str, count: int) -> int:
        """Return the first of *count* numbers in a row that nobody else is given.

        They are the ends of the names of *count* ephemeral sequential nodes NODE, created in one
        transaction and removed again. Missing folders are created. A number above NUMBER_MAX, or a
        negative one, means that they have run out.
        """


class LedgerIds:
    """The counter of ledger ids in one ZooKeeper."""

    def __init__(self, nodes: IdNodes) -> None:
        self._nodes = nodes
        self._high = -1
        """-1: unknown; 0: ids are short"""

    async def next(self, count: int) -> int:
        """Return the first of *count* ids that no client of any kind was given or will be.

        Raises:
            MetadataError: as *nodes*; some ids may be lost.
        """
        while True:
            if self._high < 0:
                self._high = await self._highest()
            first = await self._nodes.take(_folder(self._high), count)
            if self._high == first == 0:
                continue
            if 0 <= first <= NUMBER_MAX + 1 - count:
                return self._high << 32 | first
            # Another client may have gone on meanwhile.
            self._high = max(await self._highest(), self._high + 1)

    async def following(self) -> int:
        """Return an id at or above which all coming ones are."""
        high = await self._highest()
        return max(high << 32 | await self._nodes.numbered(_folder(high)), 1)

    async def raise_to(self, following: int) -> None:
        """Continue at or above *following*. No other client may take ids meanwhile."""
        missing = following - await self.following()
        if missing <= 0:
            return
        high = await self._highest()
        if missing > TAKEN_MAX or (following & 0xFFFFFFFF) > NUMBER_MAX:
            high = max(high, following >> 32) + 1
            await self._nodes.create(_folder(high))
        while (missing := following - await self.following()) > 0:
            await self._nodes.take(_folder(high), min(missing, _TAKEN_AT_ONCE))
        self._high = high

    async def _highest(self) -> int:
        """Return the upper half of ids: 0 while they are short."""
        names = await self._nodes.children(LONG_FOLDER)
        return 0 if names is None else max([1, *map(_high_of, names)])


def _folder(high: int) -> str:
    return f"{LONG_FOLDER}/{_HIGH}{high:010d}" if high else FOLDER


def _high_of(name: str) -> int:
    digits = name.removeprefix(_HIGH)
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else 0
