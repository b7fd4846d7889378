"""The entries that messages of a compacted entry come from; compacted.h has the layout."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from native._core import ffi, lib
from native.columns import address


class Origin(NamedTuple):
    """An original entry; *kept* is the number of its messages that were kept."""

    number: int
    """number of its ledger in the lane"""
    ledger_id: int
    entry_id: int
    version: int = -1
    created_ms: int = 0
    sequence: int = -1
    """number of the entry's first message"""
    order: int = 0
    """decides, between lanes, which message of a key is later"""
    producer: str = ""
    kept: int = 1


class Origins(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """The original entries of messages as columns, with an item for each entry."""

    ledger_ids: memoryview
    """"q", as all up to *orders*"""
    numbers: memoryview
    entry_ids: memoryview
    versions: memoryview
    created_ms: memoryview
    sequences: memoryview
    orders: memoryview
    starts: memoryview
    """"i": the first message of each, and at the end how many there are"""
    producers: memoryview
    """"i": places in *names*"""
    names: tuple[str, ...]

    @classmethod
    def of(cls, origins: Sequence[Origin]) -> Origins:
        """Return *origins* as columns.

        Raises:
            OverflowError: a number does not fit.
        """
        names = {name: at for at, name in enumerate(dict.fromkeys(o.producer for o in origins))}
        starts = array("i", [0])
        for origin in origins:
            starts.append(starts[-1] + origin.kept)
        return cls(
            ledger_ids=_words(o.ledger_id for o in origins),
            numbers=_words(o.number for o in origins),
            entry_ids=_words(o.entry_id for o in origins),
            versions=_words(o.version for o in origins),
            created_ms=_words(o.created_ms for o in origins),
            sequences=_words(o.sequence for o in origins),
            orders=_words(o.order for o in origins),
            starts=memoryview(starts),
            producers=memoryview(array("i", [names[o.producer] for o in origins])),
            names=tuple(names),
        )

    def __len__(self) -> int:
        return len(self.ledger_ids)

    @property
    def count(self) -> int:
        """The number of messages of all origins."""
        return int(self.starts[-1])

    def __iter__(self) -> Iterator[Origin]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Origin:
        """Return the origin at *index*, a new object on each call."""
        return Origin(
            self.numbers[index],
            self.ledger_ids[index],
            self.entry_ids[index],
            self.versions[index],
            self.created_ms[index],
            self.sequences[index],
            self.orders[index],
            self.names[self.producers[index]],
            self.starts[index + 1] - self.starts[index],
        )

    def spread(self, words: memoryview) -> memoryview:
        """Repeat *words*, 4 or 8 bytes for each origin, so that each message has its own."""
        kind: Literal["i", "q"] = "i" if words.format == "i" else "q"
        return _spread(words, words.itemsize, self).cast(kind)

    @cached_property
    def index(self) -> memoryview:
        """The index of each message's origin, as "i"."""
        return _spread(None, 4, self).cast("i")


def _words(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("q", numbers))


def _spread(words: memoryview | None, width: int, origins: Origins) -> memoryview:
    out = bytearray(width * origins.count)
    given = ffi.NULL if words is None else address(words)
    with ffi.from_buffer(out) as lent:
        lib.bk_compacted_spread(given, width, address(origins.starts), len(origins), lent)
    return memoryview(out)
