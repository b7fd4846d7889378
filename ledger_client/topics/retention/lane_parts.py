"""The part of a lane that a deletion removes: from a place on, or between two places.

    ledgers of a lane     ████████ ████████ ████████ ████████ ████
                               start ├──────────────────┤ stop
    row and record deleted                  ████████
    noted in the row           ████                     █

A ledger that keeps some messages stays as it is stored; its row lists the entries that are
deleted. One transaction changes all rows of a part (part_ops). LedgerScan reads a ledger to
count what is left of it and to learn the lane's state in front of the part: whole batches by their
headers, a batch that is cut in two message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ledger_client.errors import MessagesLost, TopicError
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.lane_state import Figures, LaneState, SealedBatch, greater, lower
from ledger_client.topics.lanes.ledger_rows import Point, Row, kept_messages, merged
from ledger_client.topics.messages import MessageBatch, open_batch
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.retention.holdings import HeldLedger
from metadata.records import ledger_key
from metadata.store import ABSENT, Check, CheckLease, Delete, Op, Put
from metadata.topics import (
    REMOVALS_MAX,
    Count,
    LaneLedger,
    LaneOwner,
    LaneRemovals,
    RemovedLedgers,
    decode_lane_removals,
    encode_row,
    lane_ledger_key,
    lane_removals_key,
)
from native.batch import BatchHeader, BatchKind, read_header
from native.errors import Corrupt


class LaneTruncated(msgspec.Struct, frozen=True, kw_only=True):
    """The messages deleted, or to be deleted, of one lane."""

    partition: int
    lane: int
    ledgers: int = 0
    """ledgers that are deleted whole"""
    messages: Count = 0
    last_kept: MessageId | None = None
    """the last ledger and entry before the part; `None` if nothing stays before it"""
    owner: LaneOwner | None = None
    """the present writer"""


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a truncation, or of its dry run."""

    topic: str
    lanes: list[LaneTruncated]
    """lanes with deleted messages"""

    @property
    def ledgers(self) -> int:
        """The number of ledgers that are deleted whole, in all lanes."""
        return sum(lane.ledgers for lane in self.lanes)

    @property
    def messages(self) -> int:
        """The number of deleted messages, in all lanes."""
        return sum(lane.messages for lane in self.lanes)


class LedgerPart(NamedTuple):
    """The messages deleted from one ledger: from *start* to before *stop*."""

    held: HeldLedger
    start: Point
    stop: Point

    @property
    def is_whole(self) -> bool:
        """True if the whole ledger is deleted, its row included."""
        return self.start == (0, 0) and self.stop == (self.held.row.entries, 0)

    def left(self) -> HeldLedger:
        """Return the ledger without these messages; its counts and times are not updated."""
        removed = merged(self.held.row.removed, self.start, self.stop)
        return self.held._replace(row=msgspec.structs.replace(self.held.row, removed=removed))


def ledger_parts(
    ledgers: Sequence[HeldLedger], start: Place, stop: Place | None
) -> list[LedgerPart]:
    """Return the part of each ledger; without *stop* everything from *start* on.

    *ledgers* are those of a lane in order, with their present entries. Messages deleted before
    are skipped.
    """
    parts: list[LedgerPart] = []
    for held in ledgers:
        end = (held.row.entries, 0)
        first = _within(start, held.number, end)
        last = end if stop is None else _within(stop, held.number, end)
        part = LedgerPart(held, first, last)
        if first < last and (part.is_whole or part.left() != held):
            parts.append(part)
    return parts


def _within(place: Place, number: int, end: Point) -> Point:
    """Return the point in a ledger at which a place lies."""
    if place.number != number:
        return (0, 0) if place.number < number else end
    return min((place.entry, place.skip), end)


