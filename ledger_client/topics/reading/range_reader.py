"""Reading planned ledger ranges: one task reads entries ahead, its consumer decodes them.

    ledger ──► entries ──bounded──► batches ──► ranges of messages

The same messages come out each time and in every process. Nothing after the end of a range is
read, so a ledger may be open, closed or in recovery.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, NamedTuple

import trio

from ledger_client.background import Background
from ledger_client.errors import Gap, LedgerError, NoSuchLedger
from ledger_client.ledgers.entries import EntryBatch
from ledger_client.message_id import MessageId
from ledger_client.options import DEFAULT_OPTIONS, Options
from ledger_client.portal import Portal
from ledger_client.topics.context import TopicContext, open_context
from ledger_client.topics.lanes.ledger_rows import LedgerRows, kept_entries, kept_messages
from ledger_client.topics.messages import MessageBatch, MessageRange, open_batch
from ledger_client.topics.reading.compacted import lost, open_compacted
from ledger_client.topics.reading.options import READ_AHEAD_SIZE
from ledger_client.topics.reading.ranges import LedgerRange

BATCHES_MAX = 2
"""Batches of entries that wait for the consumer, beside what is read ahead of a ledger."""


class RangeEntries(NamedTuple):
    """Consecutive entries of a range, still encoded."""

    range: LedgerRange
    entries: EntryBatch


class _Receiving:
    """Iterates over the entries that the task has read; raises the error that ended it."""

    def __init__(self, receive: trio.MemoryReceiveChannel[RangeEntries | LedgerError]) -> None:
        self._receive = receive

    def __aiter__(self) -> _Receiving:
        return self

    async def __anext__(self) -> RangeEntries:
        try:
            each = await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        if isinstance(each, LedgerError):
            raise each
        return each


class RangeReader:
    """Reads ledger ranges, in the given order.

    Args:
        context: the connection.
        on_gap: "skip": a ledger that was deleted is skipped and noted in *gaps*.
        read_ahead_size: bytes of a ledger that are requested at once.
    """

    def __init__(
        self,
        context: TopicContext,
        *,
        on_gap: Literal["raise", "skip"] = "raise",
        read_ahead_size: int = READ_AHEAD_SIZE,
    ) -> None:
        self.gaps: list[Gap] = []
        self._context = context
        self._opener = context.opener.sharing(read_ahead_size, 1)
        self._on_gap = on_gap

    async def batches(self, ranges: Iterable[LedgerRange]) -> AsyncGenerator[MessageRange, None]:
        """Yield the messages of the ranges, entry by entry.

        Close it (contextlib.aclosing) if it is not read to its end.

        Raises:
            Gap: a ledger was deleted since the ranges were planned.
            MessagesLost: a compacted ledger was deleted since.
            MessagesLost: an entry is damaged, or not written by a producer.
            EntryLost, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.read().
        """
        async with self.entries(ranges) as entries:
            async for each in entries:
                for messages in message_ranges(each):
                    yield messages

    @asynccontextmanager
    async def entries(
        self, ranges: Iterable[LedgerRange]
    ) -> AsyncIterator[AsyncIterator[RangeEntries]]:
        """Yield an iterator over the entries of the ranges. Raises as batches()."""
        send, receive = trio.open_memory_channel[RangeEntries | LedgerError](BATCHES_MAX)

        async def read() -> None:
            async with send:
                try:
                    for each in ranges:
                        await self._read(each, send)
                except LedgerError as failure:
                    await send.send(failure)

        async with Background() as nursery:
            nursery.start_soon(read)
            with receive:
                yield _Receiving(receive)

    async def _read(
        self, wanted: LedgerRange, send: trio.MemorySendChannel[RangeEntries | LedgerError]
    ) -> None:
        first = wanted.first_entry
        try:
            # Planned entries are confirmed.
            reader = await self._opener.open(wanted.ledger_id, confirmed=wanted.last_entry)
            try:
                for start, stop in kept_entries(wanted.removed, first, wanted.last_entry):
                    async for entries in reader.read_batches(start, stop):
                        await send.send(RangeEntries(wanted, entries))
                        first = entries.last_entry + 1
            finally:
                reader.unwatch()
        except NoSuchLedger as gone:
            if wanted.compacted:
                raise lost(wanted.lane_ref, gone) from gone
            gap = await self._gap(wanted, first)
            if gap is None:
                raise  # a row without its ledger: the contents are unknown
            if self._on_gap == "raise":
                raise gap from gone
            self.gaps.append(gap)

    async def _gap(self, wanted: LedgerRange, entry: int) -> Gap | None:
        """Return the gap of a range whose ledger is gone, `None` if its row says it is open."""
        context = self._context
        rows = LedgerRows(
            context.store, wanted.lane_ref, timeout_s=context.options.metadata_timeout_s
        )
        row = await rows.first_from(wanted.number)
        if row is not None and row.number == wanted.number:
            if row.ledger.state != "closed":
                return None
            row = await rows.first_from(wanted.number + 1)  # an operator deleted the ledger
        first = None if row is None else MessageId(row.ledger.ledger_id, 0, wanted.partition)
        return Gap(
            wanted.topic,
            partition=wanted.partition,
            lane=wanted.lane,
            position=wanted.place(entry).message_id(wanted.partition),
            first=first,
            missing=wanted.last_entry - entry + 1,
        )


def iterate_ranges(
    url: str,
    ranges: Sequence[LedgerRange],
    *,
    on_gap: Literal["raise", "skip"] = "raise",
    options: Options = DEFAULT_OPTIONS,
    read_ahead_size: int = READ_AHEAD_SIZE,
) -> Generator[MessageRange, None, None]:
    """Yield the messages of ranges, for code without trio; see RangeReader.batches().

    A thread of its own reads the entries; the caller's decodes them. Closing the iterator, or
    leaving it, ends the thread and its connections.

    Raises:
        BadAddress: *url* cannot be parsed.
        Others: as RangeReader.batches().
    """
    portal = Portal(partial(open_context, url, options=options))
    try:
        reader = RangeReader(portal.value, on_gap=on_gap, read_ahead_size=read_ahead_size)
        with portal.hold(reader.entries(ranges)) as entries:
            following = partial(_next, entries)
            while (each := portal.call(following)) is not None:
                yield from message_ranges(each)
    finally:
        portal.close()


def message_ranges(read: RangeEntries) -> Iterator[MessageRange]:
    """Yield the messages of some entries, decoding one entry at a time.

    Raises:
        MessagesLost: an entry is damaged, or not written by a producer.
    """
    wanted, entries = read
    lane = wanted.lane_ref
    for index in range(len(entries)):
        entry = entries.first_entry + index
        payload = entries.payload(index)
        batch: MessageBatch | None
        if wanted.compacted:
            batch = open_compacted(lane, (wanted.ledger_id, entry), payload)
        else:
            batch = open_batch(lane, wanted.place(entry), payload, wanted.stamp)
        if batch is None:
            continue
        start = wanted.skip if entry == wanted.first_entry else 0
        stop = batch.count
        if entry == wanted.last_entry and wanted.stop >= 0:
            stop = min(stop, wanted.stop)
        for kept in kept_messages(wanted.removed, entry, start, stop):
            yield MessageRange(batch, *kept)


async def _next(entries: AsyncIterator[RangeEntries]) -> RangeEntries | None:
    return await anext(entries, None)
