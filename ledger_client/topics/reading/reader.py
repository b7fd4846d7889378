"""Topic readers: messages, or Arrow batches of them, from a place on or back from it.

    lanes ──tasks──► cursors ──merged──► batches ──► Message objects, or RecordBatches

A reader belongs to no group and stores nothing: to go on later, store its position(). It holds
read_ahead_size bytes in memory, and a batch of each lane.

No message is skipped silently. When messages at its place were removed, a reader raises Gap once,
and the next call goes on at the first message there is. After any other error the reader stays
where it was, and the next call tries again. seek() gets it past an entry that is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Unpack

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import BadTopic, Gap, LedgerError
from ledger_client.message_id import MessageId
from ledger_client.opening import Openable
from ledger_client.options import check_timeout
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import MergedBatch, Message, converted, decoding
from ledger_client.topics.positions import Position, as_position
from ledger_client.topics.reading.consistency import visible
from ledger_client.topics.reading.cut_bounds import with_cuts
from ledger_client.topics.reading.lane_ranges import LaneRange
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.merging import MergedLanes, ReadOrder
from ledger_client.topics.reading.options import ReadOptions, ReadSettings, Start, check_timed
from ledger_client.topics.reading.remaining import LaneLag, lag_behind
from ledger_client.topics.reading.tick_feed import TopicTicks
from ledger_client.topics.reading.topic_watch import TopicWatch
from ledger_client.topics.times import Timestamp
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(Openable):
    """An async iterator of Message, from Client.reader().

    One task takes messages, and another that takes them meanwhile gets Busy. Other tasks may call
    seek(), pause(), resume(), position() and wait_caught_up() meanwhile.
    """

    def __init__(
        self,
        topics: Sequence[TopicRecord],
        options: ReadOptions,
        lanes: LaneSet,
        merged: MergedLanes,
        ticks: TopicTicks | None,
    ) -> None:
        self._topics = topics
        self._options = options
        self._lanes = lanes
        self._merged = merged
        self._ticks = ticks
        self._start = options.begin
        self._decoding = decoding(options.value_decoder)
        self._batch: MergedBatch | None = None
        self._ready: Iterator[Message] = iter(())
        """the messages of *_batch* that were not returned yet"""

    def __aiter__(self) -> TopicReader:
        return self

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message
        if not await self._load():
            raise StopAsyncIteration
        return next(self._ready)

    async def next_messages(
        self, messages_max: int | None = None, *, wait_s: float | None = None
    ) -> list[Message]:
        """Wait for and return the messages of a batch; an empty list means the end, or wait_s.

        Args:
            messages_max: return so many at most, 1 or more; the next call goes on after them.
            wait_s: wait so many seconds at most. If nothing came, the list is empty and *ended*
                is false. 0 returns what has arrived already.

        Raises:
            ValueError: an argument is out of its range.
            Busy: another task or thread is taking messages.
            Gap: messages at the reader's place were removed. The next call goes on after them.
            MessagesLost: an entry is damaged, or not written by a producer.
            NoSuchTopic: the topic was deleted.
            ReaderClosed: the reader is closed, or was closed meanwhile.
            EntryLost, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.read().
        """
        check_pull(messages_max, wait_s)
        if not length_hint(self._ready):
            await self._load(wait_s)
        return list(islice(self._ready, messages_max))

    def read_batches(self, *, rows_min: int = 1000, rows_max: int = 50_000) -> RecordBatches:
        """Return an async iterator of pyarrow RecordBatches; no message becomes an object.

        A batch of *rows_min* messages or more is not copied: its columns keep the memory in
        which it arrived. Smaller batches are joined with what has arrived already. No batch
        has more than *rows_max* rows, and none has messages of both sides of a tick. Raises as
        next_messages().
        """
        give_back(self, 0)
        return RecordBatches(self._merged, rows_min=rows_min, rows_max=rows_max)

    def position(self) -> Position:
        """Return the place in each lane after the messages handed out, in reverse before them.

        Client.reader(start=...) and seek() accept it.
        """
        return as_position(self._merged.places(self._batch, length_hint(self._ready)))

    async def seek(self, start: Start, *, inclusive: bool = True) -> None:
        """Go on from *start*, which may be anything that Client.reader() accepts as a start.

        Until this returns the reader goes on as before; if it fails, nothing changes.

        Raises:
            BadTopic: there is no such place.
            ReaderClosed: the reader is closed, or was closed meanwhile.
            LedgerError: the place could not be looked up.
        """
        self._merged.check_open()
        for topic in self._topics:
            check_timed(start, topic)
        after = inclusive == self._options.reverse
        looks = {watch: watch.looks for watch in self._lanes.watches}
        if self._ticks is not None:
            await self._seek_timed(self._ticks, start, after=after)
        else:
            self._begin(start, await self._lanes.ranges(start, after=after))
        for watch, before in looks.items():
            if watch.looks != before:  # a lane may have appeared after the lanes were listed
                watch.look_again()

    async def _seek_timed(self, ticks: TopicTicks, start: Start, *, after: bool) -> None:
        """Go on from *start* up to ticks."""
        if isinstance(start, MessageId):
            raise BadTopic(
                "a message is a place in one lane; read by timestamp from a time or a position",
                topic=self._topics[0].name,
            )
        now = await ticks.now()
        if start == "latest":
            start = Timestamp(now)
        elif isinstance(start, Timestamp):
            start, after = start.next() if after else start, False
        ranges = await self._lanes.ranges(start, after=after)
        if isinstance(start, Timestamp):
            before = start.value - 1
        else:
            before = await self._lanes.timestamp_before(ranges)
        self._merged.check_open()  # before a task brings ticks
        self._begin(start, ranges, ticks.begin(start, now=now, after=max(before, 0)))

    def _begin(
        self, start: Start, ranges: Sequence[LaneRange], order: ReadOrder | None = None
    ) -> None:
        self._merged.check_open()  # it may have been closed while the lanes were looked up
        self._batch, self._ready = None, iter(())
        self._start = start
        self._merged.begin(self._lanes.cursor, ranges, order)

    @property
    def ended(self) -> bool:
        """True once everything up to the reader's end was returned; false again after seek()."""
        return self._merged.ended and not length_hint(self._ready)

    async def lag(self) -> list[LaneLag]:
        """Return, of each lane, how many messages lie between position() and the lane's end.

        Whatever the reader's own end. Costs a look at each lane, and up to two short reads.

        Raises:
            BadTopic: the reader reads in reverse, or compacted.
            ReplicasUnavailable: the bookies of an open ledger do not answer.
            NoSuchTopic: a topic was deleted.
            LedgerError: the lanes could not be looked up.
        """
        if self._options.reverse:
            raise BadTopic("a reader in reverse has no lag", topic=self._topics[0].name)
        if self._options.compacted:
            reason = "a compacted reader has no lag: nobody counts what a compaction left"
            raise BadTopic(reason, topic=self._topics[0].name)
        return await lag_behind(self._lanes, self.position())

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out nothing more of these partitions, `None` for all; reading ahead stops soon.

        Merged by event time, messages after the next one of a paused lane wait with it.
        """
        give_back(self, 0)
        if partitions is None:
            partitions = {index for topic in self._topics for index in topic.partition_indexes}
        self._merged.pause(partitions)

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out these partitions again; `None` for all."""
        self._merged.resume(partitions)

    @property
    def tick(self) -> Timestamp:
        """All up to this timestamp was returned; Timestamp(0) unless it is read by timestamp.

        What depends on all of them can be done: nothing comes later that belongs before.
        """
        return tick_before(self, 0)

    @property
    def gaps(self) -> Sequence[Gap]:
        """The last hundred gaps that on_gap="skip" skipped."""
        return self._merged.gaps

    @property
    def caught_up(self) -> bool:
        """True once every message that was there when reading began was handed out."""
        return self._merged.caught_up.is_set() and not self._merged.is_closed

    async def wait_caught_up(self) -> None:
        """Wait until caught_up is true; it stays true until seek(). Raises ReaderClosed."""
        self._merged.check_open()
        await self._merged.caught_up.wait()
        self._merged.check_open()

    async def close(self) -> None:
        """Stop reading. Done at the end of the block in any case; harmless if it is closed.

        Messages of the last batch may still be returned, then ReaderClosed is raised. position()
        goes on to work.
        """
        self._merged.close()
        if self._held is not None:
            await self._held.leave()

    async def _open(self, nursery: trio.Nursery) -> None:
        """Find the lanes and begin to read them, in *nursery*. Raises as seek()."""
        if self._options.follows_lanes:
            for index, topic in enumerate(self._topics):
                look = partial(self._look, index)
                self._lanes.watches.append(TopicWatch(self._lanes.store, topic, look))
        await self.seek(self._start, inclusive=self._options.inclusive)
        for watch in self._lanes.watches:
            nursery.start_soon(self._watch, watch)

    async def _look(self, index: int) -> None:
        """Begin to read the lanes of a topic that appeared after reading began."""
        start = self._start
        found, _ = await self._lanes.look(index, start)
        if start is self._start:
            self._merged.add_new(found)

    async def _watch(self, watch: TopicWatch) -> None:
        try:
            await watch.run()
        except* LedgerError as group:
            self._merged.fail(_first_of(group))

    async def _load(self, wait_s: float | None = None) -> bool:
        """Make the next messages ready; False at the end, and if none came in *wait_s*."""
        self._batch = None
        if wait_s is None:
            self._batch = await self._merged.wait()
        else:
            with trio.move_on_after(wait_s) as waiting:
                self._batch = await self._merged.wait()
            if waiting.cancelled_caught:  # though something may have come at this moment
                self._batch = self._merged.take()
        if self._batch is None:
            return False
        self._ready = iter(converted(self._batch.messages(), self._decoding))
        return True


