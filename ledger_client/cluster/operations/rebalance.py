"""Moves copies of closed ledgers until all bookies hold about the same number of bytes.

Copies on fewer racks than could be are moved first, and no move makes that worse.

A move copies first and then changes the location list, in one transaction that checks the
claim on the ledger. So there are never fewer readable copies than before, and an
interrupted move leaves no trace. The bookie deletes the old copy at its next garbage
collection.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from sortedcontainers import SortedList

from ledger_client.cluster.repair.claim import Claim, claim_ledger
from ledger_client.cluster.repair.copier import Copier, Throttle
from ledger_client.cluster.repair.plan import (
    LedgerShares,
    RepairCopy,
    Runs,
    count,
    fragment_ends,
    shares_of,
    union,
    wanted,
    without,
)
from ledger_client.cluster.repair.survey import look, runs_on
from ledger_client.errors import BookieUnavailable, NoSuchLedger
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.racks import Spread, best_spread, spread_of
from ledger_client.wire.inflight import LedgerName
from metadata.errors import LeaseHeld, VersionConflict
from metadata.listings import ledger_records, list_draining
from metadata.records import (
    BookieRecord,
    LedgerRecord,
    LedgerState,
    cookie_key,
    draining_key,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import ABSENT, Check, MetadataStore, Put

TOLERANCE = 0.1
"""Level enough: the fullest and the emptiest differ by at most this fraction of the mean."""
RATE = 50 * 1024 * 1024
RESERVE = 0.1
"""Moves leave this fraction of a bookie's disk free."""


class Balance(msgspec.Struct, frozen=True):
    """The distribution of copies, and the moves that would level it. Sizes are payload bytes."""

    sizes: dict[str, int]
    spread: float
    """fullest minus emptiest, as a fraction of the mean"""
    moves: list[Move]
    levelled: dict[str, int]
    """*sizes* after the moves"""
    levelled_spread: float


