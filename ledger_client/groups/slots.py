"""Which messages of a partition belong to which part of a group: all of them, or a slot's.

A group assigns partitions, and a key-shared one the slots of partitions: a slot has the keys of
one residue of their CRC. Messages without a key are spread by their entries.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

from ledger_client.topics.messages import Message, MessageRange
from ledger_client.topics.positions import EARLIEST, Place, Places
from metadata.groups.assignment import Part
from metadata.groups.rows import SLOTS, Mode
from metadata.groups.shares import slot_part
from metadata.topics import TopicRecord

_MIX = 2_654_435_761
"""Knuth's multiplier: the partitioner takes other bits of the same CRC."""


class Units:
    """What is assigned of a topic, and what of it is read."""

    def __init__(self, mode: Mode) -> None:
        self._by_slot = mode == "key-shared"

    def partition(self, topic: TopicRecord, part: Part) -> int:
        """Return the partition that is read for *part*."""
        if not self._by_slot:
            return part.partition
        return part.partition // SLOTS if topic.partitions else -1

    def slot(self, part: Part) -> int:
        """Return the slot of *part*, 0 for a whole partition."""
        return part.partition % SLOTS if self._by_slot else 0

    def slot_of(self, message: Message) -> int:
        """Return the slot of a message, 0 in a group without slots."""
        if not self._by_slot:
            return 0
        if message.key is None:
            return message.version % SLOTS
        return (zlib.crc32(message.key) * _MIX >> 16) % SLOTS

    def wanted(self, here: MessageRange, heads: Mapping[int, Places]) -> list[int]:
        """Return the messages of a batch that belong to slots, from their heads on.

        *heads*: where each slot goes on, by slot.
        """
        lane = here.batch.lane.lane
        places = {slot: lanes.get(lane, EARLIEST) for slot, lanes in heads.items()}
        if not self._by_slot:
            return list(range(max(here.start, _skipped(here, places[0])), here.stop))
        skipped = {slot: _skipped(here, place) for slot, place in places.items()}
        numbered = enumerate(here.messages, here.start)
        beyond = here.stop
        return [at for at, each in numbered if at >= skipped.get(self.slot_of(each), beyond)]


def _skipped(here: MessageRange, head: Place) -> int:
    return here.batch.count_before(head)


def lowest(heads: Iterable[Places]) -> dict[int, Place]:
    """Return the lowest place in each lane; a lane that one of them does not name is left out."""
    every = list(heads)
    lanes = set.intersection(*(set(each) for each in every)) if every else set()
    return {lane: min((each[lane] for each in every), key=lambda place: place.at) for lane in lanes}


def are_even(heads: Iterable[Places], lane: int) -> bool:
    """Return True if no slot is ahead of another one in this lane."""
    return len({places.get(lane, EARLIEST).at for places in heads}) <= 1


def placed_in(mode: Mode, places: Mapping[Part, Places]) -> dict[Part, Places]:
    """Return places of partitions as the group stores them: for each slot, if it has slots."""
    if mode != "key-shared":
        return {**places}
    return {
        slot_part(part.topic, part.partition, slot): lanes
        for part, lanes in places.items()
        for slot in range(SLOTS)
    }
