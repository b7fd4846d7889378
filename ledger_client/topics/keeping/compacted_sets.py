"""What compaction left of topics, as everybody but the compaction looks at it.

A set's ledgers are no lane's: they go when their generation is retired for long enough, with
the set when compaction of the topic ends, and with the topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.topics.keeping.retention import Pin
from metadata.compaction import (
    RETIRED_MS,
    CompactedSet,
    SetAt,
    compacted_key,
    decode_set,
    encode_set,
)
from metadata.errors import BadRecord, VersionConflict
from metadata.records import ledger_key
from metadata.store import CheckLease, Delete, MetadataStore, Op, Put, pages
from metadata.topics import LANES, TopicRecord, lane_of, topic_prefix

REMOVED_COUNT = 400
"""Retired ledgers that one transaction removes."""
HOLDER = "the next compaction (quire compact --drop ends it)"


async def read_set(store: MetadataStore, uid: int) -> SetAt | None:
    """Return what compaction left of the topic *uid*; None: it never was compacted.

    Raises:
        MetadataError: as every call to the store; BadRecord for a damaged row.
    """
    key = compacted_key(uid)
    found = await store.get(key)
    return None if found is None else SetAt(decode_set(key, found.value), found.version)


async def set_pins(store: MetadataStore, topic: TopicRecord) -> list[Pin]:
    """Return what the next compaction needs of a topic: all behind the horizons of its set.

    A topic without a set needs nothing. Raises MetadataError.
    """
    found = await read_set(store, topic.uid)
    if found is None:
        return []
    lanes = {
        lane_of(key)
        async for page in pages(store, topic_prefix(LANES, topic.uid))
        for key, _ in page
    }
    known = {(each.partition, each.lane): each.number + 1 for each in found.set.horizons}
    return [
        Pin(partition=partition, lane=lane, number=known.get((partition, lane), 0), holder=HOLDER)
        for partition, lane in sorted(lanes | known.keys())
    ]


async def remove_retired(
    store: MetadataStore, uid: int, now_ms: int, *, checks: Sequence[CheckLease] = ()
) -> int:
    """Remove what is retired for RETIRED_MS or longer; return how many ledgers.

    Raises:
        MetadataError: what was not reached is still listed.
        LeaseLost: one of *checks* is over.
    """
    count = 0
    while (found := await read_set(store, uid)) is not None:
        due = [each for each in found.set.retired if now_ms - each.retired_ms >= RETIRED_MS]
        if not due:
            break
        count += await _remove(store, uid, found, {each.ledger_id for each in due}, checks)
    return count


async def remove_set(
    store: MetadataStore, uid: int, *, checks: Sequence[CheckLease] = ()
) -> CompactedSet | None:
    """Remove the set of a topic with all its ledgers; return what it was last, None: unknown.

    Raises as remove_retired().
    """
    while True:
        try:
            found = await read_set(store, uid)
        except BadRecord:  # which ledgers it had, nobody can say
            await store.transact([*checks, Delete(compacted_key(uid))])
            return None
        if found is None:
            return None
        retired = {each.ledger_id for each in found.set.retired}
        if retired:
            await _remove(store, uid, found, retired, checks)
            continue
        ledgers = [Delete(ledger_key(each.ledger_id)) for each in found.set.ledgers]
        try:
            await store.transact([*checks, Delete(compacted_key(uid), found.version), *ledgers])
        except VersionConflict:
            continue
        return found.set


async def _remove(
    store: MetadataStore,
    uid: int,
    found: SetAt,
    ledger_ids: set[int],
    checks: Sequence[CheckLease],
) -> int:
    """Remove some retired ledgers and list them no more; 0: another was faster."""
    gone = set(sorted(ledger_ids)[:REMOVED_COUNT])
    retired = [each for each in found.set.retired if each.ledger_id not in gone]
    after = msgspec.structs.replace(found.set, retired=retired)
    row = Put(compacted_key(uid), encode_set(after), found.version)
    ops: list[Op] = [*checks, row, *(Delete(ledger_key(each)) for each in sorted(gone))]
    try:
        await store.transact(ops)
    except VersionConflict:
        return 0
    return len(gone)