class Rebalancer:
    """Levels the bookies of one cluster, one move at a time.

    Args:
        ledgers: of the cluster.
        store: its metadata.
        rate: payload bytes to copy a second at most, to leave bandwidth to clients.
        tolerance: the spread that is level enough, as a fraction of the mean.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        *,
        rate: float = RATE,
        tolerance: float = TOLERANCE,
    ) -> None:
        self._ledgers = ledgers
        self._store = store
        self._tolerance = tolerance
        self._owner = f"rebalance/{secrets.token_hex(8)}"
        self._copier = Copier(ledgers.bookies, Throttle(rate), ledgers.options)
        self._catalogue = Catalogue(store, timeout_s=ledgers.options.metadata_timeout_s)

    async def look(self) -> Balance:
        """Return the present distribution and the moves to make.

        Only closed ledgers count, and those whose record can be decoded; others are logged.
        Bookies that are lost, in limbo or draining are left to repair.

        Raises:
            MetadataError, LedgerError: metadata is unavailable.
        """
        shelves = await self._shelves()
        shares: list[LedgerShares] = [
            shares_of(record)
            async for record in ledger_records(self._store, unreadable=set())
            if record.state is LedgerState.CLOSED
        ]
        levels = Levels(shares, shelves)
        moves = plan_moves(shares, shelves, tolerance=self._tolerance)
        sizes, spread = dict(levels.sizes), levels.spread
        for move in moves:
            levels.make(move)
        return Balance(sizes, spread, moves, levels.sizes, levels.spread)

    async def make(self, move: Move, *, on_copied: Callable[[int], None]) -> bool:
        """Make one move; return False if the ledger or the bookies changed since it was planned.

        The ledger may have been deleted, moved or taken for repair, the target be on its way
        out or full, and the copies now be on more racks without the move: then plan again. A
        cancellation or error leaves either the whole move or the old location list.

        Raises:
            BookieUnavailable: the target is unreachable or refuses.
            EntryLost, ReplicasUnavailable, NoSuchEntry: no bookie could serve an entry.
            MetadataError, LedgerError: metadata is unavailable.
        """
        try:
            async with claim_ledger(self._ledgers.session, move.ledger_id, self._owner) as claim:
                return await self._move(move, claim, on_copied)
        except (LeaseHeld, VersionConflict, NoSuchLedger):
            return False

    async def _move(self, move: Move, claim: Claim, on_copied: Callable[[int], None]) -> bool:
        record, version = await self._catalogue.get(move.ledger_id)
        names = {name for fragment in record.fragments for name in fragment.bookies}
        closed = record.state is LedgerState.CLOSED
        if not closed or move.source not in names or move.target in names:
            return False
        if await self._store.get(underreplicated_key(move.ledger_id)) is not None:
            return False
        stays = await self._staying(record, move)
        if stays is None:
            return False
        await self._copy(record, names, move, claim, on_copied)
        await self._store.transact(
            [
                claim.check,
                *stays,
                Check(underreplicated_key(move.ledger_id), ABSENT),
                Put(ledger_key(move.ledger_id), encode_record(_moved(record, move)), version),
            ]
        )
        return True

    async def _staying(self, record: LedgerRecord, move: Move) -> list[Check] | None:
        """Return what fails once the target is decommissioned; `None` if it is no place now.

        A plan takes hours to carry out. A bookie that drains takes copies as before, and who
        decommissions it does not look at moves. Repair may have put the other copies on the
        target's rack.
        """
        shelves, target = await self._shelves(), move.target
        if not any(shelf.bookie_id == target and shelf.takes for shelf in shelves):
            return None
        placed = PlacedLedgers(shelves)
        placed.add(shares_of(record))
        if placed.stated and not placed.allows(move.ledger_id, move.source, target):
            return None
        cookie = await self._store.get(cookie_key(target))
        return [
            Check(cookie_key(target), ABSENT if cookie is None else cookie.version),
            Check(draining_key(target), ABSENT),
        ]

    async def _copy(
        self,
        record: LedgerRecord,
        names: set[str],
        move: Move,
        claim: Claim,
        on_copied: Callable[[int], None],
    ) -> None:
        ledger = LedgerName(record.ledger_id, record.incarnation)
        share = _share(record, move.source)
        presence, _ = await look(self._ledgers, sorted({*names, move.target}), ledger)
        needed = without(share, presence[move.target] or [])
        claim.expect(record.length * count(needed) // (record.last_entry + 1) if needed else 0)

        def copied(size: int) -> None:
            claim.copied(size)
            on_copied(size)

        if needed:
            await self._copier.copy(record, presence, RepairCopy(move.target, needed), copied)
        lacking = without(share, await runs_on(self._ledgers, move.target, ledger))
        if lacking:
            raise BookieUnavailable(move.target, f"lacks entry {lacking[0][0]} after a copy")

    async def _shelves(self) -> list[Shelf]:
        live, leaving = await self._ledgers.list_bookies(), await list_draining(self._store)
        return [
            Shelf(
                bookie.bookie_id,
                takes=not bookie.read_only,
                free=_free(bookie),
                rack=bookie.rack,
            )
            for bookie in live
            if not (bookie.limbo or bookie.draining or bookie.bookie_id in leaving)
        ]


def _free(bookie: BookieRecord) -> int:
    return max(bookie.free - int(bookie.capacity * RESERVE), 0)


def _share(record: LedgerRecord, bookie_id: str) -> Runs:
    """Return the entries that belong on *bookie_id*."""
    return union(
        *(
            wanted(record, fragment, end, fragment.bookies.index(bookie_id))
            for fragment, end in fragment_ends(record)
            if bookie_id in fragment.bookies
        )
    )


def _moved(record: LedgerRecord, move: Move) -> LedgerRecord:
    fragments = [
        msgspec.structs.replace(
            fragment,
            bookies=[move.target if name == move.source else name for name in fragment.bookies],
        )
        for fragment in record.fragments
    ]
    return msgspec.structs.replace(record, fragments=fragments)


# --- The plan ---------------------------------------------------------------------------
# Arithmetic over closed ledgers: the fullest bookie gives to the emptiest, each time the copy
# that brings the two closest. Moving a copy smaller than the difference of the two always
# lowers the sum of squares of all levels, so planning terminates; it stops early once the
# levels are close enough. A copy moves only to a bookie that has no part of its ledger, so
# no bookie ever holds two. If bookies state racks, ledgers on fewer racks than could be come
# first, and no move puts the copies of an entry on fewer racks.


class Shelf(msgspec.Struct, frozen=True):
    """A bookie as a place for copies: if it takes any, and how many bytes fit."""

    bookie_id: str
    takes: bool = True
    free: int = 1 << 62
    rack: str = ""


class Move(msgspec.Struct, frozen=True):
    """One copy of a ledger, moved from one bookie to another; *size* is payload bytes."""

    ledger_id: int
    source: str
    target: str
    size: int


def plan_moves(
    ledgers: Iterable[LedgerShares], shelves: Sequence[Shelf], *, tolerance: float = TOLERANCE
) -> list[Move]:
    """Plan moves, to be made in this order, that level the bookies as far as possible.

    Args:
        ledgers: all closed ledgers.
        shelves: the bookies to level. One that takes no copies can still give some.
        tolerance: the spread that is level enough, as a fraction of the mean.

    Returns:
        As few moves as it takes. After them the bookies are level enough, or no single
        move from the fullest, or to the emptiest, would bring the two closer.
    """
    known = [*ledgers]
    levels = Levels(known, shelves)
    moves = [move for ledger in known for move in levels.spread_out(ledger.ledger_id)]
    while levels.spread > tolerance:
        move = levels.best_move()
        if move is None:
            break
        levels.make(move)
        moves.append(move)
    return moves


class Levels:
    """The bytes on each bookie, and which copies can go where.

    Attributes:
        sizes: payload bytes of closed ledgers on each bookie.
    """

    def __init__(self, ledgers: Iterable[LedgerShares], shelves: Sequence[Shelf]) -> None:
        self.sizes = {shelf.bookie_id: 0 for shelf in shelves}
        self._free = {shelf.bookie_id: shelf.free for shelf in shelves if shelf.takes}
        self._holders: dict[int, set[str]] = {}
        self._placed = PlacedLedgers(shelves)
        self._copies = {shelf.bookie_id: SortedList() for shelf in shelves}
        for ledger in ledgers:
            self._holders[ledger.ledger_id] = set(ledger.sizes)
            if self._placed.stated:
                self._placed.add(ledger)
            for bookie_id, size in ledger.sizes.items():
                if bookie_id in self.sizes:
                    self._put(bookie_id, size, ledger.ledger_id)

    @property
    def spread(self) -> float:
        """Fullest minus emptiest that takes copies, as a fraction of the mean."""
        total = sum(self.sizes.values())
        if not total or not self._free:
            return 0.0
        emptiest = min(self.sizes[name] for name in self._free)
        return (max(self.sizes.values()) - emptiest) * len(self.sizes) / total

    def best_move(self) -> Move | None:
        """Return a move that helps, or `None`; the fullest and the emptiest bookie go first."""
        for source, target in self._pairs():
            found = self._fitting(source, target)
            if found is not None:
                return found
        return None

    def make(self, move: Move) -> None:
        """Apply *move*, so that the next best_move() builds on it."""
        self._copies[move.source].remove((move.size, move.ledger_id))
        self.sizes[move.source] -= move.size
        self._holders[move.ledger_id].remove(move.source)
        self._holders[move.ledger_id].add(move.target)
        self._placed.move(move.ledger_id, move.source, move.target)
        self._free[move.target] -= move.size
        self._put(move.target, move.size, move.ledger_id)

    def spread_out(self, ledger_id: int) -> Iterator[Move]:
        """Apply and yield the moves that put a ledger's copies on as many racks as could be."""
        while self._placed.violates(ledger_id):
            move = self._best_spreading(ledger_id)
            if move is None:
                return
            self.make(move)
            yield move

    def _best_spreading(self, ledger_id: int) -> Move | None:
        """Return the move that spreads a ledger's copies most, to the emptiest bookie of a rack."""
        best, found = self._placed.gain(ledger_id, "", ""), None
        for source in sorted(self._holders[ledger_id] & self.sizes.keys()):
            size = self._size_of(ledger_id, source)
            for target in self._emptiest_of_racks(ledger_id, size):
                gain = self._placed.gain(ledger_id, source, target)
                if gain > best:
                    best, found = gain, Move(ledger_id, source, target, size)
        return found

    def _emptiest_of_racks(self, ledger_id: int, size: int) -> list[str]:
        fitting: dict[str, str] = {}
        for target in sorted(self._free, key=lambda name: (-self.sizes[name], name)):
            if target not in self._holders[ledger_id] and size <= self._free[target]:
                fitting[self._placed.rack_of[target]] = target
        return [*fitting.values()]

    def _size_of(self, ledger_id: int, bookie_id: str) -> int:
        return self._placed.sizes[ledger_id][bookie_id]

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
        """Return the move between the two bookies that brings them closest to each other."""
        gap = self.sizes[source] - self.sizes[target]
        copies = self._copies[source]
        half, end = copies.bisect_left((gap / 2,)), copies.bisect_left((gap,))
        nearest = (
            self._first_movable((copies[place] for place in places), source, target)
            for places in (range(half - 1, -1, -1), range(half, end))
        )
        fitting = [found for found in nearest if found is not None]
        if not fitting:
            return None
        size, ledger_id = min(fitting, key=lambda found: abs(gap / 2 - found[0]))
        return Move(ledger_id, source, target, size)

    def _first_movable(
        self, copies: Iterable[tuple[int, int]], source: str, target: str
    ) -> tuple[int, int] | None:
        for size, ledger_id in copies:
            fits = target not in self._holders[ledger_id] and 0 < size <= self._free[target]
            if fits and self._placed.stays_spread(ledger_id, source, target):
                return size, ledger_id
        return None


