"""A group's progress as a document to keep, and to put back into the same cluster.

Places name ledgers by id, and a lane's ledgers by number, so they mean nothing elsewhere: what is
of another cluster, or of a topic that was deleted and created again, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from ledger_client.errors import BadGroup, BadTopic
from ledger_client.topics.positions import EARLIEST, Place
from ledger_client.topics.reading.lane_ranges import KnownLane
from ledger_client.topics.reading.place_finder import PlaceFinder, next_number
from metadata.groups.assignment import Part
from metadata.groups.rows import LANES_MAX, Partition
from metadata.topics import Count

EXPORT_SIZE_MAX = 256 << 20
_Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]


class ExportedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The place in a lane at which a group goes on; see Place."""

    lane: Count
    number: _Number
    ledger_id: _Number
    entry: Count
    skip: Count
    version: _Number

    @property
    def place(self) -> Place:
        """The place."""
        return Place(self.number, self.entry, self.skip, self.ledger_id, self.version)


class ExportedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group goes on in a partition. A lane that is not here begins at its first message."""

    topic: str
    uid: Count
    partition: Partition
    lanes: Annotated[list[ExportedLane], msgspec.Meta(max_length=LANES_MAX)]

    def __post_init__(self) -> None:
        """Raise ValueError for a lane that is there twice."""
        if len(self.places) < len(self.lanes):
            raise ValueError(f"partition {self.partition} of {self.topic} has a lane twice")

    @classmethod
    def of(cls, topic: str, part: Part, places: Mapping[int, Place]) -> ExportedPartition:
        """Return a partition of the topic of this name."""
        lanes = [ExportedLane(lane=lane, **p._asdict()) for lane, p in sorted(places.items())]
        return cls(topic=topic, uid=part.topic, partition=part.partition, lanes=lanes)

    @property
    def part(self) -> Part:
        """The partition."""
        return Part(self.uid, self.partition)

    @property
    def places(self) -> dict[int, Place]:
        """The place in each lane."""
        return {each.lane: each.place for each in self.lanes}


class GroupExport(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress, from Groups.export()."""

    format: Literal[1] = 1
    cluster: str
    """id of the cluster"""
    group: str
    partitions: list[ExportedPartition]

    def __post_init__(self) -> None:
        """Raise ValueError for a partition that is there twice."""
        if len({each.part for each in self.partitions}) < len(self.partitions):
            raise ValueError("a partition is there twice")

    def to_json(self) -> bytes:
        """Return it as JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> GroupExport:
        """Return what to_json() wrote. Raises BadGroup for anything else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise BadGroup(f"this is no export of a group: {wrong}") from wrong


async def check_places(
    lanes: Iterable[KnownLane], parts: Iterable[ExportedPartition], finder: PlaceFinder
) -> None:
    """Raise BadTopic unless each place of *parts* may lie in one of *lanes*, of the same topic.

    A place whose messages were removed meanwhile is right: readers notice the gap.
    """
    known = {(each.lane.partition, each.lane.lane): each for each in lanes}
    for part in parts:
        for lane, place in part.places.items():
            if place.at == EARLIEST.at:
                continue  # also of a lane that is not there yet
            found = known.get((part.partition, lane))
            if found is None or not await _is_in(found, place):
                where = f"ledger {place.ledger_id}, entry {place.entry}, message {place.skip}"
                reason = f"partition {part.partition}, lane {lane}: there is no place at {where}"
                raise BadTopic(reason, topic=part.topic)
            if place.skip:
                await finder.check(found, place)


async def _is_in(known: KnownLane, place: Place) -> bool:
    """Return True if the place may be in the lane: its messages may have been removed."""
    row = await known.rows.at(place.number) if place.number >= 0 else None
    if row is None or not row.readable:  # before the first message, removed, or not written yet
        return place.at <= (await next_number(known), 0, 0)
    right = row.place(place.entry)
    is_same = place.ledger_id in {-1, right.ledger_id} and place.version in {-1, right.version}
    return is_same and (row.ledger.state != "closed" or place.entry <= row.ledger.entries)
