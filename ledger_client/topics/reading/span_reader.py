"""Reading spans: entries brought by one task, a bounded way ahead of whoever opens them.

    ledger ──► entries ──bounded──► batches ──► slices

The same slices come out each time, wherever the spans are read and however often. Nothing
behind a span's end is read, so a ledger may be open, closed or in recovery.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, NamedTuple

import trio

from ledger_client import connecting
from ledger_client.background import Background
from ledger_client.client import DEFAULT_OPTIONS
from ledger_client.entries import EntryBatch
from ledger_client.errors import LedgerError, NoSuchLedger
from ledger_client.options import Options
from ledger_client.portal import Portal
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import Gap
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.messages import Batch, Slice, open_batch
from ledger_client.topics.reading.compacted_batch import open_compacted
from ledger_client.topics.reading.compacted_part import lost
from ledger_client.topics.reading.holes import kept_entries, kept_parts
from ledger_client.topics.reading.read_options import READ_AHEAD_SIZE
from ledger_client.topics.reading.spans import Span

BATCHES_MAX = 2
"""Entry batches that wait for whoever takes them, beside what is read ahead of a ledger."""


class Brought(NamedTuple):
    """Consecutive entries of a span."""

    span: Span
    entries: EntryBatch


class _Bringing:
    """Takes what the task brings; raises what made it end."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Brought | LedgerError]) -> None:
        self._receive = receive

    def __aiter__(self) -> _Bringing:
        return self

    async def __anext__(self) -> Brought:
        try:
            each = await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        if isinstance(each, LedgerError):
            raise each
        return each


class SpanReader:
    """Reads spans, in the order in which they are given.

    Args:
        client: connected to the cluster.
        on_gap: "skip": a ledger that was removed is passed over and noted in *gaps*.
        read_ahead_size: bytes of a ledger that are asked for at once.
    """

    def __init__(
        self,
        client: TopicClient,
        *,
        on_gap: Literal["raise", "skip"] = "raise",
        read_ahead_size: int = READ_AHEAD_SIZE,
    ) -> None:
        self.gaps: list[Gap] = []
        self._client = client
        self._opener = client.ledger_opener()
        self._opener.share(read_ahead_size, 1)
        self._on_gap = on_gap

    async def batches(self, spans: Iterable[Span]) -> AsyncGenerator[Slice, None]:
        """Yield the messages of the spans, those of an entry at a time.

        Close it (contextlib.aclosing) where it is not read to its end.

        Raises:
            Gap: a ledger was removed since the spans were planned.
            CompactedSetLost: so was one of what compaction left.
            BadBatch: an entry is damaged, or none of a topic.
            EntryLost, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.read().
        """
        async with self.entries(spans) as brought:
            async for each in brought:
                for piece in slices_of(each):
                    yield piece

    @asynccontextmanager
    async def entries(self, spans: Iterable[Span]) -> AsyncIterator[AsyncIterator[Brought]]:
        """Yield an iterator of the entries of the spans, for the block. Raises as batches()."""
        send, receive = trio.open_memory_channel[Brought | LedgerError](BATCHES_MAX)

        async def bring() -> None:
            async with send:
                try:
                    for span in spans:
                        await self._bring(span, send)
                except LedgerError as failure:
                    await send.send(failure)

        async with Background() as nursery:
            nursery.start_soon(bring)
            with receive:
                yield _Bringing(receive)

    async def _bring(self, span: Span, send: trio.MemorySendChannel[Brought | LedgerError]) -> None:
        first = span.first_entry
        try:
            reader = await self._opener.open(span.ledger_id)
            reader.trust(span.last_entry)  # what is planned was confirmed
            try:
                for start, stop in kept_entries(span.removed, first, span.last_entry):
                    async for entries in reader.read_batches(start, stop):
                        await send.send(Brought(span, entries))
                        first = entries.last_entry + 1
            finally:
                reader.close()
        except NoSuchLedger as gone:
            if span.compacted:
                raise lost(span.lane_ref, gone) from gone
            gap = await self._gap(span, first)
            if gap is None:
                raise  # a row without its ledger, and nobody knows what it held
            if self._on_gap == "raise":
                raise gap from gone
            self.gaps.append(gap)

    async def _gap(self, span: Span, entry: int) -> Gap | None:
        """Return what is missing of a span whose ledger is gone; None: its row says it is open."""
        client = self._client
        rows = LedgerRows(client.store, span.lane_ref, timeout_s=client.options.metadata_timeout_s)
        row = await rows.first_from(span.number)
        if row is not None and row.number == span.number:
            if row.ledger.state != "closed":
                return None
            row = await rows.first_from(span.number + 1)  # a person deleted the ledger by itself
        first = None if row is None else MessageId(row.ledger.ledger_id, 0, span.partition)
        return Gap(
            span.topic,
            partition=span.partition,
            lane=span.lane,
            position=span.place(entry).message_id(span.partition),
            first=first,
            missing=span.last_entry - entry + 1,
        )


def iterate_spans(
    url: str,
    spans: Sequence[Span],
    *,
    on_gap: Literal["raise", "skip"] = "raise",
    options: Options = DEFAULT_OPTIONS,
    read_ahead_size: int = READ_AHEAD_SIZE,
) -> Generator[Slice, None, None]:
    """Yield the messages of spans, for code without trio; see SpanReader.batches.

    Entries are brought by a thread of its own; they are opened in the caller's. Closing the
    iterator, or leaving it, ends the thread and its connections.

    Raises:
        InvalidAddress: *url* cannot be understood.
        Others: as SpanReader.batches.
    """
    portal = Portal(partial(connecting.connect, url, options=options))
    try:
        reader = SpanReader(portal.value, on_gap=on_gap, read_ahead_size=read_ahead_size)
        with portal.hold(reader.entries(spans)) as brought:
            following = partial(_following, brought)
            while (each := portal.call(following)) is not None:
                yield from slices_of(each)
    finally:
        portal.close()


def slices_of(brought: Brought) -> Iterator[Slice]:
    """Yield the messages of some entries, each entry opened when it is its turn.

    Raises:
        BadBatch: an entry is damaged, or none of a topic.
    """
    span, entries = brought
    lane = span.lane_ref
    for index in range(len(entries)):
        entry = entries.first_entry + index
        payload = entries.payload(index)
        batch: Batch | None
        if span.compacted:
            batch = open_compacted(lane, (span.ledger_id, entry), payload)
        else:
            batch = open_batch(lane, span.place(entry), payload)
        if batch is None:
            continue
        start = span.skip if entry == span.first_entry else 0
        stop = batch.count
        if entry == span.last_entry and span.stop >= 0:
            stop = min(stop, span.stop)
        for part in kept_parts(span.removed, entry, start, stop):
            yield Slice(batch, *part)


async def _following(brought: AsyncIterator[Brought]) -> Brought | None:
    return await anext(brought, None)
