"""What goes when messages are deleted out of a lane: from a place on, or between two. Pure.

    ledgers of a lane     ████████ ████████ ████████ ████████ ████
                               start ├──────────────────┤ stop
    row and record gone                     ████████
    said in the row            ████                     █

Ledgers that hold others too stay as they are stored; their rows say what of them is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ledger_client.topics.keeping.holdings import Held
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.reading.holes import Point, merged
from ledger_client.topics.reading.places import Place
from metadata.topics import Count, LaneOwner, RemovedLedgers

WHOLE_MAX = 400
"""Ledgers that go by one transaction, each with its record."""


class LaneTruncated(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or would go, of one lane."""

    partition: int
    lane: int
    ledgers: int = 0
    """those that held nothing else"""
    messages: Count = 0
    last_kept: MessageId | None = None
    """the ledger and entry in which what stays before it ends; None: nothing does"""
    owner: LaneOwner | None = None
    """who writes the lane"""


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """What a truncation did, or would do."""

    topic: str
    lanes: list[LaneTruncated]
    """those of which something goes"""

    @property
    def ledgers(self) -> int:
        """How many ledgers are gone."""
        return sum(lane.ledgers for lane in self.lanes)

    @property
    def messages(self) -> int:
        """How many messages are gone."""
        return sum(lane.messages for lane in self.lanes)


class Part(NamedTuple):
    """What goes of one ledger: from *start* to before *stop*."""

    held: Held
    start: Point
    stop: Point

    @property
    def is_whole(self) -> bool:
        """Whether all of the ledger goes."""
        return self.start == (0, 0) and self.stop == (self.held.row.entries, 0)

    def cut(self) -> Held:
        """Return the ledger without it; counts and times are yet to be learnt."""
        removed = merged(self.held.row.removed, self.start, self.stop)
        return self.held._replace(row=msgspec.structs.replace(self.held.row, removed=removed))


def parts_of(ledgers: Sequence[Held], start: Place, stop: Place | None) -> list[Part]:
    """Return what goes of each ledger; *stop* None: all from *start* on.

    *ledgers* are those of a lane in their order, with the entries there are. What was deleted
    before is passed over.
    """
    parts: list[Part] = []
    for held in ledgers:
        end = (held.row.entries, 0)
        first = _within(start, held.number, end)
        last = end if stop is None else _within(stop, held.number, end)
        part = Part(held, first, last)
        if first < last and (part.is_whole or part.cut() != held):
            parts.append(part)
    return parts


def _within(place: Place, number: int, end: Point) -> Point:
    """Return how much of a ledger lies before a place."""
    if place.number != number:
        return (0, 0) if place.number < number else end
    return min((place.entry, place.skip), end)


def with_removed(
    ranges: Sequence[RemovedLedgers], gone: Sequence[Held], stop_number: int, stop_version: int
) -> list[RemovedLedgers]:
    """Return the ranges when *gone*, which follow each other, are deleted too.

    *stop_number*, *stop_version*: where the lane goes on.
    """
    if not gone:
        return list(ranges)
    first, last = gone[0], gone[-1]
    added = RemovedLedgers(
        number=first.number,
        stop_number=stop_number,
        version=first.row.base_version,
        stop_version=stop_version,
        ledger_id=first.row.ledger_id,
        last_ledger_id=last.row.ledger_id,
    )
    found: list[RemovedLedgers] = []
    for each in sorted([*ranges, added], key=lambda each: each.number):
        before = found[-1] if found else None
        if before is None or each.number > before.stop_number:
            found.append(each)
            continue
        found[-1] = msgspec.structs.replace(
            before,
            stop_number=max(before.stop_number, each.stop_number),
            stop_version=max(before.stop_version, each.stop_version),
            last_ledger_id=max(before.last_ledger_id, each.last_ledger_id),
        )
    return found
