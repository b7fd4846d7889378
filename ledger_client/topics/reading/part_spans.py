"""What is to be read of what compaction left of a lane, as spans."""

from __future__ import annotations

import msgspec

from ledger_client.topics.reading.compacted_part import CompactedPart
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.part_search import PartSearch, searching
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.spans import Span
from metadata.compaction import CompactedLedger

Cut = tuple[int, int, int]
"""A ledger of the part, an entry of it, and how many of its messages lie before."""


async def part_spans(
    lane: LaneRef, part: CompactedPart, opener: LedgerOpener, begin: Place, end: Place
) -> list[Span]:
    """Return a span for each ledger of *part* with something from *begin* to before *end*.

    Raises:
        CompactedSetLost: a ledger of the part is gone.
        LedgerError: as reading does.
    """
    if not part.ledgers:
        return []
    async with searching(lane, part, opener) as search:
        first, last = await _cut(search, part, begin), await _cut(search, part, end)
    found = []
    for index, ledger in enumerate(part.ledgers):
        start = first if index == first[0] else (index, 0, 0)
        stop = last if index == last[0] else (index, ledger.entries, 0)
        if first[0] <= index <= last[0] and start < stop:
            found.append(_span(lane, ledger, start, stop))
    return found


async def _cut(search: PartSearch, part: CompactedPart, place: Place) -> Cut:
    """Return where *place* is."""
    if place.at[:2] <= part.ledgers[0].first.at and not place.skip:
        return 0, 0, 0
    index = None
    if place.at[:2] <= part.ledgers[-1].last.at:
        index = await search.entry(lambda before: before.at >= place.at)
    if index is None:
        return len(part.ledgers), 0, 0
    batch = await search.batch(index)
    return (*search.stored(index), batch.count_before(place))


def _span(lane: LaneRef, ledger: CompactedLedger, start: Cut, stop: Cut) -> Span:
    whole = Span(
        topic=lane.topic,
        uid=lane.uid,
        topic_index=lane.topic_index,
        ordered=lane.ordered,
        partition=lane.partition,
        lane=lane.lane,
        number=ledger.first.number,
        ledger_id=ledger.ledger_id,
        base_version=-1,
        first_entry=0,
        last_entry=ledger.entries - 1,
        size=ledger.size,
        messages=ledger.messages,
        compacted=True,
    )
    last = stop[1] if stop[2] else stop[1] - 1
    if last < whole.last_entry:
        whole, _ = whole.cut(last + 1)
    if start[1] > 0:
        _, whole = whole.cut(start[1])
    return msgspec.structs.replace(whole, skip=start[2], stop=stop[2] or -1)
