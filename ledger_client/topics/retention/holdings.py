"""What the metadata has of a topic: lanes with writers and ledgers, pins, the compacted set.

The row of a closed ledger never changes until it is removed or cut. Everything else may have
changed since it was read.

The ledgers of a compacted set belong to no lane. They are removed once their generation has been
retired for RETIRED_MS, with the set when compaction of the topic ends, or with the topic.
jobs/compaction writes the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
from metadata.store import CheckLease, Delete, MetadataStore, Op, Put, items_under
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    WRITERS,
    LaneLedger,
    LaneOwner,
    LaneRecord,
    TopicRecord,
    decode_lane,
    decode_lane_ledger,
    decode_owner,
    lane_of,
    last_number,
    partition_prefix,
    topic_prefix,
)


class HeldLedger(NamedTuple):
    """One ledger of a lane, as its row was when it was read."""

    number: int
    row: LaneLedger
    version: int
    """version of the row"""


class LaneHoldings(NamedTuple):
    """One lane. Without a *record* it is being deleted; its ledgers are left."""

    partition: int
    lane: int
    record: LaneRecord | None
    owner: LaneOwner | None
    """the present writer"""
    ledgers: tuple[HeldLedger, ...]
    """in order of number"""

    @property
    def closed(self) -> list[HeldLedger]:
        """The closed ledgers, in order of number; only these may be removed."""
        return [held for held in self.ledgers if held.row.state == "closed"]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A hold on a lane's ledgers from *number* on: no limit and no purge removes them."""

    partition: int
    lane: int
    number: int
    holder: str
    """names the job or person in messages"""


async def read_holdings(
    store: MetadataStore, topic: TopicRecord, partition: int | None = None
) -> list[LaneHoldings]:
    """Return the lanes of a topic, or of one partition, in order. Raises MetadataError."""
    lanes = await _lanes(store, _prefix(LANES, topic.uid, partition))
    owners = await read_owners(store, topic, partition)
    ledgers = await _ledgers(store, _prefix(LANE_LEDGERS, topic.uid, partition))
    return [
        LaneHoldings(*place, lanes.get(place), owners.get(place), tuple(ledgers.get(place, ())))
        for place in sorted(lanes.keys() | ledgers.keys())
    ]


def _prefix(kind: str, uid: int, partition: int | None) -> str:
    return topic_prefix(kind, uid) if partition is None else partition_prefix(kind, uid, partition)


async def _lanes(store: MetadataStore, prefix: str) -> dict[tuple[int, int], LaneRecord]:
    items = await items_under(store, prefix)
    return {lane_of(key): decode_lane(key, found.value) for key, found in items}


async def _ledgers(store: MetadataStore, prefix: str) -> dict[tuple[int, int], list[HeldLedger]]:
    ledgers: dict[tuple[int, int], list[HeldLedger]] = {}
    for key, found in await items_under(store, prefix):
        held = HeldLedger(last_number(key), decode_lane_ledger(key, found.value), found.version)
        ledgers.setdefault(lane_of(key.rpartition("/")[0]), []).append(held)
    return ledgers


async def read_owners(
    store: MetadataStore, topic: TopicRecord, partition: int | None = None
) -> dict[tuple[int, int], LaneOwner]:
    """Return the present writers of lanes, by (partition, lane). Raises MetadataError."""
    prefix = _prefix(WRITERS, topic.uid, partition)
    owners: dict[tuple[int, int], LaneOwner] = {}
    after = ""
    while leases := await store.leases(prefix, after=after):
        after = leases[-1].name
        for lease in leases:
            try:
                owners[lane_of(lease.name)] = decode_owner(lease.name, lease.value)
            except BadRecord:  # the lease is held, even if its value is unreadable
                owners[lane_of(lease.name)] = LaneOwner(producer=lease.owner)
    return owners


# --- the compacted set -----------------------------------------------------------------


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
