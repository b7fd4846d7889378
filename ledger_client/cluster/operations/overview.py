"""The state of a cluster: bookies, leader, ledgers that need repair, repairs under way.

All of it is read from metadata, so an overview costs a few reads and no bookie is asked. The
parts are read one after the other, so they may be a few milliseconds apart.
"""

from __future__ import annotations

import msgspec

from metadata.listings import (
    leader,
    list_draining,
    list_marks,
    list_repairs,
    rack_report,
)
from metadata.records import (
    COOKIES,
    BookieRecord,
    Leader,
    RackReport,
    RepairProgress,
    UnderReplicated,
)
from metadata.registrations import list_registrations
from metadata.store import MetadataStore, pages


class BookieOverview(msgspec.Struct, frozen=True):
    """A bookie that is registered or has a cookie. Sizes are bytes."""

    bookie_id: str
    state: str
    """"writable", or why it gets no new entries: "lost", "draining", "limbo" (some, if there are
    too few others), "stalled", "read-only", "unreadable" if its registration cannot be decoded,
    or "decommissioned" if it was, and still runs"""
    registered: bool = False
    address: str = ""
    capacity: int = 0
    free: int = 0
    ledgers_size: int = 0
    load: float = 0.0
    """recent rate of adds in bytes a second"""
    version: str = ""
    rack: str = ""


class Overview(msgspec.Struct, frozen=True):
    """A cluster at a glance. Bookies and ledgers are ordered by id."""

    leader: Leader | None
    bookies: list[BookieOverview]
    underreplicated: list[UnderReplicated]
    repairs: list[RepairProgress]
    racks: RackReport | None = None
    """ledgers on too few racks; `None` if no bookie states a rack, or before the first count"""

    @property
    def underreplicated_size(self) -> int:
        """Payload bytes that may have to be copied, as the marks estimate them."""
        return sum(mark.size for mark in self.underreplicated)

    @property
    def lost(self) -> list[str]:
        """Ids of bookies that have a cookie and are not registered."""
        return [bookie.bookie_id for bookie in self.bookies if not bookie.registered]

    def waits_for(self, mark: UnderReplicated) -> str:
        """Describe in a few words what happens to a marked ledger, or why nothing does."""
        for repair in self.repairs:
            if repair.ledger_id == mark.ledger_id:
                worker, _, _ = repair.worker.partition("/")  # drops the id of its process
                return f"{worker} repairs it{_percent(repair)}"
        if mark.last_failure:
            return mark.last_failure
        if not any(bookie.registered for bookie in self.bookies):
            return "no bookie is up to repair it"
        return "waiting for a worker"


LOST = "lost"
UNREADABLE = "unreadable"
DECOMMISSIONED = "decommissioned"
WRITABLE = "writable"


async def take_overview(store: MetadataStore) -> Overview:
    """Read the state of the cluster.

    Raises:
        MetadataError: the store is unavailable, or a record in it is damaged.
    """
    return Overview(
        leader=await leader(store),
        bookies=await _bookies(store),
        underreplicated=await list_marks(store),
        repairs=await list_repairs(store),
        racks=await rack_report(store),
    )


async def registered(store: MetadataStore) -> dict[str, BookieRecord]:
    """Return the bookies that hold a lease, by id, less unreadable ones. Raises MetadataError."""
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
        rack=record.rack,
    )


def _state(record: BookieRecord, *, known: bool, leaves: bool) -> str:
    if not known:
        return DECOMMISSIONED
    reasons = {
        "draining": leaves or record.draining,
        "limbo": record.limbo,
        "stalled": record.stalled,
        "read-only": record.read_only and not (leaves or record.stalled),  # which imply it
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds) or WRITABLE


def _percent(repair: RepairProgress) -> str:
    if not repair.size:
        return ""
    return f", {min(100 * repair.copied_size // repair.size, 100)} %"
