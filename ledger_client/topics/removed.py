"""What is missing where a ledger of a lane is not there any more.

Rows go away, the oldest first, while somebody reads or keeps a place. Versions of a lane have
no gaps from ledger to ledger: so a place tells, when its own ledger is gone, whether entries
behind it are missing, and how many.
"""

from __future__ import annotations

from ledger_client.topics.errors import Gap
from ledger_client.topics.ledger_rows import Row
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.places import UNKNOWN, LaneRef, Place
from metadata.topics import LaneRecord


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
    return Gap(
        lane.topic,
        partition=lane.partition,
        lane=lane.lane,
        position=place.message_id(lane.partition),
        first=first and first._replace(partition=lane.partition),
        missing=here - place.version if known else None,
    )
