"""Writing a topic: messages in, batches out to the lanes, ids back.

    send, send_nowait ──► room ──► routing ──► partition writer ──► lane ──► ledgers
    send_many ──► chunks, through C ───────────────┘

A message is acknowledged once its batch is durable on the topic's ack quorum. Messages of one
partition are kept in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from operator import index

import trio

from ledger_client.background import Background
from ledger_client.errors import (
    BadTopic,
    BufferFull,
    LedgerError,
    PayloadTooLarge,
    ProducerClosed,
    ProducerFailed,
)
from ledger_client.figures import SendFigures
from ledger_client.message_id import MessageId, MessageIds
from ledger_client.opening import Openable
from ledger_client.topics.lane_reports import LaneReports
from ledger_client.topics.lanes.routes import extended, merged
from ledger_client.topics.producing.bulk import Bulk, Form
from ledger_client.topics.producing.encoded_values import as_bytes, encoded, encoded_all
from ledger_client.topics.producing.message_columns import MessageColumns, headers_size
from ledger_client.topics.producing.open_lane import OpenLane, TimestampSource
from ledger_client.topics.producing.partition_machine import Rules
from ledger_client.topics.producing.partition_writer import (
    Encoding,
    Linger,
    PartitionWriter,
    Shared,
    Ticket,
)
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.producing.room import Room
from ledger_client.topics.producing.routing import PartitionCount, Routing, following
from ledger_client.topics.producing.time_limit import TimeLimit
from ledger_client.topics.producing.waiting import Waiting, message_id_until
from ledger_client.topics.times import event_time_ns
from metadata.clock import host_wall_ms
from metadata.topics import TopicRecord
from native.columns import Column

OPENINGS_MAX = 16
"""Lanes that are opened at a time: each costs some transactions of the metadata store."""
MESSAGE_OVERHEAD = 16
"""Bytes counted for a message besides its own."""
Bytes = bytes | bytearray | memoryview
UsePartitions = Callable[[TopicRecord], Awaitable[None]]
WatchPartitions = Callable[[UsePartitions], Awaitable[None]]
"""Calls its argument with the topic's record when partitions were added, until cancelled."""


