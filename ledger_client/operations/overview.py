"""How a cluster is: its bookies, who leads, which ledgers want repair, and what is done.

All of it stands in metadata, so one look costs a few reads and asks no bookie. The parts
are read one after the other: an overview is not a state that the cluster was in at once.
"""

from __future__ import annotations

import msgspec

from ledger_client.repair.records import leader, list_draining, list_marks, list_repairs
from metadata.records import (
    COOKIES,
    BookieRecord,
    Leader,
    RepairProgress,
    UnderReplicated,
)
from metadata.registrations import list_registrations
from metadata.store import MetadataStore, pages


class BookieOverview(msgspec.Struct, frozen=True):
    """A bookie that is registered, or that has a cookie and is lost. Sizes in bytes."""

    bookie_id: str
    state: str
    """"writable", or why it gets no entries: "lost", "draining", "limbo", "read-only",
    "unreadable" when its registration cannot be decoded, or "decommissioned" for one that
    nobody has stopped yet"""
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
                worker, _, _ = repair.worker.partition("/")  # without what names its process
                return f"{worker} repairs it{_share(repair)}"
        if mark.last_failure:
            return mark.last_failure
        if not any(bookie.registered for bookie in self.bookies):
            return "no bookie is there to repair it"
        return "waits for its turn"


LOST = "lost"
UNREADABLE = "unreadable"
DECOMMISSIONED = "decommissioned"
WRITABLE = "writable"


async def take_overview(store: MetadataStore) -> Overview:
    """Return how the cluster is now.

    Raises:
        MetadataError: the store cannot be asked, or holds what it should not.
    """
    return Overview(
        leader=await leader(store),
        bookies=await _bookies(store),
        underreplicated=await list_marks(store),
        repairs=await list_repairs(store),
    )


async def registered(store: MetadataStore) -> dict[str, BookieRecord]:
    """Return the bookies that hold a lease now, by id. Raises MetadataError.

    One whose lease cannot be decoded is left out.
    """
    return {bookie.bookie_id: bookie for bookie in (await list_registrations(store)).bookies}


async def _bookies(store: MetadataStore) -> list[BookieOverview]:
    found, leaving = await list_registrations(store), await list_draining(store)
    live = {bookie.bookie_id: bookie for bookie in found.bookies}
    keys = [key async for page in pages(store, COOKIES) for key, _ in page]
    known = {key.removeprefix(COOKIES) for key in keys}
    return [
        _bookie(live[name], _state(live[name], known=name in known, leaves=name in leaving))
        if name in live
        else _absent(name, unreadable=name in found.unreadable, leaves=name in leaving)
        for name in sorted(known | set(live) | set(found.unreadable))
    ]


def _absent(name: str, *, unreadable: bool, leaves: bool) -> BookieOverview:
    state = UNREADABLE if unreadable else LOST
    return BookieOverview(name, f"{state}, draining" if leaves else state)


def _bookie(record: BookieRecord, state: str) -> BookieOverview:
    return BookieOverview(
        record.bookie_id,
        state,
        registered=True,
        address=record.address,
        capacity=record.capacity,
        free=record.free,
        ledgers_size=record.ledgers_size,
        load=record.load,
        version=record.version,
    )


def _state(record: BookieRecord, *, known: bool, leaves: bool) -> str:
    if not known:
        return DECOMMISSIONED
    reasons = {
        "draining": leaves or record.draining,
        "limbo": record.limbo,
        "stalled": record.stalled,
        "read-only": record.read_only and not (leaves or record.stalled),  # else it follows
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds) or WRITABLE


def _share(repair: RepairProgress) -> str:
    if not repair.size:
        return ""
    return f", {min(100 * repair.copied_size // repair.size, 100)} %"
