"""Entries that a compaction reads, raw or compacted, and those that it writes.

    entry ──► EntryMessages: columns, ordinals, orders, and the entry each message came from
    rows of EntryMessages ──► Gather ──► entry of ENTRY_SIZE ──► StagedLane: staged ledgers

A message's ordinal is its number among the messages read of its lane, so it is the same whenever
the same ranges are read. Its order decides, between lanes, which of two messages of a key is
later: the timestamp in a topic with timesync, the event time in another topic ordered by it,
otherwise the greatest publish time in the lane up to the message.

A written entry holds survivors of many original entries. A ledger ends with the entry that fills
it.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Protocol

from ledger_client.errors import LedgerError, MessagesLost
from ledger_client.jobs.staging.job import JobStage, open_staged
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.writer import WriteDriver
from ledger_client.topics.messages import MessageRange
from ledger_client.topics.reading.range_reader import RangeEntries, message_ranges
from metadata.compaction import CompactedLedger, MessageOrigin as Place
from native.batch import Compression, decode, encode
from native.columns import Columns
from native.compacted import (
    Compacted,
    Origin,
    Origins,
    decode as decode_compacted,
    encode as encode_compacted,
)
from native.errors import Corrupt
from native.gather import Gather

ENTRY_SIZE = 1 << 20
ENTRY_COUNT = 32_768
"""Messages of an entry; origins of 68 bytes for each still fit into it."""
NAMES_SIZE = 256 << 10
"""An entry ends after this many bytes of producer names."""
APPEND_COUNT = 4
"""Entries appended together."""


class EntryMessages(Protocol):
    """Consecutive messages of a lane, all of one entry."""

    columns: Columns
    entry: int
    """id of the entry they were read from"""
    base: int
    """ordinal of the first message"""
    orders: memoryview | int
    """one for each message, or one for all"""

    @abstractmethod
    def origins(self, rows: array[int]) -> list[Origin]:
        """Return the original entries of these messages, in order."""

    @abstractmethod
    def indexes(self, rows: array[int]) -> list[int]:
        """Return each message's index in its original batch, -1 for an unbatched message."""


def order_of(messages: EntryMessages, row: int) -> int:
    """Return the order of a message."""
    orders = messages.orders
    return orders if isinstance(orders, int) else orders[row]


def greatest_order(messages: EntryMessages) -> int:
    """Return the order of the last message, the greatest of the entry."""
    return order_of(messages, -1)


def may_lack_keys(columns: Columns) -> bool:
    """Whether a message might have no key."""
    return columns.keys is None or columns.keys.validity is not None


class RawMessages:
    """Messages as their producer wrote them."""

    def __init__(self, raw: MessageRange, base: int, order: int, *, timed: bool) -> None:
        batch, header = raw.batch, raw.batch.header
        self.entry = batch.place.entry
        self.base = base
        self.columns = batch.decoded.columns
        if raw.stop - raw.start != header.count:  # some of its messages were deleted
            part = encode(batch.decoded.columns, raw.start, raw.stop)
            self.columns = decode(part).columns
        self._raw = raw
        self.orders: memoryview | int = max(order, header.created_ms)
        if timed:
            stamps = self.columns.timestamps
            if stamps is None:
                raise batch.bad("a message without a timestamp in a topic with timesync")
            self.orders = _signed(stamps)
        elif batch.lane.ordered:
            times = _event_times(self.columns)
            if times is None:
                raise batch.bad("a message without an event time in a topic ordered by it")
            self.orders = times

    def origins(self, rows: array[int]) -> list[Origin]:
        """Return one origin, since all of these messages are of one raw entry."""
        batch, header = self._raw.batch, self._raw.batch.header
        place = batch.place
        return [
            Origin(
                number=place.number,
                ledger_id=place.ledger_id,
                entry_id=place.entry,
                version=place.version,
                created_ms=header.created_ms,
                sequence=header.sequence,
                order=greatest_order(self),
                producer=header.producer,
                kept=len(rows),
            )
        ]

    def indexes(self, rows: array[int]) -> list[int]:
        """Return indexes in the batch as its producer sent it; -1 for an unbatched message."""
        if not self._raw.batch.header.batched:
            return [-1]
        start = self._raw.start
        return [start + row for row in rows] if start else rows.tolist()