class Producer(Openable):
    """A topic being written. Made by Client.producer; any task may use it."""

    def __init__(
        self,
        topic: TopicRecord,
        options: ProducerOptions,
        *,
        open_lane: OpenLane,
        nursery: trio.Nursery,
        figures: SendFigures,
        now_ms: Callable[[], int],
        timestamps: TimestampSource,
        reports: LaneReports | None = None,
    ) -> None:
        self._topic = topic
        self._options = options
        self._size_max = options.message_size_max
        self._encoder = options.value_encoder
        self._room = Room(options.buffer_bytes)
        self._failure: ProducerFailed | None = None
        self._count = PartitionCount(topic.partitions if options.partition is None else 0)
        self._shared = Shared(
            rules=Rules(
                topic=topic.name,
                is_ordered=topic.order == "event-time",
                is_named=bool(options.producer_name),
                is_timed=topic.timesync,
                is_batched=options.batching,
                hurries=options.linger_ms is None,
                size_max=options.batch_bytes,
                count_max=options.batch_messages if options.batching else 1,
                new_signal=trio.Event,
            ),
            producer_name=options.producer_name,
            encoding=Encoding(
                options.compression or topic.compression,
                options.batching,
                options.producer_name,
                options.producer_name.encode(),
                now_ms,
            ),
            open_lane=open_lane,
            openings=trio.CapacityLimiter(OPENINGS_MAX),
            nursery=nursery,
            room=self._room,
            linger=Linger(nursery, options.linger_s),
            routes=lambda: self._count.known,
            end_producer=self._fail,
            figures=figures,
            timestamps=timestamps,
            uid=topic.uid,
            reports=reports if topic.timesync else None,
        )
        partitions = topic.partition_indexes if options.partition is None else [options.partition]
        self._closing = trio.Lock()
        self._joining: list[PartitionWriter] = []  # whose boundary is not durable yet
        self._route_over([PartitionWriter(each, self._shared) for each in partitions])

    @property
    def topic(self) -> str:
        """The name of the topic, as namespace/name."""
        return self._topic.name

    @property
    def name(self) -> str:
        """The producer's name, "" for none."""
        return self._options.producer_name

    # --- sending ---------------------------------------------------------------------

    async def send(
        self,
        value: object,
        *,
        key: Bytes | None = None,
        event_time: int | datetime | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
        timeout_s: float | None = None,
    ) -> MessageId:
        """Send a message and return its id once it is durable.

        Waits while buffer_bytes are not acknowledged. Cancelled, the message may or
        may not be kept; the producer stays usable.

        Args:
            value: the message's bytes, or what *value_encoder* takes; None is kept as null.
            key: messages of a key go to one partition, in order.
            event_time: nanoseconds since 1970, or a datetime with a time zone; on a topic
                ordered by event time every message has one, and it does not fall.
            headers: names and values.
            partition: send it there, whatever its key.
            sequence: its number, for a producer with a name; by default one more than
                the last of its partition. Numbers rise in each partition. A number that is
                not above the last accepted is a duplicate: it is acknowledged and not kept
                again; its id has -1 for ledger and entry if the first is not remembered. One
                that this producer passed over is refused: nothing with it is kept.
                Resending a keyed message with its number is deduplicated even if partitions
                were added since. Without a key the number chooses the partition: 1000
                numbers to each, in turn.
            timeout_s: wait so many seconds at most; then raise NotSent or SendUnknown. The
                producer stays usable.

        Raises:
            NotSent: in *timeout_s* it was handed to no bookie, and now it never will be.
            SendUnknown: it may or may not be kept.
            EventTimeBack: it is lower than the last of its lane. Not sent.
            SequenceBack: its number was passed over. Not sent.
            PayloadTooLarge: it does not fit a frame. Not sent.
            ProducerFenced: another producer took the lane over.
            ProducerClosed: the producer was closed.
            BadTopic: the partition does not exist, or an event time or name is needed.
            LedgerError: the lane cannot be opened, or cannot go on. Not sent.
        """
        limit = None if timeout_s is None else TimeLimit.of(timeout_s)
        begun = self._begin(value, key, event_time, headers, partition, sequence)
        if isinstance(begun, Waiting):
            return await begun.message_id(limit)
        return await message_id_until(begun, limit)

    def _begin(
        self,
        value: object,
        key: Bytes | None = None,
        event_time: int | datetime | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Ticket | Waiting:
        """Accept a message, or let it wait in line, in the order of the calls; see send()."""
        value, key, event_time, size = self._check(value, key, event_time, headers, sequence)
        headers = dict(headers) if headers else None  # the caller may use its own again
        writer = self._writer_for(key, partition, sequence)
        if not writer.line.turns and writer.machine.is_ready and self._room.take(size):
            return self._put(value, key, event_time, headers, sequence, size, writer)
        put = partial(self._put, value, key, event_time, headers, sequence, size)
        find: Callable[[], PartitionWriter] = partial(self._writer_for, key, partition, sequence)
        if key is None and partition is None and sequence is None:
            find = partial(self._if_open, writer)  # its turn among the partitions was taken
        return Waiting(self.topic, self._room, size, writer, find=find, put=put)

    def _put(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
        size: int,
        writer: PartitionWriter,
    ) -> Ticket:
        """Accept a checked message, for which room was taken; give it back if that fails."""
        try:
            batch, place = writer.put(value, key, event_time, headers, sequence, size)
        except BaseException:
            self._room.release(size)
            raise
        return Ticket(writer, batch, place, size)

    def send_nowait(
        self,
        value: object,
        *,
        key: Bytes | None = None,
        event_time: int | datetime | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Ticket:
        """Accept a message and return a ticket for its id. Takes and raises as send().

        A failure is raised by the ticket, or else by the next flush() or the end of the block.

        Raises:
            BufferFull: there is no room, or its lane is being opened anew: wait with
                send() or flush().
        """
        value, key, event_time, size = self._check(value, key, event_time, headers, sequence)
        headers = dict(headers) if headers else None  # the caller may use its own again
        writer = self._writer_for(key, partition, sequence)
        if writer.line.turns or not writer.machine.is_ready or not self._room.take(size):
            raise BufferFull(self.topic, size_max=self._room.size)
        return self._put(value, key, event_time, headers, sequence, size, writer)

    async def send_many(
        self,
        values: Column[object],
        *,
        keys: Column[Bytes | None] | None = None,
        event_times: Column[int | datetime | None] | None = None,
        headers: Column[Mapping[str, bytes] | None] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> MessageIds:
        """Send messages in order and return their ids once all are durable.

        Each column is a sequence, or an Arrow array, chunked or not; keys, event times and
        headers are as many as values. Messages go through C a few MiB at a time, and no
        more than that is held of them. Cancelled, some may be kept.

        Args:
            values: bytes, or what *value_encoder* takes; None for null. All are encoded first;
                an Arrow array is sent as it is.
            keys: bytes or None.
            event_times: nanoseconds, datetimes with a time zone, or None; or Arrow times.
            headers: mappings or None, or Arrow lists of name and value.
            partition: send all of them there, whatever their keys.
            sequence: the number of the first, for a producer with a name and one
                partition; those after it follow.

        Raises:
            EventTimeBack, SequenceBack, PayloadTooLarge, BadTopic: nothing was sent.
            TypeError, ValueError: an argument is no column; nothing was sent.
            SendUnknown: some may or may not be kept; the first may be acknowledged.
            LedgerError: as send(); the first messages may be kept.
        """
        self._check_open()
        given = encoded_all(self._encoder, values)
        messages = MessageColumns(given, keys=keys, event_times=event_times, headers=headers)
        too_large = messages.exceeding(self._size_max)
        if too_large is not None:
            raise PayloadTooLarge.message(self.topic, size=too_large, size_max=self._size_max)
        targets = self._writers
        if partition is not None:
            targets = [targets[self._routing.place_of(partition)]]
        if sequence is not None:
            self._check_sequence(sequence)
            if len(targets) > 1:
                raise BadTopic("numbers count in each partition: name one", topic=self.topic)
        rules = self._shared.rules
        form = Form(self._shared.encoding, rules.size_max, rules.count_max)
        return await Bulk(messages, self._routing, targets, form).run(sequence)

    async def flush(self) -> None:
        """Wait until everything accepted so far is durable.

        Raises the failure of a message, also one since the last flush that no task waited for.
        """
        failure: Exception | None = None
        for writer in self._writers:
            writer.seal()
        for writer in self._writers:
            try:
                await writer.flush()
            except Exception as found:  # noqa: BLE001 - raised below, after all others
                failure = failure or found
        if failure is not None:
            raise failure

    async def last_sequence(self, partition: int | None = None) -> int:
        """Return the number of the last message that is kept in a partition, -1 for none.

        Waits for those that were accepted, so after SendUnknown it tells what became of them.

        Raises:
            BadTopic: the producer has no name, or more than one partition and none is named.
            LedgerError: the lane cannot be opened.
        """
        writers = self._writers
        if not self.name:
            raise BadTopic("a producer without a name does not count", topic=self.topic)
        if partition is None and len(writers) > 1:
            raise BadTopic("numbers count in each partition: name one", topic=self.topic)
        writer = writers[0 if partition is None else self._routing.place_of(partition)]
        return await writer.last_number()

    async def close(self) -> None:
        """Flush, and leave the lanes. Done at the end of the block in any case.

        Harmless if it is closed. Cancelled, messages that are not acknowledged by then may or
        may not be kept. Raises as flush(), and the errors of closing a lane.
        """
        await (self._finish() if self._held is None else self._held.leave())

    async def _finish(self) -> None:
        async with self._closing:  # whoever else closes it waits until it is closed
            if isinstance(self._failure, ProducerClosed):
                return
            self._fail(self._failure or ProducerClosed(self.topic))
            writers = [*self._writers, *self._joining]
            try:
                await self.flush()
            finally:
                self._failure = ProducerClosed(self.topic)
                for writer in writers:
                    writer.end()
            for writer in writers:
                await writer.closed()

    # --- checking --------------------------------------------------------------------

    def _check(
        self,
        value: object,
        key: Bytes | None,
        event_time: int | datetime | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
    ) -> tuple[bytes | None, bytes | None, int | None, int]:
        """Return value and key as bytes, the event time, and the room that the message takes."""
        if self._encoder is not None:
            value = encoded(self._encoder, value)
        elif type(value) is not bytes:
            value = as_bytes(value)
        if key is not None and type(key) is not bytes:
            key = as_bytes(key)
        size = len(value or b"") + len(key or b"")
        if headers:
            size += headers_size(headers)
        if size > self._size_max:
            raise PayloadTooLarge.message(self.topic, size=size, size_max=self._size_max)
        if event_time is not None:
            event_time = event_time_ns(event_time)
        if sequence is not None:
            self._check_sequence(sequence)
        return value, key, event_time, size + MESSAGE_OVERHEAD

    def _check_sequence(self, sequence: int) -> None:
        """Raise BadTopic or ValueError unless messages may have this number."""
        if not self.name:
            raise BadTopic("sequence numbers need a producer with a name", topic=self.topic)
        if not 0 <= index(sequence) < 1 << 62:
            raise ValueError(f"{sequence} is no sequence number")

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _if_open(self, writer: PartitionWriter) -> PartitionWriter:
        self._check_open()
        return writer

    def _writer_for(
        self, key: bytes | None, partition: int | None, sequence: int | None
    ) -> PartitionWriter:
        """Return the partition of a message: with a number, always the same one."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if partition is not None:
            place = self._routing.place_of(partition)
        elif sequence is None or not self._count.known:
            place = self._routing.place_for(key)
        else:
            partitions = self._count.partitions_at(sequence)
            place = self._routing.place_at(sequence, key, partitions)
        return self._writers[place]

    # --- partitions ------------------------------------------------------------------

    def _route_over(self, writers: Sequence[PartitionWriter]) -> None:
        self._writers = list(writers)
        self._routing = Routing(
            self.topic,
            [writer.machine for writer in writers],
            by_key=self._options.router == "key",
        )

    @property
    def _opens_lanes(self) -> bool:
        """Whether lanes are opened before anything is sent: not if they are shared."""
        is_shared = self._options.access_to(self._topic) == "shared"
        return not is_shared or self._writers[0].machine.strict

    async def _open(self) -> None:
        """Open the lanes, unless they are shared and may as well be opened later.

        Raises:
            ProducerBusy: with exclusive access, a lane is another producer's.
            LedgerError: a lane cannot be opened.
        """
        if self._opens_lanes:
            await self._writers[0].open()  # the first to take partition 0 wins the others
            await _open_all(self._writers)
            if self.name and self._count.partitions:
                await self._agree()

    async def _agree(self) -> None:
        """Agree with the open lanes on the partition of each number.

        Lanes may know of more partitions than the topic had when its record was read. Nothing was
        sent yet, and no other session writes these lanes. So they get the agreed routes with the
        next batch that they take.

        Raises:
            LedgerError: a lane of a further partition cannot be opened.
        """
        writers = self._writers
        routes = merged(writer.found_routes for writer in writers)
        while routes and routes[-1][0] > len(writers):
            more = range(len(writers), routes[-1][0])
            added = [PartitionWriter(each, self._shared) for each in more]
            writers = [*writers, *added]
            self._joining += added
            await _open_all(added)
            routes = merged(writer.found_routes for writer in writers)
        machines = [writer.machine for writer in writers]
        self._count.agree(extended(routes, len(writers), following(machines)))
        self._use(writers)

    async def _use_partitions(self, topic: TopicRecord) -> None:
        """Also write the partitions added to *topic*; keys are routed over all of them.

        A call of send_many() that is under way goes on with the partitions it began with. With a
        name, numbers that were accepted before keep their partitions.

        Raises:
            LedgerError: a lane that must be open before cannot be opened, or one failed. Call
                it again; until then, messages may be refused with this error.
        """
        if self._joining:
            await self._write_boundary()
        writers = self._writers
        added = [PartitionWriter(i, self._shared) for i in range(len(writers), topic.partitions)]
        try:
            if self._opens_lanes:
                await _open_all(added)
            self._check_open()
            if self._count.known:
                while not all(writer.machine.is_ready for writer in writers):
                    for writer in writers:
                        await writer.wait_ready()
            self._count.grow(
                [writer.machine for writer in writers], [writer.machine for writer in added]
            )
            if self._count.chosen:
                self._joining = added
                await self._write_boundary()
            else:
                self._route_over([*writers, *added])
        except BaseException:
            if not self._joining:
                for writer in added:
                    writer.end()
            raise

    async def _write_boundary(self) -> None:
        """Make durable the boundary that was chosen, and route over all partitions.

        Cancelled, the producer accepts nothing any more.
        """
        try:
            await self._writers[0].write_boundary(self._count.chosen)
        except BaseException as failure:
            known = failure if isinstance(failure, LedgerError) else ProducerClosed(self.topic)
            self._count.boundary_failed(known)
            self._perform()
            raise
        self._count.boundary_durable()
        self._use([*self._writers, *self._joining])

    def _use(self, writers: Sequence[PartitionWriter]) -> None:
        """Route over *writers* by the boundaries that were agreed on."""
        self._joining = []
        self._route_over(writers)
        for writer in writers:
            writer.set_routes()
        self._perform()

    def _perform(self) -> None:
        for writer in self._writers:
            writer.perform()

    # --- the end ---------------------------------------------------------------------

    def _abort(self) -> None:
        """Give up messages that are not under way; the lanes are left with the block."""
        self._fail(ProducerClosed(self.topic))
        for writer in (*self._writers, *self._joining):
            writer.end()

    def _fail(self, failure: ProducerFailed) -> None:
        """Accept nothing any more; waiting tasks raise *failure*."""
        self._failure = self._failure or failure
        self._room.open_wide()
        for writer in self._writers:
            writer.machine.refuse(self._failure)
            writer.line.fail(self._failure)
            writer.perform()


@asynccontextmanager
async def open_producer(
    topic: TopicRecord,
    options: ProducerOptions,
    open_lane: OpenLane,
    timestamps: TimestampSource,
    figures: SendFigures | None = None,
    now_ms: Callable[[], int] = host_wall_ms,
    watch: WatchPartitions | None = None,
    reports: LaneReports | None = None,
) -> AsyncIterator[Producer]:
    """Write a topic in a block; see Client.producer.

    Args:
        topic: its record.
        options: routing, batching and access.
        open_lane: takes a lane of a partition.
        timestamps: allots them; asked on a topic with timesync alone.
        figures: counts what is sent.
        now_ms: the time that messages are published at; by default the host's.
        watch: notices partitions that are added.
        reports: reports the lanes of a topic with timesync to the leader.
    """
    options.check(topic)
    async with Background() as nursery:
        producer = Producer(
            topic,
            options,
            open_lane=open_lane,
            nursery=nursery,
            figures=figures or SendFigures(),
            now_ms=now_ms,
            timestamps=timestamps,
            reports=reports,
        )
        try:
            await producer._open()
            async with Background() as watching:
                if watch is not None:
                    watching.start_soon(watch, producer._use_partitions)
                yield producer
            await producer._finish()
        except BaseException:
            producer._abort()  # be quick: the tasks and lanes end with this block
            raise


async def _open_all(writers: Sequence[PartitionWriter]) -> None:
    """Open all lanes, OPENINGS_MAX at a time. Raises LedgerError if one cannot be opened."""
    for writer in writers:
        writer.start_opening()
    for writer in writers:
        await writer.open()