def check_pull(messages_max: object, wait_s: object) -> None:
    """Raise ValueError unless next_messages() takes these arguments."""
    is_count = isinstance(messages_max, int) and messages_max >= 1
    if not (messages_max is None or is_count) or isinstance(messages_max, bool):
        raise ValueError(f"messages_max takes 1 or more, not {messages_max!r}")
    if wait_s is not None:
        check_timeout(wait_s, "wait_s")


def tick_before(reader: TopicReader, count: int) -> Timestamp:
    """Return the tick of *reader*, if the last *count* messages that it returned do not count."""
    batch = reader._batch
    if batch is not None and length_hint(reader._ready) + count:
        return Timestamp(batch.tick_before)
    return Timestamp(reader._merged.tick)


def give_back(reader: TopicReader, count: int) -> None:
    """Take back the last *count* messages that next_messages() of *reader* returned.

    They are returned again, and position() lies before them.

    Raises:
        ValueError: fewer were returned.
    """
    left = length_hint(reader._ready) + count
    batch, reader._batch, reader._ready = reader._batch, None, iter(())
    if left and (batch is None or left > batch.rows):
        raise ValueError(f"{count} messages given back, which were not handed out")
    if batch is not None and left:
        reader._merged.give_back(batch, left)


def holds_batch(reader: TopicReader) -> bool:
    """True if messages that next_messages() of *reader* returned last may be given back."""
    return reader._batch is not None