class CompactedMessages:
    """Messages of an entry that a compaction wrote."""

    def __init__(
        self, found: Compacted, entry: int, base: int, *, ordered: bool, timed: bool
    ) -> None:
        self.entry = entry
        self.base = base
        self.columns = found.decoded.columns
        self._found = found
        origins = found.origins
        times = _event_times(self.columns) if ordered else None
        if timed and self.columns.timestamps is not None:
            times = _signed(self.columns.timestamps)
        self.orders: memoryview | int = origins.spread(origins.orders) if times is None else times

    def origins(self, rows: array[int]) -> list[Origin]:
        """Return an origin for each run of rows from the same raw entry."""
        origins = self._found.origins
        groups = groupby(map(origins.index.__getitem__, rows))
        return [origins[at]._replace(kept=sum(1 for _ in group)) for at, group in groups]

    def indexes(self, rows: array[int]) -> list[int]:
        """Return the indexes that the compacted entry has stored."""
        return list(map(self._found.batch_indexes.__getitem__, rows))


def raw_messages(brought: RangeEntries, base: int, order: int) -> Iterator[EntryMessages]:
    """Yield the messages of raw entries; *order* is the lane's greatest order before them.

    Raises:
        MessagesLost: an entry is damaged, or not a batch of messages.
    """
    for raw in message_ranges(brought):
        messages = RawMessages(raw, base, order, timed=brought.range.timed)
        yield messages
        base, order = base + messages.columns.count, greatest_order(messages)


def compacted_messages(brought: RangeEntries, base: int) -> Iterator[EntryMessages]:
    """Yield the messages of entries that a compaction wrote.

    Raises:
        MessagesLost: an entry is damaged.
    """
    ledger_range, entries = brought
    for index in range(len(entries)):
        entry = entries.first_entry + index
        try:
            found = decode_compacted(entries.payload(index))
        except Corrupt as wrong:
            raise MessagesLost.batch(
                ledger_range.topic,
                ledger_id=ledger_range.ledger_id,
                entry_id=entry,
                reason=str(wrong),
            ) from wrong
        ordered, timed = ledger_range.ordered, ledger_range.timed
        yield CompactedMessages(found, entry, base, ordered=ordered, timed=timed)
        base += found.header.count


def _signed(timestamps: memoryview) -> memoryview:
    """Return timestamps as orders, which have a sign: those until the year 3084 have none."""
    return timestamps.cast("B").cast("q")


def _event_times(columns: Columns) -> memoryview | None:
    return columns.event_times if columns.event_time_validity is None else None


