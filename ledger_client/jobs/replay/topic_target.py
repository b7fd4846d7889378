"""A replay into a topic: each message once, whatever is killed meanwhile.

    chunk ──► rows of each partition ──► numbers after the last ──► a named producer

The producer's name is the run's id, and it numbers the messages of each partition from 0 in the
order of the replay, which is the same on every run. So messages that are sent again, because the
record of the replay is a little behind, have the numbers they had before, and are deduplicated.
A lane forgets numbers after some hours; then they are read back from it.

The topic exists already, or is made like the topic that is replayed (find_target).
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ledger_client.errors import (
    BadTopic,
    LedgerError,
    NoSuchTopic,
    ProducerBusy,
    Retryable,
    SendUnknown,
    TopicExists,
)
from ledger_client.jobs.replay.columns import indexes_of, shares_of
from ledger_client.jobs.replay.log import WHOLE, sums_of
from ledger_client.jobs.replay.source import ReplayChunk
from ledger_client.jobs.replay.target import Reached, ReplayBatch
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes import lane_state
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.reading.reader import open_reader
from ledger_client.topics.times import PublishTime
from metadata.replays import Order, ReplayRecord
from metadata.sessions import GONE_S
from metadata.topics import TopicRecord
from native.checksum import Checksum

if TYPE_CHECKING:
    import pyarrow as pa

CreateTopic = Callable[..., Awaitable[TopicRecord]]
"""Topics.create of the target's cluster."""
DEFINITION = (
    "partitions",
    "order",
    "timesync",
    "compression",
    "roll",
    "retention",
    "schema",
    "properties",
)
"""The settings that a topic made like another one shares with it."""

BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 4000
RETRY_S = 60.0
"""Time limit for retrying failures that may pass."""
PAUSE_S = 0.5
CLOCKS_APART_MS = 10 * 60 * 1000
"""Greatest assumed clock difference between hosts that ran the replay."""


class TopicTarget:
    """Sends to the partitions of a topic; see ReplayTarget. Made by open_topic_target()."""

    def __init__(
        self,
        context: TopicContext,
        topic: TopicRecord,
        producer: Producer,
        record: ReplayRecord,
        *,
        resumed: bool,
        keep_ids: bool,
    ) -> None:
        self.sent = sums_of(record.sent)
        self.bytes = record.bytes
        self.repeated = 0
        self._context = context
        self._topic = topic
        self._producer = producer
        self._indexes = indexes_of(record.target_partitions)
        self._one_to_one = record.one_to_one
        self._started_ms = record.started_ms
        silent_ms = context.clock.now_ms() - record.updated_ms
        self._may_be_forgotten = resumed and silent_ms > lane_state.IDLE_S * 500
        self._keep_ids = keep_ids
        self._kept: dict[int, int] = {}
        """messages that each partition has"""

    def reached(self) -> None:
        """Return `None`: the record knows, and the lanes deduplicate."""

    def batch_of(self, chunk: ReplayChunk) -> ReplayBatch:
        """Return the messages with arrow.SCHEMA, with their ids in headers if wanted."""
        found = chunk.record_batch()
        if not self._keep_ids:
            return ReplayBatch(found)
        from ledger_client.jobs.replay.columns import with_ids

        return ReplayBatch(with_ids(found))

    async def put(self, batch: ReplayBatch, reached: Reached | None) -> bool:
        """Send a batch and wait until it is durable. Raises as Producer.send_many()."""
        from ledger_client.jobs.replay.columns import CopiedColumns

        whole_batch = batch.batch
        given = CopiedColumns(whole_batch)
        columns = given.columns
        whole = self.sent.get(WHOLE, Checksum()).add(columns)
        sums: dict[int, Checksum] = {WHOLE: whole}
        shares: list[tuple[int, pa.RecordBatch, int]] = []
        for index, rows in shares_of(
            whole_batch, columns, self._indexes, one_to_one=self._one_to_one
        ):
            before = self.sent.get(index, Checksum())
            sums[index] = before.add(columns, rows)
            own = whole_batch if rows is None else whole_batch.take(_arrow(rows))
            shares.append((index, own, before.count))
        await self._send_all(shares)
        self.sent |= sums
        self.bytes += given.size
        return True

    async def finish(self, reached: Reached) -> None:
        """Do nothing: put() waited until all was durable."""

    async def _send_all(self, shares: Sequence[tuple[int, pa.RecordBatch, int]]) -> None:
        """Send to all partitions concurrently; raise the first failure once all have ended."""
        failures: list[LedgerError] = []

        async def send(index: int, batch: pa.RecordBatch, number: int) -> None:
            try:
                await self._send(index, batch, number)
            except LedgerError as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for share in shares:
                nursery.start_soon(send, *share)
        if failures:
            raise failures[0]

    async def _send(self, index: int, batch: pa.RecordBatch, number: int) -> None:
        """Send a batch whose first message has *number*, without what the lane has already."""
        if index not in self._kept:
            self._kept[index] = await self._look(index, number)
        known = min(max(self._kept[index] - number, 0), batch.num_rows)
        self.repeated += known
        if known == batch.num_rows:
            return
        from ledger_client.jobs.replay.columns import CopiedColumns

        given, first = CopiedColumns(batch.slice(known)), number + known
        until = trio.current_time() + RETRY_S
        while True:
            try:
                await self._producer.send_many(
                    given.values,
                    keys=given.keys,
                    event_times=given.event_times,
                    headers=given.headers,
                    partition=index,
                    sequence=first,
                )
                break
            except (Retryable, SendUnknown):
                if trio.current_time() >= until:
                    raise
            await trio.sleep(PAUSE_S)
        self._kept[index] = number + batch.num_rows

    async def _look(self, index: int, acknowledged: int) -> int:
        """Return the number of the run's messages in a partition, at least *acknowledged*."""
        known = await self._producer.last_sequence(index) + 1
        if known > acknowledged or (known == acknowledged and not self._may_be_forgotten):
            return known
        # The lane has forgotten the producer, or lost what was acknowledged.
        async with open_reader(
            self._context,
            self._topic.name,
            partitions=[index],
            reverse=True,
            end=PublishTime(max(self._started_ms - CLOCKS_APART_MS, 0)),
            on_gap="skip",
        ) as reader:
            async for message in reader:
                if message.producer == self._producer.name:
                    return max(message.sequence + 1, acknowledged)
        return acknowledged


