"""What compaction left of one lane, as readers look it up: ledgers of survivors, and a horizon.

A reader keeps the generation with which it began. That one is gone ten minutes after the next
was published: then the reader takes the next one, in which its place is an original place as
in any other.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger_client.errors import NoSuchLedger
from ledger_client.topics.errors import CompactedSetLost
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.translation import translated
from metadata.compaction import CompactedLedger, CompactedSet, compacted_key, decode_set
from metadata.store import MetadataStore


class CompactedPart(NamedTuple):
    """The beginning of a lane, of which only what compaction left is read."""

    generation: int
    ledgers: tuple[CompactedLedger, ...]
    horizon: Place
    """Where the raw ledgers go on."""
    last_ledger_id: int
    """of the raw ledgers before the horizon"""

    def holds(self, place: Place) -> bool:
        """Whether a place of the lane lies before the horizon."""
        return place.at < self.horizon.at


class CompactedParts:
    """Looks up what compaction left. Every call may raise MetadataUnavailable, MetadataBroken."""

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    async def set_of(self, uid: int) -> CompactedSet | None:
        """Return what compaction left of a topic, None if it never was compacted."""
        key = compacted_key(uid)
        with translated(self._timeout_s):
            found = await self._store.get(key)
            return None if found is None else decode_set(key, found.value)

    async def of(self, lane: LaneRef) -> CompactedPart | None:
        """Return what compaction left of a lane; None: all of it is raw."""
        found = await self.set_of(lane.uid)
        return None if found is None else part_of(found, lane)

    async def after(self, lane: LaneRef, part: CompactedPart, gone: NoSuchLedger) -> CompactedPart:
        """Return what replaced *part*, of which a ledger is gone.

        Raises:
            CompactedSetLost: nothing did.
        """
        found = await self.of(lane)
        if found is None:
            reason = "compaction of the topic was ended while it was read"
            raise CompactedSetLost(lane.topic, reason=reason) from gone
        if found.generation == part.generation:
            raise lost(lane, gone) from gone
        return found


def lost(lane: LaneRef, gone: NoSuchLedger) -> CompactedSetLost:
    """Return the error that says which ledger is gone."""
    return CompactedSetLost(
        lane.topic,
        reason=f"ledger {gone.ledger_id} of {lane} is not there; "
        "end what there is and compact anew (quire compact --drop)",
        ledger_id=-1 if gone.ledger_id is None else gone.ledger_id,
    )


def part_of(found: CompactedSet, lane: LaneRef) -> CompactedPart | None:
    """Return what a set has of a lane; None: all of the lane is raw."""
    horizon = found.horizon(lane.partition, lane.lane)
    if horizon is None:
        return None
    return CompactedPart(
        found.generation,
        tuple(found.lane_ledgers(lane.partition, lane.lane)),
        Place(horizon.number + 1, version=horizon.version),
        horizon.ledger_id,
    )
