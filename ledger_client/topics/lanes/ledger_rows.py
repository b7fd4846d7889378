"""The rows of a lane's ledgers, as readers look them up when they need them.

A row may be out of date as soon as it is read: only the LedgerRecord says whether a ledger is
closed. So readers use a row as an address and little more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.positions import LaneRef, Place
from metadata.store import MetadataStore, pages
from metadata.topics import (
    LANES,
    LaneLedger,
    LaneRecord,
    RemovedLedgers,
    decode_lane,
    decode_lane_ledger,
    decode_lane_removals,
    lane_key,
    lane_ledger_key,
    lane_ledgers_prefix,
    lane_of,
    lane_removals_key,
    last_number,
    topic_prefix,
)

PAGE_ROWS = 1000


class Row(NamedTuple):
    """Ledger *number* of a lane, with its row as it was read."""

    number: int
    ledger: LaneLedger

    @property
    def readable(self) -> bool:
        """False while the ledger is only prepared: it may never be written."""
        return self.ledger.state != "prepared"

    def place(self, entry_id: int) -> Place:
        """Return the place before an entry."""
        return Place(self.number, entry_id, 0, self.ledger.ledger_id, self.version(entry_id))

    def version(self, entry_id: int) -> int:
        """Return the version of an entry, -1 if the ledger has no base version yet."""
        base = self.ledger.base_version
        return base if base < 0 else base + entry_id


class LedgerRows:
    """The rows of one lane. Every call may raise MetadataUnavailable and MetadataBroken."""

    def __init__(self, store: MetadataStore, lane: LaneRef, *, timeout_s: float) -> None:
        self.lane = lane
        self.prefix = lane_ledgers_prefix(lane.uid, lane.partition, lane.lane)
        self._store = store
        self._timeout_s = timeout_s

    async def at(self, number: int) -> Row | None:
        """Return the row of ledger *number*, `None` if there is none."""
        key = self._key(number)
        with translated(self._timeout_s):
            found = await self._store.get(key)
            return None if found is None else Row(number, decode_lane_ledger(key, found.value))

    async def first_from(self, number: int) -> Row | None:
        """Return the first row from ledger *number* on, prepared or not."""
        rows = await self.page(number, limit=1)
        return rows[0] if rows else None

    async def page(self, number: int, *, limit: int = PAGE_ROWS) -> list[Row]:
        """Return up to *limit* rows from ledger *number* on, in order; empty at the end."""
        after = self._key(number - 1) if number > 0 else ""
        with translated(self._timeout_s):
            found = await self._store.list(self.prefix, after=after, limit=limit)
            return [
                Row(last_number(key), decode_lane_ledger(key, value.value)) for key, value in found
            ]

    async def last_up_to(self, number: int) -> Row | None:
        """Return the last row up to ledger *number*, `None` if there is none."""
        return await self.last_with(lambda row: row.number <= number, number)

    async def last_with(self, holds: Callable[[Row], bool], number: int) -> Row | None:
        """Return the last row up to ledger *number* for which *holds* is true.

        It must be true for each row before that one too: a binary search finds it.
        """
        found = await self.first_from(0)
        if found is None or found.number > number or not holds(found):
            return None
        while found.number < number:
            middle = (found.number + number + 1) // 2
            row = await self.first_from(middle)
            if row is not None and row.number <= number and holds(row):
                found = row
            else:
                number = middle - 1
        return found

    async def removals(self) -> list[RemovedLedgers]:
        """Return the ranges of ledgers that were deleted out of the lane."""
        key = lane_removals_key(self.lane.uid, self.lane.partition, self.lane.lane)
        with translated(self._timeout_s):
            found = await self._store.get(key)
            return [] if found is None else decode_lane_removals(key, found.value).ranges

    async def record(self) -> LaneRecord | None:
        """Return the lane's record, read now."""
        key = lane_key(self.lane.uid, self.lane.partition, self.lane.lane)
        with translated(self._timeout_s):
            found = await self._store.get(key)
            return None if found is None else decode_lane(key, found.value)

    def _key(self, number: int) -> str:
        return lane_ledger_key(self.lane.uid, self.lane.partition, self.lane.lane, number)


async def lanes_of(
    store: MetadataStore, uid: int, *, timeout_s: float
) -> list[tuple[int, int, LaneRecord]]:
    """Return partition, lane and record of every lane of a topic, in order.

    Raises:
        MetadataUnavailable, MetadataBroken: from the store.
    """
    found: list[tuple[int, int, LaneRecord]] = []
    with translated(timeout_s):
        async for page in pages(store, topic_prefix(LANES, uid)):
            found += [(*lane_of(key), decode_lane(key, value.value)) for key, value in page]
    return found
