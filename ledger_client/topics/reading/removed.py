"""What is missing where a ledger of a lane is not there any more.

Rows go away, the oldest first, while somebody reads or keeps a place. Versions of a lane have
no gaps from ledger to ledger: so a place tells, when its own ledger is gone, whether entries
behind it are missing, and how many. What somebody deleted on purpose (deleting.py) is not
missing: reading goes on behind it.

A person can delete a ledger by itself, by force. Its row stays then, and says what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger_client.topics.errors import Gap
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.reading.holes import kept_entries
from ledger_client.topics.reading.places import UNKNOWN, LaneRef, Place
from metadata.topics import LaneRecord, RemovedLedgers


async def gap_behind(
    rows: LedgerRows, number: int, place: Place, row: Row | None, record: LaneRecord | None
) -> Gap | None:
    """As gap_at(), but for what was deleted on purpose."""
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
    """Return how many of the versions from *start* to before *stop* were deleted."""
    return sum(max(0, min(r.stop_version, stop) - max(r.version, start)) for r in removals)


async def gap_before(rows: LedgerRows, row: Row | None, place: Place, floor: int) -> Gap | None:
    """Return what is missing in front of *place*, to which a lane was read in reverse.

    *row* is the last there is before it, None for nothing: then all from version *floor* on
    should be there.
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
    """Return what is missing behind *place* when ledger *number* is not there.

    *row* is the first there is after it, None for nothing; *record* is the lane's as it stood
    before *row* was looked for.
    """
    if number == UNKNOWN:
        return None  # wherever the lane begins is right
    if row is not None:
        here, first = row.ledger.base_version, MessageId(row.ledger.ledger_id, 0)
    else:
        if record is None or number > record.current:
            return None  # it is yet to come
        here, first = record.next_version, None
    known = place.version >= 0 and here >= 0
    if known and place.version >= here:
        return None  # what was removed had been read
    first = first and first._replace(partition=lane.partition)
    return _gap(lane, place, first, here - place.version if known else None)


async def gap_of_ledger(
    rows: LedgerRows, row: Row, begin: int, last: int, *, place: Place
) -> Gap | None:
    """Return what is missing where a closed ledger was deleted and its row is still there.

    Entries from *begin* to *last* were to be read; None if none of them is missing. *place* is
    where reading stopped. A row that counts no entries was written when its ledger was gone
    already: then nobody knows how many are missing.
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
