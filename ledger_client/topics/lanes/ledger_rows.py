"""The rows of a lane's ledgers, as readers look them up when they need them.

A row may be out of date as soon as it is read: only the LedgerRecord says whether a ledger is
closed. So readers use a row as an address and little more.

Deleted on purpose: a ledger's row lists the ranges of its messages that somebody deleted, and a
lane lists its deleted ledgers. Readers skip both as if they had never been there; entries and ids
of the other messages stay as they are.

Missing: retention removes rows, the oldest first, while readers hold positions in them. Versions
of a lane have no gaps from ledger to ledger, so a position whose ledger is gone still shows
whether entries after it are missing, and how many. Those are reported as a Gap. The row of a
ledger that an operator deleted by force stays, and its entries are a Gap too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ledger_client.errors import Gap
from ledger_client.ledgers.catalogue import translated
from ledger_client.message_id import MessageId
from ledger_client.topics.positions import UNKNOWN, LaneRef, Place
from metadata.pointers import read_lane, read_lane_records, read_lane_row, read_lane_rows
from metadata.records import ledger_key
from metadata.store import MetadataStore
from metadata.topics import (
    LANES,
    LaneLedger,
    LaneRecord,
    Removed,
    RemovedLedgers,
    decode_lane_removals,
    lane_key,
    lane_ledger_key,
    lane_ledgers_prefix,
    lane_of,
    lane_removals_key,
    last_number,
    topic_prefix,
    writer_lease,
)

PAGE_ROWS = 1000
Point = tuple[int, int]
"""An entry, and the number of its messages before the point."""


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
            found = await read_lane_row(self._store, key)
            return None if found is None else Row(number, found.ledger)

    async def first_from(self, number: int) -> Row | None:
        """Return the first row from ledger *number* on, prepared or not."""
        rows = await self.page(number, limit=1)
        return rows[0] if rows else None

    async def page(self, number: int, *, limit: int = PAGE_ROWS) -> list[Row]:
        """Return up to *limit* rows from ledger *number* on, in order; empty at the end."""
        after = self._key(number - 1) if number > 0 else ""
        with translated(self._timeout_s):
            found = await read_lane_rows(self._store, self.prefix, after=after, limit=limit)
            return [Row(last_number(row.key), row.ledger) for row in found]

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

    async def exists(self, ledger_id: int) -> bool:
        """True if the cluster has a ledger of this id, in this lane or anywhere else.

        A ledger is deleted together with its row. So one that exists, but has no row in this
        lane, is not a ledger that the lane lost, unless its id was used again.
        """
        with translated(self._timeout_s):
            return await self._store.get(ledger_key(ledger_id)) is not None

    async def record(self) -> LaneRecord | None:
        """Return the lane's record, read now."""
        key = lane_key(self.lane.uid, self.lane.partition, self.lane.lane)
        with translated(self._timeout_s):
            found = await read_lane(self._store, key)
            return None if found is None else found.record

    async def is_written(self) -> bool:
        """True while a writer holds the lane's lease; a dead one's lasts some seconds more."""
        name = writer_lease(self.lane.uid, self.lane.partition, self.lane.lane)
        with translated(self._timeout_s):
            return any(lease.name == name for lease in await self._store.leases(name))

    def _key(self, number: int) -> str:
        return lane_ledger_key(self.lane.uid, self.lane.partition, self.lane.lane, number)


async def lanes_of(
    store: MetadataStore, uid: int, *, timeout_s: float
) -> list[tuple[int, int, LaneRecord]]:
    """Return partition, lane and record of every lane of a topic, in order.

    Raises:
        MetadataUnavailable, MetadataBroken: from the store.
    """
    with translated(timeout_s):
        found = await read_lane_records(store, topic_prefix(LANES, uid))
        return [(*lane_of(lane.key), lane.record) for lane in found]


# --- messages deleted on purpose ----------------------------------------------------------


def merged(removed: Sequence[Removed], start: Point, stop: Point) -> list[Removed]:
    """Return the deleted ranges after everything from *start* to before *stop* is deleted too."""
    ranges = sorted([*((r[0], r[1]) for r in map(_points, removed)), (start, stop)])
    found: list[tuple[Point, Point]] = []
    for first, last in ranges:
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        elif first < last:
            found.append((first, last))
    return [Removed(*first, *last) for first, last in found]


def kept_messages(
    removed: Sequence[Removed], entry: int, start: int, stop: int
) -> list[tuple[int, int]]:
    """Return the ranges left of messages *start* to before *stop* of an entry."""
    kept: list[tuple[int, int]] = []
    for first, last in map(_points, removed):
        if last <= (entry, start) or first >= (entry, stop):
            continue
        if first > (entry, start):
            kept.append((start, first[1]))
        start = last[1] if last[0] == entry else stop
        if start >= stop:
            return kept
    return [*kept, (start, stop)] if start < stop else kept


