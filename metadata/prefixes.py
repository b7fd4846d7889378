"""Finding the prefixes of a key among a hundred thousand.

A key has at most one prefix of each length, so it is looked up once for each length in use. Names
of one kind have one length (metadata/records.py), so these are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixTable(Generic[T]):
    """Prefixes, each with its holders. About 300 bytes for one with one holder."""

    def __init__(self) -> None:
        self._holders: dict[str, tuple[T, ...]] = {}
        self._counts: dict[int, int] = {}
        self._lengths: list[int] = []
        """of the prefixes, the shortest first"""

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, prefix: str) -> bool:
        return prefix in self._holders

    def holders(self, prefix: str) -> tuple[T, ...]:
        """Return the holders of *prefix*."""
        return self._holders.get(prefix, ())

    def items(self) -> list[tuple[str, tuple[T, ...]]]:
        """Return all prefixes with their holders."""
        return list(self._holders.items())

    def add(self, prefix: str, holder: T) -> bool:
        """Add a holder of *prefix*; return True if it is the only one."""
        holders = self._holders.get(prefix, ())
        self._holders[prefix] = (*holders, holder)
        if not holders:
            length = len(prefix)
            self._counts[length] = self._counts.get(length, 0) + 1
            if self._counts[length] == 1:
                self._lengths = sorted(self._counts)
        return not holders

    def discard(self, prefix: str, holder: T) -> bool:
        """Remove a holder of *prefix* once; return True if it was the last one."""
        holders = self._holders.get(prefix, ())
        if holder not in holders:
            return False
        at = holders.index(holder)
        left = holders[:at] + holders[at + 1 :]
        if left:
            self._holders[prefix] = left
            return False
        del self._holders[prefix]
        length = len(prefix)
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            self._lengths.remove(length)
        return True

    def matching(self, key: str) -> Iterator[tuple[str, tuple[T, ...]]]:
        """Yield the prefixes of *key*, with their holders, the shortest first."""
        size = len(key)
        for length in self._lengths:
            if length > size:
                return
            prefix = key[:length]
            holders = self._holders.get(prefix)
            if holders is not None:
                yield prefix, holders