def with_removed(
    ranges: Sequence[RemovedLedgers],
    gone: Sequence[HeldLedger],
    stop_number: int,
    stop_version: int,
) -> list[RemovedLedgers]:
    """Return the removed ranges with consecutive ledgers *gone* added.

    The lane continues at *stop_number* and *stop_version*.
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


class LostRace(TopicError):
    """Other processes kept changing the same rows; nothing was deleted."""


class LanePart(msgspec.Struct):
    """The part of a lane that is deleted: the part of each ledger, and the rest of its ledgers."""

    parts: list[LedgerPart]
    whole: list[HeldLedger]
    changed: list[HeldLedger]
    """the rows to be of ledgers that keep messages, with their present versions"""
    messages: int
    state: LaneState | None = None
    """the lane's state before the first part"""
    checks: Sequence[Check] = ()
    """that what was known to keep messages has not changed"""
    leases: Sequence[CheckLease] = ()
    """that the truncation is still announced to compactions"""


async def part_ops(
    catalogue: Catalogue, lane: LaneRef, taken: LanePart, stop_number: int, stop_version: int
) -> list[Op]:
    """Return the ops of *taken*; the lane continues at *stop_number* and *stop_version*.

    Raises:
        LostRace: a row has changed since the part was planned, or is still to be settled.
        MetadataUnavailable, MetadataBroken: as Catalogue.read().
    """
    ops: list[Op] = [*taken.leases, *taken.checks]
    for check in taken.checks:
        found = await catalogue.read(check.key)
        if (ABSENT if found is None else found.version) != check.expected:
            raise LostRace(f"{lane}: a cut was created or deleted", topic=lane.topic)
    for held in taken.whole:
        ops += await _removal(catalogue, lane, held)
    for held in taken.changed:
        key = lane_ledger_key(lane.uid, lane.partition, lane.lane, held.number)
        row = await catalogue.read(key)
        if row is None or row.version != held.version or held.row.pointer:
            raise _lost_race(lane, held)
        ops.append(Put(key, encode_row(held.row), held.version))
    return ops + await _removals(catalogue, lane, taken, stop_number, stop_version)


async def _removals(
    catalogue: Catalogue, lane: LaneRef, taken: LanePart, stop_number: int, stop_version: int
) -> list[Op]:
    """Return the op that records the ledgers as deleted on purpose."""
    key = lane_removals_key(lane.uid, lane.partition, lane.lane)
    found = await catalogue.read(key)
    known = [] if found is None else decode_lane_removals(key, found.value).ranges
    ranges = with_removed(known, taken.whole, stop_number, stop_version)
    if len(ranges) > REMOVALS_MAX:
        raise TopicError(
            f"more than {REMOVALS_MAX} ranges of ledgers are deleted out of {lane}",
            topic=lane.topic,
        )
    if ranges == known:
        return []
    return [Put(key, encode_row(LaneRemovals(ranges)), ABSENT if found is None else found.version)]


async def _removal(catalogue: Catalogue, lane: LaneRef, held: HeldLedger) -> list[Op]:
    """Return the ops that remove a ledger and its row; none if retention removed it first."""
    key = lane_ledger_key(lane.uid, lane.partition, lane.lane, held.number)
    found = await catalogue.read(key)
    if found is None:
        return []
    if found.version != held.version or held.row.pointer:
        raise _lost_race(lane, held)
    record_key = ledger_key(held.row.ledger_id)
    record = await catalogue.read(record_key)
    gone = Check(record_key, ABSENT) if record is None else Delete(record_key, record.version)
    return [Delete(key, found.version), gone]


def _lost_race(lane: LaneRef, held: HeldLedger) -> LostRace:
    return LostRace(f"{lane}: ledger {held.row.ledger_id} is changed", topic=lane.topic)


