"""What the metadata has of a topic: lanes with writers and ledgers, pins, the compacted set.

The row of a closed ledger never changes until it is removed or cut. Everything else may have
changed since it was read. A row that names a pointer (metadata/pointers.py) is not removed or cut
until it is settled.

The ledgers of a compacted set belong to no lane. They are removed once their generation has been
retired for RETIRED_MS, with the set when compaction of the topic ends, or with the topic.
jobs/compaction writes the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from metadata.compaction import (
    RETIRED_MS,
    CompactedSet,
    Retired,
    SetAt,
    compacted_key,
    decode_set,
    encode_set,
)
from metadata.errors import BadRecord, VersionConflict
from metadata.paged import drop_other_pages, read_value, remove_pages, stage_value
from metadata.pointers import LaneRow, all_lane_rows, read_lane_records
from metadata.records import ledger_key
from metadata.store import Check, CheckLease, Delete, MetadataStore, Op, Put, leases_under
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    WRITERS,
    LaneLedger,
    LaneOwner,
    LaneRecord,
    TopicRecord,
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
    """A hold on a lane's ledgers, all from *number* on or those up to *stop*.

    No limit and no purge removes them.
    """

    partition: int
    lane: int
    number: int
    entry: int = 0
    """of ledger *number*, the entries before it are not needed"""
    holder: str
    """names the job, group or person in messages"""
    is_group: bool = False
    """it moves on without notice"""
    stop: tuple[int, int, int] | None = None
    """number, entry and messages of it: nothing from there on is needed; `None` for no end"""

    def needs(self, held: HeldLedger) -> bool:
        """Return True if a ledger of the lane must stay."""
        if self.stop is not None and (held.number, 0, 0) >= self.stop:
            return False
        if held.number == self.number:
            return self.entry == 0 or self.entry < held.row.entries
        return held.number > self.number


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
    return {lane_of(at.key): at.record for at in await read_lane_records(store, prefix)}


async def _ledgers(store: MetadataStore, prefix: str) -> dict[tuple[int, int], list[HeldLedger]]:
    ledgers: dict[tuple[int, int], list[HeldLedger]] = {}
    for row in await all_lane_rows(store, prefix):
        if row.is_hidden:
            continue
        ledgers.setdefault(lane_of(row.key.rpartition("/")[0]), []).append(held_ledger(row))
    return ledgers


def held_ledger(row: LaneRow) -> HeldLedger:
    """Return the ledger of a row that is not hidden."""
    return HeldLedger(last_number(row.key), row.ledger, row.version)


async def read_owners(
    store: MetadataStore, topic: TopicRecord, partition: int | None = None
) -> dict[tuple[int, int], LaneOwner]:
    """Return the present writers of lanes, by (partition, lane). Raises MetadataError."""
    prefix = _prefix(WRITERS, topic.uid, partition)
    owners: dict[tuple[int, int], LaneOwner] = {}
    for lease in await leases_under(store, prefix):
        try:
            owners[lane_of(lease.name)] = decode_owner(lease.name, lease.value)
        except BadRecord:  # the lease is held, even if its value is unreadable
            owners[lane_of(lease.name)] = LaneOwner(producer=lease.owner)
    return owners


# --- the compacted set -----------------------------------------------------------------


REMOVED_COUNT = 200
"""Ledgers that one transaction removes."""


async def read_set(store: MetadataStore, uid: int) -> SetAt | None:
    """Return the compacted set of the topic *uid*, or `None` if it has none.

    Raises:
        MetadataError: from the store; BadRecord for a damaged row.
    """
    found = await _read_set(store, uid)
    return None if found is None or found.set.dropped else found


async def _read_set(store: MetadataStore, uid: int) -> SetAt | None:
    key = compacted_key(uid)
    found = await read_value(store, key)
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
    while (found := await _read_set(store, uid)) is not None:
        due = [each for each in found.set.retired if now_ms - each.retired_ms >= RETIRED_MS]
        if due or found.set.dropped:
            count += await _remove(store, uid, found, {each.ledger_id for each in due}, checks)
            continue
        break
    return count


async def retired_due_ms(store: MetadataStore, uid: int) -> int | None:
    """Return the store's time at which remove_retired() has something to do; `None`: not known.

    Raises as read_set().
    """
    found = await _read_set(store, uid)
    if found is None:
        return None
    if found.set.dropped:
        return 0
    return min((each.retired_ms + RETIRED_MS for each in found.set.retired), default=None)


async def remove_set(
    store: MetadataStore, uid: int, *, checks: Sequence[CheckLease] = ()
) -> CompactedSet | None:
    """Remove the set of a topic with its ledgers; return it, or `None` if unreadable or missing.

    Its readers see all of it, or nothing: if it is too large for one transaction, all of its
    ledgers are retired at once, and then removed.

    Raises as remove_retired().
    """
    removed: CompactedSet | None = None
    key = compacted_key(uid)
    while True:
        try:
            found = await _read_set(store, uid)
        except BadRecord:  # its ledgers are unknown
            await store.transact([*checks, Delete(key)])
            found = None
        if found is None:
            await remove_pages(store, f"{key}/", checks=checks)
            return removed
        if not found.set.dropped:
            removed = found.set
        ledgers = [each.ledger_id for each in found.set.ledgers]
        retired = {each.ledger_id for each in found.set.retired}
        if len(ledgers) > REMOVED_COUNT:
            await _drop(store, key, found, checks)
        elif retired:
            await _remove(store, uid, found, retired, checks)
        else:
            gone = [Delete(ledger_key(each)) for each in ledgers]
            with suppress(VersionConflict):
                await store.transact([*checks, Delete(key, found.version), *gone])


async def _drop(store: MetadataStore, key: str, found: SetAt, checks: Sequence[CheckLease]) -> None:
    """Replace a set by one that is dropped and has all ledgers retired, long ago."""
    listed = [*(one.ledger_id for one in found.set.ledgers)]
    listed += [one.ledger_id for one in found.set.retired]
    dropped = CompactedSet(
        generation=found.set.generation,
        retired=[Retired(each, 0) for each in listed],
        dropped=True,
    )
    await _replace(store, key, found, dropped, checks, [])


async def _remove(
    store: MetadataStore,
    uid: int,
    found: SetAt,
    ledger_ids: set[int],
    checks: Sequence[CheckLease],
) -> int:
    """Remove retired ledgers from store and list; return 0 if the set changed meanwhile.

    A set that is dropped goes with the last of them.
    """
    key, rising = compacted_key(uid), sorted(ledger_ids)
    ops = [Delete(ledger_key(each)) for each in rising]
    retired = [each for each in found.set.retired if each.ledger_id not in ledger_ids]
    unchanged = Check(key, found.version)
    try:
        while len(ops) > REMOVED_COUNT:
            await store.transact([*checks, unchanged, *ops[:REMOVED_COUNT]])
            ops = ops[REMOVED_COUNT:]
        if found.set.dropped and not retired:
            await store.transact([*checks, Delete(key, found.version), *ops])
            await remove_pages(store, f"{key}/", checks=checks)
            return len(rising)
    except VersionConflict:
        return 0
    after = msgspec.structs.replace(found.set, retired=retired)
    return len(rising) if await _replace(store, key, found, after, checks, ops) else 0


async def _replace(
    store: MetadataStore,
    key: str,
    found: SetAt,
    after: CompactedSet,
    checks: Sequence[CheckLease],
    ops: Sequence[Op],
) -> bool:
    """Replace a set in a transaction with *ops*; return False if it changed meanwhile."""
    value = await stage_value(store, key, encode_set(after))
    row = Put(key, value.row, found.version)
    try:
        await store.transact([*checks, row, *value.checks, *ops])
    except VersionConflict:
        return False
    await drop_other_pages(store, key, checks=checks)
    return True
