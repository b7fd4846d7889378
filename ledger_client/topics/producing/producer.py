"""Writing a topic: messages in, batches out to the lanes, ids back.

    send, send_nowait ──► room ──► outbox of the partition ──► lane ──► ledgers
    send_many ──► pieces, through C ──────────┘

A message is acknowledged once the batch it is in is durable on the topic's ack quorum. The
order in which messages of one partition were accepted is the order in which they are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ledger_client.background import Background
from ledger_client.figures import SendFigures
from ledger_client.topics.errors import (
    BadTopic,
    BufferFull,
    MessageTooLarge,
    ProducerClosed,
    ProducerFailed,
)
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.message_ids import MessageIds
from ledger_client.topics.producing.batching import Manner
from ledger_client.topics.producing.bulk import Bulk, Form
from ledger_client.topics.producing.dispatch import Surroundings
from ledger_client.topics.producing.keeper import Opener, OpenLane
from ledger_client.topics.producing.linger import Linger
from ledger_client.topics.producing.outbox import Outbox
from ledger_client.topics.producing.pieces import Given
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.producing.room import Room
from ledger_client.topics.producing.routes import Routes
from ledger_client.topics.producing.routing import Routing
from ledger_client.topics.producing.scale import Bytes, Scale
from ledger_client.topics.producing.tickets import Ticket
from ledger_client.topics.producing.widening import Widening, open_all
from metadata.clock import host_wall_ms
from metadata.topics import TopicRecord

OPENINGS_MAX = 16
"""Lanes that are taken at a time: each costs some transactions of the metadata store."""


class Producer:
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
    ) -> None:
        self._topic = topic
        self._options = options
        self._scale = Scale(
            topic.name, size_max=options.message_size_max, is_named=bool(options.producer_name)
        )
        self._room = Room(options.buffer_bytes)
        self._failure: ProducerFailed | None = None
        self._manner = Manner(
            options.compression or topic.compression,
            options.batching,
            options.producer_name.encode(),
            now_ms,
        )
        routes = Routes(topic.partitions if options.partition is None else 0)
        shared = Surroundings(
            topic=topic,
            options=options,
            manner=self._manner,
            opener=Opener(open_lane, trio.CapacityLimiter(OPENINGS_MAX), nursery),
            room=self._room,
            linger=Linger(nursery, options.linger_ms / 1e3),
            routes=routes,
            failed=self._fail,
            figures=figures,
        )
        self._shared = shared
        partitions = topic.partition_indexes if options.partition is None else [options.partition]
        self._routing = Routing(
            topic.name,
            [Outbox(partition, shared) for partition in partitions],
            by_key=options.router == "key",
        )
        self._widening = Widening(
            topic.name, options.producer_name, routes, lambda index: Outbox(index, shared)
        )

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def name(self) -> str:
        """The producer's name, "" for none."""
        return self._options.producer_name

    async def open(self) -> None:
        """Take the lanes, unless they are shared and may as well be taken later.

        Raises:
            ProducerBusy: with exclusive access, a lane is another producer's.
            LedgerError: a lane cannot be opened.
        """
        outboxes = self._routing.outboxes
        if not self._takes_lanes:
            return
        await outboxes[0].open()  # of those who want all of them, who has this one wins
        await open_all(outboxes)
        if self.name and self._shared.routes.partitions:
            self._use(await self._widening.at_opening(outboxes))

    @property
    def _takes_lanes(self) -> bool:
        """Whether lanes are taken before anything is sent."""
        is_shared = self._options.access_to(self._topic) == "shared"
        return not is_shared or self._routing.outboxes[0].strict

    # --- sending ---------------------------------------------------------------------

    async def send(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        event_time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> MessageId:
        """Send a message and return its id once it is durable.

        Waits while buffer_bytes are not acknowledged. Cancelled, the message may or
        may not be kept; the producer stays usable.

        Args:
            value: what readers get; None is kept as null.
            key: messages of a key go to one partition, in order.
            event_time: nanoseconds; on a topic ordered by event time every message
                has one, and it does not fall.
            headers: names and values.
            partition: where it goes, whatever its key.
            sequence: its number, for a producer with a name; by default one more than
                the last of its partition. Numbers rise in each partition. One that is not
                above the last accepted is a duplicate: it is acknowledged and not kept
                again; its id has -1 for ledger and entry if it is not known any more. A
                message that is sent again with its number, key and partition goes where it
                went first, even if partitions were added since. Without a key its number
                decides: 1000 numbers to a partition, in turn.

        Raises:
            SendUnknown: it may or may not be kept.
            EventTimeBack: it is lower than the last of its lane. Not sent.
            MessageTooLarge: it fits no frame. Not sent.
            ProducerFenced: another producer took the lane over.
            ProducerClosed: the producer was closed.
            BadTopic: there is no such partition, or an event time or name is needed.
            LedgerError: the lane cannot be opened or goes on nowhere. Not sent.
        """
        value, key, size = self._scale.weigh(value, key, event_time, headers, sequence)
        if not self._room.take(size):
            await self._room.wait(size)
        try:
            outbox = self._outbox_for(key, partition, sequence)
            while not outbox.ready:
                await outbox.wait_ready()
                outbox = self._outbox_for(key, partition, sequence)
            batch, place = outbox.put(value, key, event_time, headers, sequence, size)
        except BaseException:
            self._room.release(size)
            raise
        return await batch.id_of(place)

    def send_nowait(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        event_time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Ticket:
        """Accept a message and return a ticket for its id. Takes and raises as send().

        What fails and is not asked for by its ticket is raised by flush(), or at the end.

        Raises:
            BufferFull: there is no room, or its lane is being opened anew: wait with
                send() or flush().
        """
        value, key, size = self._scale.weigh(value, key, event_time, headers, sequence)
        outbox = self._outbox_for(key, partition, sequence)
        if not outbox.ready or not self._room.take(size):
            raise BufferFull(self.topic, size_max=self._room.size)
        try:
            return Ticket(*outbox.put(value, key, event_time, headers, sequence, size))
        except BaseException:
            self._room.release(size)
            raise

    async def send_many(
        self,
        values: Any,  # noqa: ANN401 - pyarrow has no types
        *,
        keys: Any = None,  # noqa: ANN401
        event_times: Any = None,  # noqa: ANN401
        headers: Any = None,  # noqa: ANN401
        partition: int | None = None,
        sequence: int | None = None,
    ) -> MessageIds:
        """Send messages in order and return their ids once all are durable.

        Each column is a sequence, or an Arrow array, chunked or not; keys, event times and
        headers are as many as values. Messages go through C a few MiB at a time, and not
        more than that is held of them. Cancelled, some may be kept.

        Args:
            values: bytes, or None for null.
            keys: bytes or None.
            event_times: nanoseconds or None, or Arrow times.
            headers: mappings or None, or Arrow lists of name and value.
            partition: where all go, whatever their keys.
            sequence: the number of the first, for a producer with a name and one
                partition; those after it follow.

        Raises:
            EventTimeBack, MessageTooLarge, BadTopic: nothing was sent.
            TypeError, ValueError: what is given are no columns; nothing was sent.
            SendUnknown: some may or may not be kept; the first may be acknowledged.
            LedgerError: as send(); the first messages may be kept.
        """
        self._check_open()
        given = Given(values, keys=keys, event_times=event_times, headers=headers)
        too_large = given.exceeding(self._scale.size_max)
        if too_large is not None:
            raise MessageTooLarge(self.topic, size=too_large, size_max=self._scale.size_max)
        targets = self._routing.outboxes
        if partition is not None:
            targets = [self._routing.outbox_of(partition)]
        if sequence is not None:
            self._scale.check_sequence(sequence)
            if len(targets) > 1:
                raise BadTopic("numbers count in each partition: name one", topic=self.topic)
        options = self._options
        count_max = options.batch_messages if options.batching else 1
        form = Form(self._manner, options.batch_bytes, count_max)
        return await Bulk(given, self._routing, targets, form).run(sequence)

    async def flush(self) -> None:
        """Wait until everything accepted so far is durable.

        Raises why some of it is not; also what failed since the last flush and nobody
        asked for.
        """
        failure: Exception | None = None
        for outbox in self._routing.outboxes:
            outbox.dispatch.seal()
        for outbox in self._routing.outboxes:
            try:
                await outbox.dispatch.flush()
            except Exception as found:  # noqa: BLE001 - raised below, after all others
                failure = failure or found
        if failure is not None:
            raise failure

    async def last_sequence(self, partition: int | None = None) -> int:
        """Return the number of the last message accepted in a partition, -1 for none.

        After SendUnknown the lane is opened anew first: then all up to it are kept.

        Raises:
            BadTopic: the producer has no name, or more than one partition and none is named.
            LedgerError: the lane cannot be opened.
        """
        outboxes = self._routing.outboxes
        if not self.name:
            raise BadTopic("a producer without a name does not count", topic=self.topic)
        if partition is None and len(outboxes) > 1:
            raise BadTopic("numbers count in each partition: name one", topic=self.topic)
        outbox = outboxes[0] if partition is None else self._routing.outbox_of(partition)
        await outbox.wait_ready()
        assert outbox.admission.numbering is not None
        return outbox.admission.numbering.next - 1

    async def grow(self, topic: TopicRecord) -> None:
        """Write the partitions that *topic* has more, too; keys are routed over all of them.

        What is being sent by a call of send_many() goes to the partitions before. With a name,
        numbers that were accepted before stay with the partitions there were (widening.py).

        Raises:
            LedgerError: a lane that must be open before cannot be opened, or one failed. Call
                it again; until then, what is sent may be refused with this error.
        """
        if self._widening.waiting:
            self._use(await self._widening.complete())
        outboxes = self._routing.outboxes
        added = [Outbox(i, self._shared) for i in range(len(outboxes), topic.partitions)]
        try:
            if self._takes_lanes:
                await open_all(added)
            self._check_open()
            every = await self._widening.widen(outboxes, added)
        except BaseException:
            if not self._widening.waiting:
                for outbox in added:
                    outbox.dispatch.begin_close()
            raise
        self._use(every)

    def _use(self, outboxes: Sequence[Outbox]) -> None:
        """Route over all of these."""
        self._routing = Routing(self.topic, outboxes, by_key=self._routing.by_key)

    # --- the end ---------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, and leave the lanes. Done at the end of the block in any case.

        Raises as flush(), and what leaving a lane raises.
        """
        if isinstance(self._failure, ProducerClosed):
            return
        self._fail(self._failure or ProducerClosed(self.topic))
        try:
            await self.flush()
        finally:
            self._failure = ProducerClosed(self.topic)
            for outbox in self._outboxes:
                outbox.dispatch.begin_close()
        for outbox in self._outboxes:
            await outbox.dispatch.keeper.closed()

    def abort(self) -> None:
        """Give up what is not under way; the lanes are left with the block."""
        self._fail(ProducerClosed(self.topic))
        for outbox in self._outboxes:
            outbox.dispatch.abort()

    @property
    def _outboxes(self) -> list[Outbox]:
        """All that have lanes, also those that nothing is routed to yet."""
        return [*self._routing.outboxes, *self._widening.waiting]

    def _fail(self, failure: ProducerFailed) -> None:
        """Take nothing any more; those who wait for room get *failure*."""
        self._failure = self._failure or failure
        self._room.open_wide()
        for outbox in self._routing.outboxes:
            outbox.refuse(self._failure)

    # --- checking --------------------------------------------------------------------

    def _outbox_for(self, key: bytes | None, partition: int | None, sequence: int | None) -> Outbox:
        """Return where a message goes: with a number, to the same partition whenever it is sent."""
        self._check_open()
        if sequence is None or partition is not None or not self._shared.routes.known:
            return self._routing.outbox_for(key, partition)
        partitions = self._shared.routes.partitions_at(sequence)
        return self._routing.outbox_at(sequence, key, partitions)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)


@asynccontextmanager
async def open_producer(
    topic: TopicRecord,
    options: ProducerOptions,
    open_lane: OpenLane,
    figures: SendFigures | None = None,
    now_ms: Callable[[], int] = host_wall_ms,
) -> AsyncIterator[Producer]:
    """Write a topic in a block; see TopicClient.producer.

    *figures*: where to count. *now_ms*: the time that messages are published at.
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
        )
        try:
            await producer.open()
            yield producer
            await producer.close()
        except BaseException:
            producer.abort()  # be quick: the tasks and lanes end with this block
            raise