class PlacedLedgers:
    """The racks that copies of ledgers are on; empty if no bookie states one.

    Attributes:
        rack_of: the racks of the bookies.
        sizes: payload bytes by ledger and bookie.
    """

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self.rack_of = {shelf.bookie_id: shelf.rack for shelf in shelves}
        self.stated = any(self.rack_of.values())
        self.sizes: dict[int, dict[str, int]] = {}
        self._room = Counter(shelf.rack for shelf in shelves if shelf.takes)
        self._ensembles: dict[int, list[list[str]]] = {}
        self._write_quorum: dict[int, int] = {}
        self._best: dict[tuple[int, int], int] = {}

    def add(self, ledger: LedgerShares) -> None:
        """Add a closed ledger."""
        self.sizes[ledger.ledger_id] = {**ledger.sizes}
        self._ensembles[ledger.ledger_id] = ledger.ensembles
        self._write_quorum[ledger.ledger_id] = ledger.write_quorum

    def move(self, ledger_id: int, source: str, target: str) -> None:
        """Note that *target* takes the place of *source*."""
        if ledger_id in self._ensembles:
            self.sizes[ledger_id][target] = self.sizes[ledger_id].pop(source)
            self._ensembles[ledger_id] = self._after(ledger_id, source, target)

    def violates(self, ledger_id: int) -> bool:
        """Return True if copies of some entry are on fewer racks than could be."""
        quorum = self._write_quorum.get(ledger_id, 1)
        return any(
            self._spread(ensemble, quorum).least < self._best_of(len(ensemble), quorum)
            for ensemble in self._ensembles.get(ledger_id, ())
        )

    def gain(self, ledger_id: int, source: str, target: str) -> tuple[int, int]:
        """Rate the placement after a move, by the worst write sets and by all of them."""
        quorum = self._write_quorum[ledger_id]
        spreads = [self._spread(e, quorum) for e in self._after(ledger_id, source, target)]
        return sum(each.least for each in spreads), sum(each.total for each in spreads)

    def stays_spread(self, ledger_id: int, source: str, target: str) -> bool:
        """Return False if the move puts copies of some entry on fewer racks."""
        if ledger_id not in self._ensembles:
            return True
        quorum = self._write_quorum[ledger_id]
        before, after = self._ensembles[ledger_id], self._after(ledger_id, source, target)
        return all(
            self._spread(new, quorum).least >= self._spread(old, quorum).least
            for old, new in zip(before, after, strict=True)
        )

    def allows(self, ledger_id: int, source: str, target: str) -> bool:
        """Return True if a plan could have the move: it costs no rack, or gains more."""
        gain, now = self.gain(ledger_id, source, target), self.gain(ledger_id, "", "")
        return gain > now or self.stays_spread(ledger_id, source, target)

    def _after(self, ledger_id: int, source: str, target: str) -> list[list[str]]:
        return [
            [target if bookie == source else bookie for bookie in ensemble]
            for ensemble in self._ensembles[ledger_id]
        ]

    def _spread(self, ensemble: list[str], write_quorum: int) -> Spread:
        return spread_of([self.rack_of.get(bookie) for bookie in ensemble], write_quorum)

    def _best_of(self, size: int, write_quorum: int) -> int:
        shape = size, write_quorum
        if shape not in self._best:
            self._best[shape] = best_spread(self._room.values(), size, write_quorum).least
        return self._best[shape]