class LedgerScan:
    """Reads one ledger up to the last entry in its row.

    Attributes:
        figures: of the messages that its row does not list as deleted.
        state: the lane's state before the point *until*; `None` if the ledger has no state.
    """

    def __init__(self, lane: LaneRef, row: Row, *, until: Point = (0, 0)) -> None:
        self.figures = Figures(named_ms=row.ledger.named_ms)
        self.state: LaneState | None = None
        self._lane = lane
        self._row = row
        self._until = until

    async def run(self, opener: LedgerOpener) -> LedgerScan:
        """Read the ledger; return this.

        Raises:
            NoSuchLedger: it is gone.
            MessagesLost: an entry is damaged.
            LedgerError: as LedgerReader.read().
        """
        reader = await opener.open(self._row.ledger.ledger_id)
        try:
            async for entries in reader.read_batches(0, self._row.ledger.entries - 1):
                for index in range(len(entries)):
                    entry = entries.first_entry + index
                    try:
                        self._look_at(entry, entries.payload(index))
                    except Corrupt as wrong:
                        raise self._bad(entry, wrong) from wrong
        finally:
            reader.unwatch()
        return self

    def _look_at(self, entry: int, payload: memoryview) -> None:
        header = read_header(payload)
        if header.kind == BatchKind.LANE_STATE and (entry == 0 or entry < self._until[0]):
            self.state = LaneState.decode(bytes(payload))
        if header.kind != BatchKind.MESSAGES:
            return
        if self._row.ledger.stamp:
            header = header.stamped(self._row.ledger.stamp)
        batch = _LazyBatch(self._lane, self._row, entry, payload)
        for start, stop in kept_messages(self._row.ledger.removed, entry, 0, header.count):
            count_in(self.figures, header, batch, start, stop)
        before = header.count if entry < self._until[0] else self._until[1]
        if self.state is not None and entry <= self._until[0] and before > 0:
            self._note(self.state, header, batch, min(before, header.count))

    def _bad(self, entry: int, wrong: Corrupt) -> MessagesLost:
        ledger_id = self._row.ledger.ledger_id
        return MessagesLost.batch(
            self._lane.topic, ledger_id=ledger_id, entry_id=entry, reason=str(wrong)
        )

    def _note(self, state: LaneState, header: BatchHeader, batch: _LazyBatch, count: int) -> None:
        """Advance the state by the first *count* messages of a batch."""
        figures = Figures()
        count_in(figures, header, batch, 0, count)
        counted = header.sequence >= 0
        sealed = SealedBatch(
            payload=b"",
            count=count,
            size=0,
            first_event_time=figures.first_event_time,
            last_event_time=figures.last_event_time,
            producer=header.producer,
            sequence=header.sequence + count - 1 if counted else -1,
        )
        state.note(sealed, header.created_ms)


class _LazyBatch:
    """A batch that is decoded when it is first needed."""

    def __init__(self, lane: LaneRef, row: Row, entry: int, payload: memoryview) -> None:
        self._given = (lane, row.place(entry), payload, row.ledger.stamp)
        self._batch: MessageBatch | None = None

    def open(self) -> MessageBatch:
        if self._batch is None:
            self._batch = open_batch(*self._given)
        assert self._batch is not None
        return self._batch


def count_in(
    figures: Figures, header: BatchHeader, lazy: _LazyBatch, start: int, stop: int
) -> None:
    """Count the messages from *start* to before *stop* of a batch."""
    figures.messages += stop - start
    lowest, highest = header.event_time_min, header.event_time_max
    if stop - start < header.count and lowest is not None:
        times = [time for time in lazy.open().event_times[start:stop] if time is not None]
        lowest, highest = min(times, default=None), max(times, default=None)
    figures.first_event_time = lower(figures.first_event_time, lowest)
    figures.last_event_time = greater(figures.last_event_time, highest)
    if header.last_timestamp:
        stamps = [stamp for stamp in lazy.open().timestamps[start:stop] if stamp]
        first = min(stamps, default=0)
        figures.first_timestamp = figures.first_timestamp or first
        figures.last_timestamp = max(figures.last_timestamp, *stamps, 0)


def counted(row: LaneLedger, figures: Figures) -> LaneLedger:
    """Return a row with the counts and times of the messages left."""
    return msgspec.structs.replace(
        row,
        messages=figures.messages,
        first_timestamp=figures.first_timestamp,
        last_timestamp=figures.last_timestamp,
        first_event_time=figures.first_event_time,
        last_event_time=figures.last_event_time,
    )
