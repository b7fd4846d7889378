"""Which copies to move so that all bookies hold about the same number of bytes.

Arithmetic over closed ledgers, without a cluster: the fullest bookie gives to the
emptiest, each time the copy that levels the two best. A move from a to b of a copy that
is smaller than the difference of the two always lowers the sum of the squares of all
levels, so the planning ends; it ends early when the levels are close enough.

A copy moves to a bookie that has no part of the ledger, so two never lie on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from sortedcontainers import SortedList

from metadata.records import LedgerRecord

TOLERANCE = 0.1
"""Level enough: the fullest and the emptiest differ by this part of the mean."""


class LedgerShares(msgspec.Struct, frozen=True):
    """A closed ledger: the payload bytes that each of its bookies holds of it."""

    ledger_id: int
    sizes: dict[str, int]


class Shelf(msgspec.Struct, frozen=True):
    """A bookie as a place for copies: whether it takes any, and for how many bytes."""

    bookie_id: str
    takes: bool = True
    free: int = 1 << 62


class Move(msgspec.Struct, frozen=True):
    """One copy of a ledger goes from one bookie to another; *size* is payload bytes."""

    ledger_id: int
    source: str
    target: str
    size: int


def shares_of(record: LedgerRecord) -> LedgerShares:
    """Return what each bookie holds of a closed ledger, as far as its record tells.

    Fragments are taken to have entries of the same average size.
    """
    entries = record.last_entry + 1
    part = record.length * record.write_quorum / record.ensemble_size / max(entries, 1)
    ends = [*(fragment.first_entry for fragment in record.fragments[1:]), entries]
    sizes: dict[str, float] = {}
    for fragment, end in zip(record.fragments, ends, strict=True):
        for bookie_id in fragment.bookies:
            held = part * (end - fragment.first_entry)
            sizes[bookie_id] = sizes.get(bookie_id, 0.0) + held
    return LedgerShares(record.ledger_id, {name: round(size) for name, size in sizes.items()})


def plan_moves(
    ledgers: Iterable[LedgerShares], shelves: Sequence[Shelf], *, tolerance: float = TOLERANCE
) -> list[Move]:
    """Return moves, to be made in this order, that level the bookies as far as they can.

    Args:
        ledgers: all closed ledgers.
        shelves: the bookies to level. One that takes no copies can still give some.
        tolerance: fullest minus emptiest, as a part of the mean, that is level enough.

    Returns:
        No more moves than needed. After them the bookies are level enough, or no single
        move from the fullest, or to the emptiest, would bring the two closer.
    """
    levels = Levels(ledgers, shelves)
    moves: list[Move] = []
    while levels.spread > tolerance:
        move = levels.best_move()
        if move is None:
            break
        levels.make(move)
        moves.append(move)
    return moves


class Levels:
    """How much lies on each bookie, and what of it can go where.

    Attributes:
        sizes: payload bytes of closed ledgers on each bookie.
    """

    def __init__(self, ledgers: Iterable[LedgerShares], shelves: Sequence[Shelf]) -> None:
        self.sizes = {shelf.bookie_id: 0 for shelf in shelves}
        self._free = {shelf.bookie_id: shelf.free for shelf in shelves if shelf.takes}
        self._holders: dict[int, set[str]] = {}
        self._copies = {shelf.bookie_id: SortedList() for shelf in shelves}
        for ledger in ledgers:
            self._holders[ledger.ledger_id] = set(ledger.sizes)
            for bookie_id, size in ledger.sizes.items():
                if bookie_id in self.sizes:
                    self._put(bookie_id, size, ledger.ledger_id)

    @property
    def spread(self) -> float:
        """Fullest minus emptiest that takes copies, as a part of the mean."""
        total = sum(self.sizes.values())
        if not total or not self._free:
            return 0.0
        emptiest = min(self.sizes[name] for name in self._free)
        return (max(self.sizes.values()) - emptiest) * len(self.sizes) / total

    def best_move(self) -> Move | None:
        """Return a move that helps, the fullest and the emptiest bookie first; None: none does."""
        for source, target in self._pairs():
            found = self._fitting(source, target)
            if found is not None:
                return found
        return None

    def make(self, move: Move) -> None:
        """Take *move* as made."""
        self._copies[move.source].remove((move.size, move.ledger_id))
        self.sizes[move.source] -= move.size
        self._holders[move.ledger_id].remove(move.source)
        self._holders[move.ledger_id].add(move.target)
        self._free[move.target] -= move.size
        self._put(move.target, move.size, move.ledger_id)

    def _put(self, bookie_id: str, size: int, ledger_id: int) -> None:
        self.sizes[bookie_id] += size
        self._copies[bookie_id].add((size, ledger_id))

    def _pairs(self) -> Iterator[tuple[str, str]]:
        sources = sorted(self.sizes, key=lambda name: (-self.sizes[name], name))
        targets = sorted(self._free, key=lambda name: (self.sizes[name], name))
        for target in targets:
            yield sources[0], target
        for source in sources[1:]:
            yield source, targets[0]

    def _fitting(self, source: str, target: str) -> Move | None:
        """Return the move between the two that brings them closest to each other."""
        gap = self.sizes[source] - self.sizes[target]
        copies = self._copies[source]
        half, end = copies.bisect_left((gap / 2,)), copies.bisect_left((gap,))
        nearest = (
            self._first_movable((copies[place] for place in places), target)
            for places in (range(half - 1, -1, -1), range(half, end))
        )
        fitting = [found for found in nearest if found is not None]
        if not fitting:
            return None
        size, ledger_id = min(fitting, key=lambda found: abs(gap / 2 - found[0]))
        return Move(ledger_id, source, target, size)

    def _first_movable(
        self, copies: Iterable[tuple[int, int]], target: str
    ) -> tuple[int, int] | None:
        for size, ledger_id in copies:
            if target not in self._holders[ledger_id] and 0 < size <= self._free[target]:
                return size, ledger_id
        return None
