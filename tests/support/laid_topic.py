"""Topics laid out by hand, ledger by ledger and entry by entry, for readers to read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

import msgspec
from batches import Sent, columns_of
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client, LedgerWriter
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.reader import TopicReader
from metadata.records import ledger_key
from metadata.store import Delete
from metadata.topics import (
    LaneLedger,
    LaneRecord,
    Removed,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
)
from native import batch as native_batch
from native.batch import BatchKind

TOPIC = "shop/orders"
CONTROL: list[Sent] = []
"""A batch without messages stands for a control entry."""


class Laid(NamedTuple):
    """A message that was laid out, and where."""

    id: MessageId
    lane: int
    version: int
    sent: Sent
    created_ms: int = 0


class LaidLane:
    """A lane that grows ledger by ledger."""

    def __init__(
        self, cluster: MemoryCluster, client: Client, topic: TopicRecord, partition: int, lane: int
    ) -> None:
        self.messages: list[Laid] = []
        self.rows: list[LaneLedger] = []
        self.partition = partition
        self.lane = lane
        self._cluster = cluster
        self._client = client
        self._topic = topic
        self._version = 0
        self._last: LaidLedger
        self._put_record()

    async def lay(
        self,
        *batches: Sequence[Sent],
        state: Literal["closed", "open"] = "closed",
        batched: bool = True,
        created_ms: int = 0,
    ) -> LaneLedger:
        """Append a closed ledger with these batches; *state* is what its row says."""
        async with self.write(state=state, batched=batched, created_ms=created_ms) as writer:
            for batch in batches:
                await writer.send(batch)
        return self.rows[-1]

    @asynccontextmanager
    async def write(
        self,
        *,
        state: Literal["closed", "open"] = "closed",
        batched: bool = True,
        created_ms: int = 0,
    ) -> AsyncIterator[LaidLedger]:
        """Append a ledger that is open for the length of the block."""
        async with self._client.ledgers.create(1, 1, 1) as ledger:
            row = LaneLedger(ledger_id=ledger.id, state="open", base_version=self._version)
            self.rows.append(row)
            self._put(len(self.rows) - 1)
            writer = LaidLedger(self, ledger, batched, created_ms)
            yield writer
        self._version += writer.entries
        self._last = writer
        if state == "closed":
            self.shut()

    def shut(self) -> None:
        """Mark the last ledger, which was left open, as closed in its row."""
        self.rows[-1] = _closed(self.rows[-1], self._last)
        self._put(len(self.rows) - 1)

    def prepare(self, ledger_id: int) -> None:
        """Put the row of a ledger that is only prepared."""
        row = LaneLedger(ledger_id=ledger_id, state="prepared")
        number = len(self.rows)
        key = lane_ledger_key(self._topic.uid, self.partition, self.lane, number)
        self._cluster.store.change(key, encode_row(row))

    async def purge(self, number: int) -> None:
        """Remove a ledger, row and record."""
        key = lane_ledger_key(self._topic.uid, self.partition, self.lane, number)
        record = ledger_key(self.rows[number].ledger_id)
        await self._cluster.store.transact([Delete(key), Delete(record)])

    def delete(self, number: int, removed: Sequence[Removed]) -> None:
        """Mark messages of a closed ledger as deleted in its row."""
        row = msgspec.structs.replace(self.rows[number], removed=list(removed))
        self.rows[number] = row
        self._put(number)
        self.messages = [each for each in self.messages if not _is_deleted(each, row)]

    def note(self, sent: Sequence[Sent], entry: int, *, batched: bool, created_ms: int) -> None:
        ledger_id = self.rows[-1].ledger_id
        for index, each in enumerate(sent):
            place = MessageId(ledger_id, entry, self.partition, index if batched else -1)
            laid = Laid(place, self.lane, self._version + entry, each, created_ms)
            self.messages.append(laid)

    def of_ledger(self, number: int) -> list[Laid]:
        ledger_id = self.rows[number].ledger_id
        return [each for each in self.messages if each.id.ledger_id == ledger_id]

    def _put(self, number: int) -> None:
        key = lane_ledger_key(self._topic.uid, self.partition, self.lane, number)
        self._cluster.store.change(key, encode_row(self.rows[number]))
        self._put_record()

    def _put_record(self) -> None:
        key = lane_key(self._topic.uid, self.partition, self.lane)
        record = LaneRecord(epoch=1, current=len(self.rows) - 1, next_version=self._version)
        self._cluster.store.change(key, encode_row(record))


class LaidLedger:
    """A ledger of a lane, being written."""

    def __init__(
        self, lane: LaidLane, ledger: LedgerWriter, batched: bool, created_ms: int
    ) -> None:
        self.entries = 0
        self.sent: list[Sent] = []
        self.created_ms = created_ms
        self.ledger = ledger
        self._lane = lane
        self._batched = batched

    async def send(self, batch: Sequence[Sent]) -> None:
        """Append one entry; when it returns it is acknowledged."""
        if batch:
            payload = native_batch.encode(
                columns_of(batch),
                0,
                len(batch),
                batched=self._batched,
                producer=b"p",
                sequence=len(self._lane.messages),
                created_ms=self.created_ms,
            )
        else:
            payload = native_batch.encode_control(BatchKind.LANE_STATE, b"state")
        entry = await self.ledger.append(payload)
        self._lane.note(batch, entry, batched=self._batched, created_ms=self.created_ms)
        self.sent += batch
        self.entries += 1


def _is_deleted(laid: Laid, row: LaneLedger) -> bool:
    at = laid.id.entry_id, max(laid.id.batch_index, 0)
    return laid.id.ledger_id == row.ledger_id and any(
        (each.entry, each.skip) <= at < (each.stop_entry, each.stop_skip) for each in row.removed
    )


def _closed(row: LaneLedger, writer: LaidLedger) -> LaneLedger:
    times = [each.event_time for each in writer.sent if each.event_time is not None]
    stamps = [each.timestamp for each in writer.sent if each.timestamp]
    return msgspec.structs.replace(
        row,
        state="closed",
        closed_ms=writer.created_ms,
        entries=writer.entries,
        messages=len(writer.sent),
        first_event_time=min(times, default=None),
        last_event_time=max(times, default=None),
        first_timestamp=min(stamps, default=0),
        last_timestamp=max(stamps, default=0),
    )


class LaidTopic:
    """A topic in a cluster in memory."""

    def __init__(
        self,
        cluster: MemoryCluster,
        client: Client,
        *,
        name: str = TOPIC,
        uid: int = 7,
        order: Literal["none", "event-time"] = "none",
        partitions: int = 0,
        timesync: bool = False,
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.record = TopicRecord(
            name=name,
            uid=uid,
            order=order,
            partitions=partitions,
            timesync=timesync,
            replication=1,
        )
        self.lanes: list[LaidLane] = []
        self.put()

    def put(self) -> None:
        key = topic_key(self.record.name)
        self.cluster.store.change(key, encode_row(self.record))

    def lane(self, partition: int = -1, lane: int = 0) -> LaidLane:
        """Make a lane."""
        made = LaidLane(self.cluster, self.client, self.record, partition, lane)
        self.lanes.append(made)
        return made


def said(values: Sequence[str], *, times: Sequence[int] | None = None) -> list[Sent]:
    """Messages of a batch."""
    given: Sequence[int | None] = [None] * len(values) if times is None else times
    return [Sent(v.encode(), event_time=t) for v, t in zip(values, given, strict=True)]


def batches_of(prefix: str, sizes: Sequence[int]) -> list[list[Sent]]:
    """Batches of these sizes with values prefix0, prefix1, ...; 0 makes a control entry."""
    found: list[list[Sent]] = []
    count = 0
    for size in sizes:
        found.append(said([f"{prefix}{count + i}" for i in range(size)]))
        count += size
    return found


@asynccontextmanager
async def laid_topic(**settings: object) -> AsyncIterator[LaidTopic]:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        yield LaidTopic(cluster, client, **settings)  # type: ignore[arg-type]  # as LaidTopic has


async def some_lane(topic: LaidTopic, partition: int = -1, lane: int = 0) -> LaidLane:
    """Three closed ledgers; control entries at the beginning of each and in between."""
    made = topic.lane(partition, lane)
    await made.lay(*batches_of("a", [0, 3, 1, 0, 2]))
    await made.lay(*batches_of("b", [0, 2]))
    await made.lay(*batches_of("c", [0, 1, 4]))
    return made


async def read_all(reader: TopicReader) -> list[Message]:
    return [message async for message in reader]


def same(found: Sequence[Message], expected: Sequence[Laid]) -> bool:
    return [(m.id, m.lane, m.version, m.value) for m in found] == [
        (e.id, e.lane, e.version, e.sent.value) for e in expected
    ]
