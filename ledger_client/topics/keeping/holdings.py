"""What a topic holds: its lanes, who writes them, and their ledgers, as metadata says it.

A row that says "closed" is never written again but by who removes it. Everything else may
be older than a moment when it is looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from metadata.errors import BadRecord
from metadata.store import Item, MetadataStore, pages
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


class Held(NamedTuple):
    """One ledger of a lane."""

    number: int
    row: LaneLedger
    version: int
    """of the row"""


class LaneHoldings(NamedTuple):
    """One lane. *record* None: its ledgers are there, the lane is not: it is being deleted."""

    partition: int
    lane: int
    record: LaneRecord | None
    owner: LaneOwner | None
    """who writes it now"""
    ledgers: tuple[Held, ...]
    """by rising number"""

    @property
    def closed(self) -> list[Held]:
        """The ledgers that are closed."""
        return [held for held in self.ledgers if held.row.state == "closed"]


Place = tuple[int, int]


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


async def items_under(store: MetadataStore, prefix: str) -> list[Item]:
    """Return all keys with *prefix*, in order, with their values. Raises MetadataError."""
    return [item async for page in pages(store, prefix) for item in page]


async def _lanes(store: MetadataStore, prefix: str) -> dict[Place, LaneRecord]:
    items = await items_under(store, prefix)
    return {lane_of(key): decode_lane(key, found.value) for key, found in items}


async def _ledgers(store: MetadataStore, prefix: str) -> dict[Place, list[Held]]:
    ledgers: dict[Place, list[Held]] = {}
    for key, found in await items_under(store, prefix):
        held = Held(last_number(key), decode_lane_ledger(key, found.value), found.version)
        ledgers.setdefault(lane_of(key.rpartition("/")[0]), []).append(held)
    return ledgers


async def read_owners(
    store: MetadataStore, topic: TopicRecord, partition: int | None = None
) -> dict[Place, LaneOwner]:
    """Return who writes which lane of a topic, or of one partition, now. Raises MetadataError."""
    prefix = _prefix(WRITERS, topic.uid, partition)
    owners: dict[Place, LaneOwner] = {}
    after = ""
    while leases := await store.leases(prefix, after=after):
        after = leases[-1].name
        for lease in leases:
            try:
                owners[lane_of(lease.name)] = decode_owner(lease.name, lease.value)
            except BadRecord:  # somebody holds it, whatever it says
                owners[lane_of(lease.name)] = LaneOwner(producer=lease.owner)
    return owners
