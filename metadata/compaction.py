"""Compacted topics: the latest message of each key, and the horizons where raw ledgers continue.

key                       value
------------------------  ------------------------------------------------------------
compacted/<uid>           CompactedSet: one generation, whole; uid has 20 digits

One transaction publishes a generation. It expects the version of the previous one, checks the lease
of the job that made it, and removes the rows of its staged ledgers. So readers see one
generation or the next, and a crash leaves one of them. A large set is stored in pages
(metadata/paged.py); many staged ledgers become part of it by a pointer (metadata/pointers.py),
which the same transaction turns.

The ledgers of a lane are listed in the lane's order. After a lane's horizon its raw ledgers
continue; a lane without a horizon is raw from its beginning. The ledgers of the previous
generation stay listed as retired for RETIRED_MS, for their readers, and are then removed. When
compaction of a topic ends, a set that is dropped takes the place of a large one: it has no
survivors, all ledgers of the topic's sets are retired, and it goes when they are gone.

The lists are bounded, so that a set fits memory.

Decoders raise BadRecord, naming the key, for a record that breaks a rule above. Unknown fields
are ignored.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import msgspec

from metadata.records import decode_row
from metadata.topics import Count

COMPACTED = "compacted/"
LEDGERS_MAX = 100_000
"""Ledgers of a generation."""
HORIZONS_MAX = 100_000
"""Lanes of a compacted topic."""
RETIRED_MAX = 200_000
"""Ledgers of former generations that are not removed yet."""
RETIRED_MS = 600_000
"""A reader of a former generation may continue for this long."""
ORDER_MIN = -(1 << 63)
"""The order of a lane before its first message."""

Partition = Annotated[int, msgspec.Meta(ge=-1, le=9999)]
Lane = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Order = Annotated[int, msgspec.Meta(ge=ORDER_MIN, le=(1 << 63) - 1)]


class MessageOrigin(msgspec.Struct, frozen=True, array_like=True):
    """Position of a message when it was written: the ledger's number in the lane, and the entry."""

    number: Count
    ledger_id: Count
    entry_id: Count
    version: Count

    @property
    def at(self) -> tuple[int, int]:
        """Sort key among the origins of one lane."""
        return self.number, self.entry_id


class Horizon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The raw entries of a lane up to here are in the set."""

    partition: Partition
    lane: Lane
    number: Count
    """number of the last raw ledger in the set"""
    ledger_id: Count
    version: Count
    """version of the first entry that is not in the set"""
    order_key: Order = ORDER_MIN
    """the greatest of the lane; messages after the horizon count as no older"""
    tombstone_order: Order | None = None
    """the greatest of the lane's tombstones in the set; `None` if it has none, or if an earlier
    version of quire wrote the set"""


class CompactedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger of survivors of one lane, from the entry *first* to *last* of the lane."""

    partition: Partition
    lane: Lane
    ledger_id: Count
    first: MessageOrigin
    last: MessageOrigin
    entries: Annotated[int, msgspec.Meta(ge=1)]
    messages: Annotated[int, msgspec.Meta(ge=1)]
    size: Count
    """payload bytes, of one copy"""

    def __post_init__(self) -> None:
        if self.last.at < self.first.at or self.last.version < self.first.version:
            raise ValueError(f"ledger {self.ledger_id} ends before it begins")


class Retired(msgspec.Struct, frozen=True, array_like=True):
    """A ledger of a former generation."""

    ledger_id: Count
    retired_ms: Count


class CompactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the job that made a generation."""

    at_ms: Count = 0
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    keys: Count = 0
    """keys that have a message now"""
    messages_in: Count = 0
    """messages read: survivors of the previous generation, and raw ones up to the new horizons"""
    messages_out: Count = 0
    """messages of the whole set"""
    bytes_in: Count = 0
    bytes_out: Count = 0
    ranges: Count = 0
    """lanes that were compacted again"""
    shuffled: bool = False
    """a key was found in more partitions than its own, so keys were compared across all"""
    tombstones: Count = 0
    """kept because a ledger that is not closed may hold an older message of the key"""
    engine: Literal["spark", "process"] = "process"


class CompactedSet(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One generation of a topic's survivors."""

    generation: Annotated[int, msgspec.Meta(ge=1)]
    null_keys: Literal["keep", "drop"] = "drop"
    partitions: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """partitions of the topic when the set was made"""
    horizons: Annotated[list[Horizon], msgspec.Meta(max_length=HORIZONS_MAX)] = []
    """by partition and lane"""
    ledgers: Annotated[list[CompactedLedger], msgspec.Meta(max_length=LEDGERS_MAX)] = []
    """by partition, lane and place"""
    retired: Annotated[list[Retired], msgspec.Meta(max_length=RETIRED_MAX)] = []
    report: CompactionReport = CompactionReport()
    dropped: bool = False
    """compaction of the topic has ended; the set counts as missing"""

    def __post_init__(self) -> None:
        places = [(each.partition, each.lane) for each in self.horizons]
        if any(after <= before for before, after in itertools.pairwise(places)):
            raise ValueError("horizons do not rise strictly by partition and lane")
        ends = dict(zip(places, self.horizons, strict=True))
        for ledger in self.ledgers:
            end = ends.get((ledger.partition, ledger.lane))
            if end is None or ledger.last.version >= end.version:
                raise ValueError(f"ledger {ledger.ledger_id} lies behind its lane's horizon")
        if any(not _follows(*pair) for pair in itertools.pairwise(self.ledgers)):
            raise ValueError("ledgers are not in the order of partition, lane and place")
        known = {each.ledger_id for each in self.ledgers} | {one.ledger_id for one in self.retired}
        if len(known) != len(self.ledgers) + len(self.retired):
            raise ValueError("a ledger is listed twice")

    def horizon(self, partition: int, lane: int) -> Horizon | None:
        """Return the horizon of a lane, or None if it is raw from its beginning."""
        return self._horizons.get((partition, lane))

    def lane_ledgers(self, partition: int, lane: int) -> list[CompactedLedger]:
        """Return the ledgers of a lane's survivors, in order."""
        return self._lanes.get((partition, lane), [])

    @cached_property
    def _horizons(self) -> dict[tuple[int, int], Horizon]:
        return {(each.partition, each.lane): each for each in self.horizons}

    @cached_property
    def _lanes(self) -> dict[tuple[int, int], list[CompactedLedger]]:
        lanes: dict[tuple[int, int], list[CompactedLedger]] = {}
        for one in self.ledgers:
            lanes.setdefault((one.partition, one.lane), []).append(one)
        return lanes


class SetAt(NamedTuple):
    """A set, and the version of its row."""

    set: CompactedSet
    version: int


def compacted_key(uid: int) -> str:
    """Return the key of the compacted set of the topic *uid*."""
    return f"{COMPACTED}{uid:020d}"


def encode_set(compacted: CompactedSet) -> bytes:
    """Return *compacted* as the JSON to store."""
    return msgspec.json.encode(compacted)


def decode_set(key: str, value: bytes) -> CompactedSet:
    """Return the set stored at *key*. Raises BadRecord."""
    return decode_row(key, value, CompactedSet)


def _follows(before: CompactedLedger, after: CompactedLedger) -> bool:
    places = [(each.partition, each.lane) for each in (before, after)]
    if places[0] != places[1]:
        return places[0] < places[1]
    return before.last.version <= after.first.version
