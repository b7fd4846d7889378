"""The compacted set of a topic: read, and its ledgers removed. jobs/compaction writes it.

A set's ledgers belong to no lane. They are removed once their generation has been retired for
RETIRED_MS, with the set when compaction of the topic ends, or with the topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

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
from metadata.store import CheckLease, Delete, MetadataStore, Op, Put

REMOVED_COUNT = 400
"""Retired ledgers that one transaction removes."""


async def read_set(store: MetadataStore, uid: int) -> SetAt | None:
    """Return the compacted set of the topic *uid*, or `None` if it was never compacted.

    Raises:
        MetadataError: from the store; BadRecord for a damaged row.
    """
    key = compacted_key(uid)
    found = await store.get(key)
    return None if found is None else SetAt(decode_set(key, found.value), found.version)


async def remove_retired(
    store: MetadataStore, uid: int, now_ms: int, *, checks: Sequence[CheckLease] = ()
) -> int:
    """Remove ledgers retired for RETIRED_MS or longer; return their number.

    Raises:
        MetadataError: the rest is still listed.
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
    """Remove the set of a topic with its ledgers; return it, or `None` if unreadable or missing.

    Raises as remove_retired().
    """
    while True:
        try:
            found = await read_set(store, uid)
        except BadRecord:  # its ledgers are unknown
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
    """Remove retired ledgers from store and list; return 0 if the set changed meanwhile."""
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
