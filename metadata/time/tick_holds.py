"""Holds: a change of a topic that is under way keeps the topic's ticks below its own timestamp.

    client                                         leader, each round
    ------                                         ------------------
    1. takes the timestamp *below*                 1. takes the moment, a fresh timestamp
    2. takes a lease time-ddl/..., says *below*    2. checks that time/lanes is as it was read;
    3. changes the row time/lanes                     else reads lanes and holds anew
    4. takes the timestamp D of the change         3. makes no tick above the moment or *below*
    5. stores the change, with a check of the lease
    6. releases the lease

So once a tick T is made, no change with a timestamp up to T shows later. A round that checked
before step 3 has a moment from before step 4, and so below D. A later one knows the hold, whose
*below* is below D, until the lease is over: then the change is there, or it fails at its check for
ever. A client that died holds ticks back until its session ends.

The creation of a topic holds nothing: a topic has no ticks before it has lanes, and nobody opens
lanes before it shows. Partitions that an alteration adds have messages later than it for the same
reason.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

import msgspec

from metadata.errors import BadRecord
from metadata.records import decode_row
from metadata.sessions import HeldLease, ProcessSession
from metadata.store import Lease, MetadataStore, Put
from metadata.time.tick_rows import TIME_DDL, TIME_LANES, TickHold, TimedTopic, hold_prefix
from metadata.topics import last_number

Holds = dict[int, list[TickHold]]
"""The holds of each topic, by its uid."""


async def hold_ticks(
    session: ProcessSession, topic: str, uid: int, *, below: int, kind: str
) -> HeldLease:
    """Let the topic get no tick above *below* until the returned lease is over.

    Only timestamps that are taken after this call are later than all ticks. Costs two transactions.

    Raises:
        MetadataError: ticks are not held back, or only until the session has released the lease.
    """
    hold = TickHold(topic, below, kind, os.uname().nodename, os.getpid())
    name = f"{hold_prefix(uid)}{secrets.token_hex(8)}"
    held = await session.grant(name, value=msgspec.json.encode(hold))
    try:
        value = msgspec.json.encode(TimedTopic(topic))
        await session.store.transact([held.check, Put(TIME_LANES, value)])
    except BaseException:
        await held.release()
        raise
    return held


async def read_holds(store: MetadataStore) -> Holds:
    """Return all holds. One that cannot be read lets its topic have no ticks at all.

    Leases that name no topic hold nothing.

    Raises:
        MetadataError: the store did not answer.
    """
    found: Holds = {}
    page = await store.leases(TIME_DDL)
    while page:
        for lease in page:
            with suppress(BadRecord):
                uid = last_number(lease.name.removeprefix(TIME_DDL).partition("/")[0])
                found.setdefault(uid, []).append(_decoded(lease))
        page = await store.leases(TIME_DDL, after=page[-1].name)
    return found


def _decoded(lease: Lease) -> TickHold:
    try:
        return decode_row(lease.name, lease.value, TickHold)
    except BadRecord:
        return TickHold(lease.name, 0, "changed")