class RecordBatches:
    """An async iterator of RecordBatches; see TopicReader.read_batches()."""

    def __init__(self, merged: MergedLanes, *, rows_min: int, rows_max: int) -> None:
        self._merged = merged
        self._rows_max = max(rows_max, 1)
        self._rows_min = min(rows_min, self._rows_max)
        self._last: list[tuple[MergedBatch, int]] = []
        """the source batches of the rows returned last, each with the number of its rows"""

    def __aiter__(self) -> RecordBatches:
        return self

    def give_back(self) -> None:
        """Take back the rows that were returned last, which nobody has seen."""
        last, self._last = self._last, []
        for merged, rows in reversed(last):
            self._merged.give_back(merged, merged.rows, kept=merged.rows - rows)

    async def __anext__(self) -> pa.RecordBatch:
        self._last = []
        self._merged.order.batch_rows = self._rows_min  # what is as large is not copied
        first = await self._merged.wait()
        if first is None:
            raise StopAsyncIteration
        joined = [self._cut(first, self._rows_max)]
        rows = joined[0].num_rows
        while rows < self._rows_min:
            try:
                more = self._merged.take()
            except LedgerError as failure:
                self._merged.put_off(failure)
                break
            if more is None:
                break
            if more.tick != first.tick:
                self._merged.give_back(more, more.rows)
                break
            joined.append(self._cut(more, self._rows_max - rows))
            rows += joined[-1].num_rows
        return joined[0] if len(joined) == 1 else _concatenated(joined)

    def _cut(self, merged: MergedBatch, rows_max: int) -> pa.RecordBatch:
        """Return the rows that fit, and give the others back."""
        batch, left = merged.record_batch(), merged.rows - rows_max
        self._last.append((merged, min(merged.rows, rows_max)))
        if left <= 0:
            return batch
        self._merged.give_back(merged, left)
        return batch.slice(0, rows_max)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.concat_batches(batches)


def _first_of(error: BaseExceptionGroup[LedgerError]) -> LedgerError:
    """Return the first error of a group."""
    first = error.exceptions[0]
    return first if isinstance(first, LedgerError) else _first_of(first)


async def _until_moment(
    context: TopicContext, topics: Sequence[TopicRecord], options: ReadOptions
) -> ReadOptions:
    """Let a read as of a moment end there."""
    moment = await visible(
        context,
        topics,
        options.consistency or "strong",
        as_of=options.as_of,
        staleness_s=options.staleness_s,
    )
    return msgspec.structs.replace(options, end=Timestamp(moment), end_inclusive=True)


@asynccontextmanager
async def open_reader(
    context: TopicContext, topics: str | Sequence[str], **settings: Unpack[ReadSettings]
) -> AsyncIterator[TopicReader]:
    """Read one topic or several for the length of the block; Client.reader() has the details.

    Raises:
        NoSuchTopic: one of them does not exist.
        BadTopic: the options contradict each other, or do not suit the topics.
        BadCut: there is no such cut, or a topic is not in it.
        LedgerError: the place to begin at could not be looked up.
    """
    options = ReadOptions(**settings)
    names = [topics] if isinstance(topics, str) else topics
    records = [(await context.catalogue.get(name))[0] for name in names]
    options.check(records)
    if options.names_cuts:
        options = await with_cuts(context.catalogue, options, records)
    if options.is_as_of:
        options = await _until_moment(context, records, options)
    async with Background() as nursery:
        merged = MergedLanes(options, nursery, context.figures, now_ms=context.clock.now_ms)
        lanes = LaneSet(
            catalogue=context.catalogue,
            opener=context.opener,
            topics=records,
            options=options,
            notify=merged.notify,
        )
        ticks = None
        if options.order == "timestamp":
            ticks = TopicTicks(context, records, options, lanes, merged, nursery)
        reader = TopicReader(records, options, lanes, merged, ticks)
        try:
            await reader._open(nursery)
            yield reader
        finally:
            merged.close()
