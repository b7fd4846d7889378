"""A lane read twice: whole, and then only what has survivors.

The first reading notes of each entry how many messages it has and the order up to there. So
the second gives messages the same ordinals and orders, although it passes over what nothing
is left of.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from ledger_client.compaction.errors import CompactedLost
from ledger_client.compaction.plan import LanePlan
from ledger_client.compaction.portions import (
    Portion,
    compacted_portions,
    greatest_order,
    may_lack_keys,
    raw_portions,
)
from ledger_client.errors import NoSuchLedger
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import Gap
from ledger_client.topics.reading.span_reader import Brought, SpanReader
from ledger_client.topics.reading.spans import Span
from native.latest import Survivors

PASSED_SIZE = 4 << 20
"""Bytes without a survivor, between two entries with one, that are passed over; fewer are read."""


class EntryTable:
    """What the first reading noted of each entry of a lane, in the order of reading."""

    def __init__(self) -> None:
        self.counts = array("I")
        """messages"""
        self.orders = array("q")
        """the greatest order before the entry"""
        self.keyless = bytearray()
        """1: some may be without a key"""
        self.last_order = 0
        """of the lane"""

    @property
    def messages(self) -> int:
        """How many messages the lane has."""
        return sum(self.counts)

    def extend(self, count: int) -> int:
        """Make room for *count* entries; return the place of the first."""
        first = len(self.counts)
        self.counts.frombytes(bytes(4 * count))
        self.orders.frombytes(bytes(8 * count))
        self.keyless += bytes(count)
        return first

    def note(self, at: int, portion: Portion, order: int) -> None:
        """Count messages of the entry at a place; *order* is the greatest before them."""
        if not self.counts[at]:
            self.orders[at] = order
        self.counts[at] += portion.columns.count
        self.keyless[at] |= may_lack_keys(portion.columns)

    def order_from(self, place: int, count: int) -> int:
        """Return the order before the first messages of some entries."""
        places = range(place, place + count)
        return next((self.orders[at] for at in places if self.counts[at]), 0)


async def read_all(
    client: TopicClient, lane: LanePlan, table: EntryTable
) -> AsyncGenerator[Portion]:
    """Yield all messages of a lane, and note its entries in *table*, which is empty.

    Raises:
        CompactedLost: a ledger of survivors is gone.
        Gap: a raw ledger was removed since the plan was made.
        BadBatch, EntryLost, ReplicasUnavailable, MetadataUnavailable: as SpanReader.batches().
    """
    order, base = lane.order_key, 0
    spans = (*lane.before, *lane.raw)
    places = {span.ledger_id: table.extend(span.entries) for span in spans}
    async with aclosing(_brought(client, lane, spans)) as entries:
        async for brought in entries:
            first = places[brought.span.ledger_id]
            for portion in _portions(brought, base, order):
                table.note(first + portion.entry, portion, order)
                base += portion.columns.count
                order = max(order, greatest_order(portion))
                yield portion
    table.last_order = order


async def read_left(
    client: TopicClient, lane: LanePlan, table: EntryTable, survivors: Survivors, *, keyless: bool
) -> AsyncGenerator[Portion]:
    """Yield the messages of a lane's entries that have survivors, and maybe of some others.

    With *keyless* also of those with messages that may be without a key. Raises as read_all().
    """
    cuts = list(_cuts(lane, table, survivors, keyless=keyless))
    following = iter(cuts)
    cut: _Cut | None = None
    base = 0
    async with aclosing(_brought(client, lane, [each.span for each in cuts])) as entries:
        async for brought in entries:
            while cut is None or brought.span is not cut.span:  # one may have no entries left
                cut = next(following)
                base = cut.base
            place = cut.place + brought.entries.first_entry - cut.span.first_entry
            count = len(brought.entries)
            for portion in _portions(brought, base, table.order_from(place, count)):
                yield portion
            base += sum(table.counts[place : place + count])


def _portions(brought: Brought, base: int, order: int) -> Iterator[Portion]:
    if brought.span.base_version < 0:
        return compacted_portions(brought, base)
    return raw_portions(brought, base, order)


async def _brought(
    client: TopicClient, lane: LanePlan, spans: Sequence[Span]
) -> AsyncGenerator[Brought]:
    compacted = {span.ledger_id for span in lane.before}
    try:
        async with SpanReader(client).entries(spans) as brought:
            async for each in brought:
                yield each
    except NoSuchLedger as gone:
        if gone.ledger_id not in compacted:
            raise
        raise CompactedLost(lane.before[0].topic, ledger_id=gone.ledger_id or 0) from gone
    except Gap as gap:
        if gap.position.ledger_id not in compacted:
            raise
        raise CompactedLost(lane.before[0].topic, ledger_id=gap.position.ledger_id) from gap


# --- passing over -----------------------------------------------------------------


class _Cut(NamedTuple):
    """Entries that are read again, the place of the first in the table, and its ordinal."""

    span: Span
    place: int
    base: int


def _cuts(
    lane: LanePlan, table: EntryTable, survivors: Survivors, *, keyless: bool
) -> Iterator[_Cut]:
    place = base = 0
    for span in (*lane.before, *lane.raw):
        passed = max(1, PASSED_SIZE * span.entries // max(span.size, 1))
        first = last = -1
        first_base = 0
        for at in range(place, place + span.entries):
            count = table.counts[at]
            if count and (_any_left(survivors, base, count) or (keyless and table.keyless[at])):
                if first >= 0 and at - last > passed:
                    yield _cut(span, place, first, last, first_base)
                    first = -1
                if first < 0:
                    first, first_base = at, base
                last = at
            base += count
        if first >= 0:
            yield _cut(span, place, first, last, first_base)
        place += span.entries


def _cut(span: Span, place: int, first: int, last: int, base: int) -> _Cut:
    entries = first - place, last - place
    part = msgspec.structs.replace(span, first_entry=entries[0], last_entry=entries[1])
    return _Cut(part, first, base)


def _any_left(survivors: Survivors, base: int, count: int) -> bool:
    """Whether one of these may be left; a neighbour's bit in the same byte counts, too."""
    start, stop = base // 8, (base + count + 7) // 8
    return survivors.bits.count(0, start, stop) < stop - start
