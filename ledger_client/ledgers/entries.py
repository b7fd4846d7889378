"""Entries as received, converted to objects on access.

A batch is the body of one response, checked in C, with the offsets of its payloads.
A million entries are a few hundred batches; an Entry object is built when it is accessed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from typing import NamedTuple, overload


class Entry(NamedTuple):
    """One entry of a ledger; *payload* is a copy without header and digest."""

    ledger_id: int
    entry_id: int
    payload: bytes


# Builds an Entry from a tuple of its fields without running Python code.
_entry_of = partial(tuple.__new__, Entry)


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Consecutive sound entries in one buffer: entry first_entry + i lies at offsets[i]."""

    ledger_id: int
    first_entry: int
    body: bytes | memoryview
    offsets: Sequence[int]
    sizes: Sequence[int]
    bookie_id: str
    """the bookie that served it"""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def last_entry(self) -> int:
        """Id of the last entry in the batch."""
        return self.first_entry + len(self.sizes) - 1

    @property
    def size(self) -> int:
        """Payload bytes of all entries, added up at each access."""
        return sum(self.sizes)

    def payload(self, index: int) -> memoryview:
        """Return the payload of entry first_entry + *index*, not copied."""
        offset = self.offsets[index]
        return memoryview(self.body)[offset : offset + self.sizes[index]]

    def payloads(self) -> Iterator[bytes]:
        """Yield every payload, in order, as bytes of its own."""
        view = memoryview(self.body)
        for offset, size in zip(self.offsets, self.sizes, strict=True):
            yield view[offset : offset + size].tobytes()

    def entry(self, index: int) -> Entry:
        """Return entry first_entry + *index*, with a copy of its payload."""
        return Entry(self.ledger_id, self.first_entry + index, bytes(self.payload(index)))

    def __iter__(self) -> Iterator[Entry]:
        fields = zip(repeat(self.ledger_id), count(self.first_entry), self.payloads(), strict=False)
        return map(_entry_of, fields)


class Entries(Sequence[Entry]):
    """The entries of consecutive batches, each built when it is accessed."""

    def __init__(self, batches: Sequence[EntryBatch]) -> None:
        self._batches = batches
        self._ends: list[int] = []
        count = 0
        for batch in batches:
            count += len(batch)
            self._ends.append(count)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        at = bisect.bisect_right(self._ends, position)
        batch = self._batches[at]
        return batch.entry(position - (self._ends[at] - len(batch)))

    def __iter__(self) -> Iterator[Entry]:
        for batch in self._batches:
            yield from batch

    def __repr__(self) -> str:
        return f"<Entries: {len(self)} in {len(self._batches)} batches>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares by value