class StagedLane:
    """Writes the survivors of a lane, in order. Made by stage_lane().

    Attributes:
        ledgers: the sealed ledgers.
    """

    def __init__(
        self, ledgers: Ledgers, stage: JobStage, *, partition: int, lane: int, size: int
    ) -> None:
        self.ledgers: list[CompactedLedger] = []
        self._ledgers = ledgers
        self._stage = stage
        self._place = partition, lane
        self._size_max = size
        self._compression: Compression = stage.topic.compression
        self._gather = Gather()
        self._origins: list[Origin] = []
        self._indexes = array("i")
        self._names: set[str] = set()
        self._names_size = 0
        self._ready: list[bytes] = []
        self._writer: WriteDriver | None = None
        self._figures = _Figures()

    async def add(self, messages: EntryMessages, rows: array[int]) -> None:
        """Write the messages at *rows*, which must be in rising order.

        Raises:
            JobLost: the job's lease is over.
            LedgerError: as open_staged() and WriteDriver.append_many().
        """
        start = 0
        while start < len(rows):
            some = rows[: start + ENTRY_COUNT - len(self._indexes)]
            end = self._gather.add(messages.columns, some, start, size_max=ENTRY_SIZE)
            if end > start:
                taken = rows[start:end]
                self._note(messages.origins(taken))
                self._indexes.extend(messages.indexes(taken))
            if end < len(rows) or self._is_full():
                await self._flush()
            start = end

    async def finish(self) -> None:
        """Write what is left and seal the last ledger. Raises as add()."""
        await self._flush()
        await self._append()
        await self._seal()

    async def abandon(self) -> None:
        """Stop writing; the job discards what is staged."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(LedgerError):  # the job discards it in any case
                await writer.abort()

    def _is_full(self) -> bool:
        return len(self._indexes) >= ENTRY_COUNT or self._names_size >= NAMES_SIZE

    def _note(self, origins: list[Origin]) -> None:
        for name in {origin.producer for origin in origins} - self._names:
            self._names.add(name)
            self._names_size += len(name.encode())
        last = self._origins[-1] if self._origins else None
        first = origins[0]
        if last is not None and (last.number, last.entry_id) == (first.number, first.entry_id):
            self._origins[-1] = last._replace(kept=last.kept + first.kept)
            origins = origins[1:]
        self._origins += origins

    async def _flush(self) -> None:
        """Encode the gathered messages as an entry."""
        if not self._indexes:
            return
        payload = encode_compacted(
            Origins.of(self._origins),
            self._indexes,
            self._gather.columns(),
            compression=self._compression,
        )
        self._gather.clear()
        self._ready.append(payload)
        self._figures.count(self._origins, len(self._indexes), len(payload))
        self._origins, self._indexes = [], array("i")
        self._names, self._names_size = set(), 0
        if len(self._ready) >= APPEND_COUNT or self._figures.size >= self._size_max:
            await self._append()
        if self._figures.size >= self._size_max:
            await self._seal()

    async def _append(self) -> None:
        if not self._ready:
            return
        if self._writer is None:
            partition, lane = self._place
            self._writer = await open_staged(
                self._ledgers, self._stage, partition=partition, lane=lane
            )
        payloads, self._ready = self._ready, []
        await self._writer.append_many(payloads)

    async def _seal(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        await writer.close()
        self.ledgers.append(self._figures.ledger(*self._place, writer.id))
        self._figures = _Figures()


class _Figures:
    """Figures of a ledger of survivors."""

    def __init__(self) -> None:
        self.size = 0
        self._entries = self._messages = 0
        self._ends: list[Origin] = []

    def count(self, origins: list[Origin], messages: int, size: int) -> None:
        """Count an entry of these messages and payload bytes."""
        self.size += size
        self._entries += 1
        self._messages += messages
        self._ends = [*self._ends[:1], origins[0], origins[-1]]

    def ledger(self, partition: int, lane: int, ledger_id: int) -> CompactedLedger:
        """Return the record of the ledger."""
        return CompactedLedger(
            partition=partition,
            lane=lane,
            ledger_id=ledger_id,
            first=_place(self._ends[0]),
            last=_place(self._ends[-1]),
            entries=self._entries,
            messages=self._messages,
            size=self.size,
        )


@asynccontextmanager
async def stage_lane(
    ledgers: Ledgers, stage: JobStage, *, partition: int, lane: int, size: int
) -> AsyncGenerator[StagedLane]:
    """Open a StagedLane for the block; its last ledger is sealed at the end.

    Args:
        ledgers: of the cluster.
        stage: the job's.
        partition: of the topic.
        lane: of the partition.
        size: payload bytes at which a ledger ends.

    Raises:
        JobLost, LedgerError: as StagedLane.add().
    """
    staged = StagedLane(ledgers, stage, partition=partition, lane=lane, size=size)
    try:
        yield staged
        await staged.finish()
    finally:
        await staged.abandon()


def _place(origin: Origin) -> Place:
    return Place(origin.number, origin.ledger_id, origin.entry_id, max(origin.version, 0))
