"""How a cluster is: its bookies, who leads, which ledgers want repair, and what is done.

All of it stands in metadata, so one look costs a few reads and asks no bookie. The parts
are read one after the other: an overview is not a state that the cluster was in at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from metadata.records import (
    BOOKIES,
    COOKIES,
    COORDINATOR,
    DRAINING,
    REPAIRS,
    UNDERREPLICATED,
    BookieRecord,
    Leader,
    RepairProgress,
    UnderReplicated,
    decode_bookie,
    decode_leader,
    decode_repair,
    decode_underreplicated,
)
from metadata.store import Lease, MetadataStore, pages


class BookieOverview(msgspec.Struct, frozen=True):
    """A bookie that is registered, or that has a cookie and is lost. Sizes in bytes."""

    bookie_id: str
    state: str
    """"writable", or why it gets no entries: "lost", "draining", "limbo", "read-only" """
    registered: bool = False
    address: str = ""
    capacity: int = 0
    free: int = 0
    ledgers_size: int = 0
    load: float = 0.0
    """bytes added a second, lately"""
    version: str = ""


class Overview(msgspec.Struct, frozen=True):
    """A cluster at a glance; bookies and ledgers are ordered by id."""

    leader: Leader | None
    bookies: list[BookieOverview]
    underreplicated: list[UnderReplicated]
    repairs: list[RepairProgress]

    @property
    def underreplicated_size(self) -> int:
        """Payload bytes that may have to be copied, as far as known."""
        return sum(mark.size for mark in self.underreplicated)

    @property
    def lost(self) -> list[str]:
        """Bookies with a cookie that are not registered."""
        return [bookie.bookie_id for bookie in self.bookies if not bookie.registered]

    def waits_for(self, mark: UnderReplicated) -> str:
        """Say in a few words what happens to a ledger that wants repair, or why nothing does."""
        for repair in self.repairs:
            if repair.ledger_id == mark.ledger_id:
                return f"{repair.worker} repairs it{_share(repair)}"
        if mark.last_failure:
            return mark.last_failure
        if not any(bookie.registered for bookie in self.bookies):
            return "no bookie is there to repair it"
        return "waits for its turn"


LOST = "lost"
WRITABLE = "writable"


async def take_overview(store: MetadataStore) -> Overview:
    """Return how the cluster is now.

    Raises:
        MetadataError: the store cannot be asked, or holds what it should not.
    """
    return Overview(
        leader=await _leader(store),
        bookies=await _bookies(store),
        underreplicated=[
            decode_underreplicated(key, found.value)
            async for page in pages(store, UNDERREPLICATED)
            for key, found in page
        ],
        repairs=[decode_repair(each.name, each.value) async for each in _leases(store, REPAIRS)],
    )


async def registered(store: MetadataStore) -> dict[str, BookieRecord]:
    """Return the bookies that hold a lease now, by id. Raises MetadataError."""
    records = [decode_bookie(each.name, each.value) async for each in _leases(store, BOOKIES)]
    return {record.bookie_id: record for record in records}


async def draining(store: MetadataStore) -> set[str]:
    """Return the ids of bookies that are being decommissioned. Raises MetadataError."""
    return await _ids(store, DRAINING)


async def _bookies(store: MetadataStore) -> list[BookieOverview]:
    live, leaving = await registered(store), await draining(store)
    known = await _ids(store, COOKIES) | set(live)
    return [_bookie(name, live.get(name), leaves=name in leaving) for name in sorted(known)]


def _bookie(bookie_id: str, record: BookieRecord | None, *, leaves: bool) -> BookieOverview:
    if record is None:
        return BookieOverview(bookie_id, f"{LOST}, draining" if leaves else LOST)
    leaves = leaves or record.draining
    reasons = {"draining": leaves, "limbo": record.limbo, "read-only": record.read_only}
    if leaves:
        del reasons["read-only"]  # it follows from the other
    return BookieOverview(
        bookie_id,
        ", ".join(reason for reason, holds in reasons.items() if holds) or WRITABLE,
        registered=True,
        address=record.address,
        capacity=record.capacity,
        free=record.free,
        ledgers_size=record.ledgers_size,
        load=record.load,
        version=record.version,
    )


async def _leader(store: MetadataStore) -> Leader | None:
    found = [each for each in await store.leases(COORDINATOR) if each.name == COORDINATOR]
    return decode_leader(COORDINATOR, found[0].value) if found else None


async def _ids(store: MetadataStore, prefix: str) -> set[str]:
    return {key.removeprefix(prefix) async for page in pages(store, prefix) for key, _ in page}


async def _leases(store: MetadataStore, prefix: str) -> AsyncIterator[Lease]:
    page = await store.leases(prefix)
    while page:
        for lease in page:
            yield lease
        page = await store.leases(prefix, after=page[-1].name)


def _share(repair: RepairProgress) -> str:
    if not repair.size:
        return ""
    return f", {min(100 * repair.copied_size // repair.size, 100)} %"