def kept_entries(removed: Sequence[Removed], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of entries from *first* to *last* that were not deleted as a whole."""
    for start, stop in map(_points, removed):
        gone = start[0] + (start[1] > 0), stop[0] - 1
        if gone[0] > gone[1] or gone[1] < first:
            continue
        if gone[0] > last:
            break
        if gone[0] > first:
            yield first, gone[0] - 1
        first = gone[1] + 1
    if first <= last:
        yield first, last


def past(removed: Sequence[Removed], point: Point) -> Point:
    """Return *point*, or the end of the range it was deleted with."""
    for start, stop in map(_points, removed):
        if start <= point < stop:
            return stop
    return point


def _points(one: Removed) -> tuple[Point, Point]:
    return (one.entry, one.skip), (one.stop_entry, one.stop_skip)


# --- messages that are missing ------------------------------------------------------------


async def gap_after(
    rows: LedgerRows, number: int, place: Place, row: Row | None, record: LaneRecord | None
) -> Gap | None:
    """As gap_at(), not counting deletions on purpose; `None` if nothing else is missing."""
    gap = gap_at(rows.lane, number, place, row, record)
    if gap is None:
        return None
    here = row.ledger.base_version if row is not None else record.next_version if record else -1
    removals = await rows.removals()
    if gap.missing is None:
        return None if any(r.number <= number < r.stop_number for r in removals) else gap
    missing = gap.missing - deleted_between(removals, place.version, here)
    if missing == gap.missing:
        return gap
    return None if missing <= 0 else _gap(rows.lane, place, gap.first, missing)


def deleted_between(removals: Sequence[RemovedLedgers], start: int, stop: int) -> int:
    """Return the number of deleted versions from *start* to before *stop*."""
    return sum(max(0, min(r.stop_version, stop) - max(r.version, start)) for r in removals)


async def gap_before(rows: LedgerRows, row: Row | None, place: Place, floor: int) -> Gap | None:
    """Return the gap before *place*, at which a read in reverse has arrived.

    *row* is the last row before it. `None` means that there is none; then everything from version
    *floor* on is missing.
    """
    there = floor if row is None else row.version(row.ledger.entries)
    if place.version < 0 or there < 0 or there >= place.version:
        return None
    removals = await rows.removals()
    missing = place.version - there - deleted_between(removals, there, place.version)
    return None if missing <= 0 else _gap(rows.lane, place, None, missing)


def gap_at(
    lane: LaneRef, number: int, place: Place, row: Row | None, record: LaneRecord | None
) -> Gap | None:
    """Return the gap after *place* if ledger *number* has no row.

    *row* is the first row after it, `None` if there is none; *record* is the lane's record, read
    before *row* was looked up.
    """
    if number == UNKNOWN:
        return None  # reading begins with the first row there is
    if row is not None:
        here, first = row.ledger.base_version, MessageId(row.ledger.ledger_id, 0)
    else:
        if record is None or number > record.current:
            return None  # the ledger has not been created yet
        here, first = record.next_version, None
    known = place.version >= 0 and here >= 0
    if known and place.version >= here:
        return None  # the deleted entries had been read
    first = first and first._replace(partition=lane.partition)
    return _gap(lane, place, first, here - place.version if known else None)


async def gap_of_ledger(
    rows: LedgerRows, row: Row, begin: int, last: int, *, place: Place
) -> Gap | None:
    """Return the gap of a closed ledger that was deleted while its row stayed.

    Entries *begin* to *last* were to be read; return `None` if all of those were deleted on
    purpose. *place* is where reading stopped. A row without a count of entries was written after
    its ledger had gone; then the number of missing entries is unknown.
    """
    missing: int | None = None
    if row.ledger.entries:
        kept = kept_entries(row.ledger.removed, begin, last)
        missing = sum(stop + 1 - start for start, stop in kept)
        if not missing:
            return None
    following = await rows.first_from(row.number + 1)
    first: MessageId | None = None
    if following is not None and following.readable:
        first = MessageId(following.ledger.ledger_id, 0, rows.lane.partition)
    return _gap(rows.lane, place, first, missing)


def _gap(lane: LaneRef, place: Place, first: MessageId | None, missing: int | None) -> Gap:
    return Gap(
        lane.topic,
        partition=lane.partition,
        lane=lane.lane,
        position=place.message_id(lane.partition),
        first=first,
        missing=missing,
    )
