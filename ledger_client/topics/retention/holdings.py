"""The lanes of a topic with their writers and ledgers, and pins, as the metadata has them.

The row of a closed ledger never changes until it is removed or cut. Everything else may have
changed since it was read.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from metadata.errors import BadRecord
from metadata.store import MetadataStore, items_under
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