@asynccontextmanager
async def open_topic_target(
    context: TopicContext,
    topic: TopicRecord,
    record: ReplayRecord,
    *,
    resumed: bool,
    keep_ids: bool = False,
) -> AsyncIterator[TopicTarget]:
    """Send to a topic for the block, as the producer of the run of *record*.

    If *resumed*, wait for the lane leases of a killed process to end. Raises as
    Client.producer().
    """
    async with AsyncExitStack() as stack:
        until = trio.current_time() + (GONE_S + PAUSE_S if resumed else 0.0)
        producer: Producer | None = None
        while producer is None:
            entering = topic_producer(
                context,
                topic.name,
                producer_name=record.run,
                batch_bytes=BATCH_BYTES,
                batch_messages=BATCH_MESSAGES,
            )
            try:
                producer = await stack.enter_async_context(entering)
            except ProducerBusy:
                if trio.current_time() >= until:
                    raise
                await trio.sleep(PAUSE_S)
        yield TopicTarget(context, topic, producer, record, resumed=resumed, keep_ids=keep_ids)


async def read_back_topic(
    context: TopicContext, topic: TopicRecord, record: ReplayRecord
) -> Mapping[int, Checksum]:
    """Return the checksum of the messages of a run's producer, by partition.

    Raises as TopicReader.next_messages().
    """
    indexes = [index for index in sums_of(record.sent) if index != WHOLE]
    return {index: await _sum_of(context, topic, index, record.run) for index in indexes}


async def _sum_of(context: TopicContext, topic: TopicRecord, index: int, run: str) -> Checksum:
    import pyarrow.compute as pc

    from ledger_client.jobs.replay.columns import CopiedColumns

    found = Checksum()
    async with open_reader(context, topic.name, partitions=[index]) as reader:
        async for batch in reader.read_batches():
            own = batch.filter(pc.equal(batch.column("producer"), run))
            if own.num_rows:
                found = found.add(CopiedColumns(own).columns)
    return found


def _arrow(rows: array[int]) -> pa.UInt32Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(rows)])


async def find_target(
    context: TopicContext,
    name: str,
    sources: Sequence[TopicRecord],
    *,
    create: CreateTopic | None,
    replication: int | None = None,
) -> TopicRecord:
    """Return the topic *name*; if it is missing, let *create* make it like the sources.

    *replication* is the number of copies of a new topic, by default the source's.

    Raises:
        NoSuchTopic: there is no such topic.
        BadTopic: it is not like the sources, or the sources differ.
        NotEnoughBookies: there are fewer bookies than copies.
    """
    try:
        found = (await context.catalogue.get(name))[0]
    except NoSuchTopic as missing:
        if create is None:
            missing.add_note(f"or let --with-definition make it like {sources[0].name}")
            raise
        return await _make(context, name, sources, create, replication)
    if create is not None:
        _check_alike(found, [*sources, found])
    return found


async def _make(
    context: TopicContext,
    name: str,
    sources: Sequence[TopicRecord],
    create: CreateTopic,
    replication: int | None,
) -> TopicRecord:
    model = sources[0]
    _check_alike(model, sources)
    copies = replication or model.replication
    try:
        return await create(
            name,
            model.partitions,
            replication=copies,
            ack_quorum=min(model.ack_quorum, copies),
            order=model.order,
            timesync=model.timesync,
            compression=model.compression,
            roll=model.roll,
            retention=model.retention,
            schema=model.schema,
            properties=model.properties,
        )
    except TopicExists:
        return (await context.catalogue.get(name))[0]


def _check_alike(model: TopicRecord, topics: Sequence[TopicRecord]) -> None:
    for topic in topics:
        differ = [part for part in DEFINITION if getattr(topic, part) != getattr(model, part)]
        if differ:
            reason = ", ".join(
                f"{part} {getattr(model, part)!s}, not {getattr(topic, part)!s}" for part in differ
            )
            raise BadTopic(
                f"it is not defined as {topic.name} is: {reason}; replay without the definition",
                topic=model.name,
            )


def check_target(
    target: TopicRecord, sources: Sequence[TopicRecord], order: Order, *, is_same_cluster: bool
) -> None:
    """Raise BadTopic for a target that cannot take these sources in this order."""
    if is_same_cluster and any(topic.uid == target.uid for topic in sources):
        raise BadTopic("a topic cannot be replayed into itself", topic=target.name)
    if target.order == "event-time" and order != "event-time":
        raise BadTopic(
            f"it is ordered by event time, and cannot take messages in order of {order}; "
            "replay topics that are ordered by event time, in that order",
            topic=target.name,
        )
