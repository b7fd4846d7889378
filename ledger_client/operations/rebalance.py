"""Moving copies of closed ledgers until bookies hold about the same number of bytes.

A move copies first and changes the location list then, in one transaction with the claim on
the ledger, so no moment has fewer readable copies than before, and a move that ends in the
middle never was. The old copy is deleted by its bookie when that collects garbage next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from ledger_client.catalogue import Catalogue
from ledger_client.client import Client
from ledger_client.errors import BookieUnavailable, NoSuchLedger
from ledger_client.operations.balance import (
    TOLERANCE,
    LedgerShares,
    Levels,
    Move,
    Shelf,
    plan_moves,
    shares_of,
)
from ledger_client.repair.claim import Claim, claim_ledger
from ledger_client.repair.copier import Copier
from ledger_client.repair.plan import Copy, fragment_ends, wanted
from ledger_client.repair.presence import look, runs_on
from ledger_client.repair.records import ledger_records, list_draining
from ledger_client.repair.runs import Runs, count, union, without
from ledger_client.repair.throttle import Throttle
from ledger_client.statements import LedgerName
from metadata.errors import LeaseHeld, VersionConflict
from metadata.records import (
    BookieRecord,
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import ABSENT, Check, MetadataStore, Put

RATE = 50 * 1024 * 1024
RESERVE = 0.1
"""The part of a bookie's disk that moves leave free."""


class Balance(msgspec.Struct, frozen=True):
    """How the copies lie now, and what would level them. Sizes are payload bytes."""

    sizes: dict[str, int]
    spread: float
    """fullest minus emptiest, as a part of the mean"""
    moves: list[Move]


class Rebalancer:
    """Levels the bookies of one cluster, one move at a time.

    Args:
        client: of the cluster.
        store: its metadata.
        rate: payload bytes copied a second, so that writers and readers go first.
        tolerance: level enough, as a part of the mean.
    """

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        *,
        rate: float = RATE,
        tolerance: float = TOLERANCE,
    ) -> None:
        self._client = client
        self._store = store
        self._tolerance = tolerance
        self._owner = f"rebalance/{secrets.token_hex(8)}"
        self._copier = Copier(client.bookies, Throttle(rate), client.options)
        self._catalogue = Catalogue(store, timeout_s=client.options.metadata_timeout_s)

    async def look(self) -> Balance:
        """Return how things are and the moves to make.

        Only closed ledgers count. Bookies that are lost, in limbo or being decommissioned
        are left out: repair is at work on them.

        Raises:
            MetadataError, LedgerError: the metadata cannot be asked.
        """
        shelves = await self._shelves()
        shares: list[LedgerShares] = [
            shares_of(record)
            async for record in ledger_records(self._store)
            if record.state is LedgerState.CLOSED
        ]
        levels = Levels(shares, shelves)
        moves = plan_moves(shares, shelves, tolerance=self._tolerance)
        return Balance(levels.sizes, levels.spread, moves)

    async def make(self, move: Move, *, on_copied: Callable[[int], None]) -> bool:
        """Make one move; return False when the ledger is not as it was when it was planned.

        It may be deleted, moved or under repair by now: plan anew. Cancelled, or after any
        error, either the whole move is made or the list is what it was.

        Raises:
            BookieUnavailable: the target is away or refuses.
            EntryLost, ReplicasUnavailable, NoSuchEntry: no bookie could serve an entry.
            MetadataError, LedgerError: the metadata cannot be asked.
        """
        try:
            async with claim_ledger(self._store, move.ledger_id, self._owner) as claim:
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
        await self._copy(record, names, move, claim, on_copied)
        await self._store.transact(
            [
                claim.check,
                Check(underreplicated_key(move.ledger_id), ABSENT),
                Put(ledger_key(move.ledger_id), encode_record(_moved(record, move)), version),
            ]
        )
        return True

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
        presence, _ = await look(self._client, sorted({*names, move.target}), ledger)
        needed = without(share, presence[move.target] or [])
        claim.expect(record.length * count(needed) // (record.last_entry + 1) if needed else 0)

        def copied(size: int) -> None:
            claim.copied(size)
            on_copied(size)

        if needed:
            await self._copier.copy(record, presence, Copy(move.target, needed), copied)
        lacking = without(share, await runs_on(self._client, move.target, ledger))
        if lacking:
            raise BookieUnavailable(move.target, f"lacks entry {lacking[0][0]} after a copy")

    async def _shelves(self) -> list[Shelf]:
        live, leaving = await self._client.list_bookies(), await list_draining(self._store)
        return [
            Shelf(bookie.bookie_id, takes=not bookie.read_only, free=_free(bookie))
            for bookie in live
            if not (bookie.limbo or bookie.draining or bookie.bookie_id in leaving)
        ]


def _free(bookie: BookieRecord) -> int:
    return max(bookie.free - int(bookie.capacity * RESERVE), 0)


def _share(record: LedgerRecord, bookie_id: str) -> Runs:
    """Return the entries that *bookie_id* should hold."""
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
