"""A replay into a topic: each message once, whatever is killed meanwhile.

    chunk ──► rows of each partition ──► numbers behind the last ──► a producer with a name

The producer's name is the run's, and in each partition its messages are numbered from 0 in
the order of the replay, which is the same on every run. So what is sent again, because the
record of the replay is a little behind, has the numbers that it had: what the lane has, the
producer knows. A lane forgets numbers after some hours; then they are read back from it.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from ledger_client.errors import LedgerError, Retryable
from ledger_client.replay.shares import indexes_of, shares_of
from ledger_client.replay.source import Chunk
from ledger_client.replay.target import WHOLE, Reached, sums_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import ProducerBusy, SendUnknown
from ledger_client.topics.lanes import lane_state
from ledger_client.topics.lanes.lane_lease import LEASE_S
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.reading.times import PublishTime
from metadata.replays import ReplayRecord
from metadata.topics import TopicRecord
from native.checksum import Checksum

BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 4000
RETRY_S = 60.0
"""For what fails and may succeed later."""
PAUSE_S = 0.5
CLOCKS_APART_MS = 10 * 60 * 1000
"""Between hosts that ran the replay, at most: nothing of it is older than that."""


class TopicTarget:
    """Sends to the partitions of a topic; see Target. Made by open_topic_target()."""

    def __init__(
        self,
        client: TopicClient,
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
        self._client = client
        self._topic = topic
        self._producer = producer
        self._indexes = indexes_of(record.target_partitions)
        self._one_to_one = record.one_to_one
        self._started_ms = record.started_ms
        silent_ms = client.clock.now_ms() - record.updated_ms
        self._may_be_forgotten = resumed and silent_ms > lane_state.IDLE_S * 500
        self._keep_ids = keep_ids
        self._kept: dict[int, int] = {}
        """in each partition, how many messages it has"""

    def reached(self) -> None:
        """Return nothing: the record tells where to go on, and the lanes what is there."""

    def batch_of(self, chunk: Chunk) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the messages with arrow.SCHEMA, and with their ids in headers if asked for."""
        batch = chunk.record_batch()
        if not self._keep_ids:
            return batch
        from ledger_client.replay.columns import with_ids

        return with_ids(batch)

    async def put(self, batch: Any, reached: Reached | None) -> bool:  # noqa: ANN401
        """Send a batch, and return when it is durable. Raises as Producer.send_many()."""
        from ledger_client.replay.columns import Given

        given = Given(batch)
        columns = given.columns
        whole = self.sent.get(WHOLE, Checksum()).add(columns)
        sums: dict[int, Checksum] = {WHOLE: whole}
        shares: list[tuple[int, Any, int]] = []
        shared = shares_of(batch, columns, self._indexes, one_to_one=self._one_to_one)
        for index, rows in shared:
            before = self.sent.get(index, Checksum())
            sums[index] = before.add(columns, rows)
            shares.append(
                (index, batch if rows is None else batch.take(_arrow(rows)), before.count)
            )
        await self._send_all(shares)
        self.sent |= sums
        self.bytes += given.size
        return True

    async def finish(self, reached: Reached) -> None:
        """Nothing is left to do: what was put is durable."""

    async def _send_all(self, shares: Sequence[tuple[int, Any, int]]) -> None:
        """Send to all partitions at once; the first failure is raised when all have ended."""
        failures: list[LedgerError] = []

        async def send(index: int, batch: Any, number: int) -> None:  # noqa: ANN401
            try:
                await self._send(index, batch, number)
            except LedgerError as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for share in shares:
                nursery.start_soon(send, *share)
        if failures:
            raise failures[0]

    async def _send(self, index: int, batch: Any, number: int) -> None:  # noqa: ANN401
        """Send a batch whose first message has that number, but for what is there already."""
        if index not in self._kept:
            self._kept[index] = await self._look(index, number)
        known = min(max(self._kept[index] - number, 0), batch.num_rows)
        self.repeated += known
        if known == batch.num_rows:
            return
        from ledger_client.replay.columns import Given

        given, first = Given(batch.slice(known)), number + known
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
        """Return how many messages a partition has, of which *acknowledged* are known."""
        known = await self._producer.last_sequence(index) + 1
        if known > acknowledged or (known == acknowledged and not self._may_be_forgotten):
            return known
        # The lane has forgotten the producer, or lost what was acknowledged.
        async with self._client.topic_reader(
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
    client: TopicClient,
    topic: TopicRecord,
    record: ReplayRecord,
    *,
    resumed: bool,
    keep_ids: bool = False,
) -> AsyncIterator[TopicTarget]:
    """Send to a topic for the block, as the producer of the run of *record*.

    *resumed*: lanes that a process left without a word are waited for. Raises as
    TopicClient.producer().
    """
    async with AsyncExitStack() as stack:
        until = trio.current_time() + (LEASE_S + PAUSE_S if resumed else 0.0)
        producer: Producer | None = None
        while producer is None:
            entering = client.producer(
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
        yield TopicTarget(client, topic, producer, record, resumed=resumed, keep_ids=keep_ids)


async def read_back(
    client: TopicClient, topic: TopicRecord, record: ReplayRecord
) -> Mapping[int, Checksum]:
    """Return the checksum of what the producer of a run wrote, by partition.

    Raises as TopicReader.next_messages().
    """
    indexes = [index for index in sums_of(record.sent) if index != WHOLE]
    return {index: await _sum_of(client, topic, index, record.run) for index in indexes}


async def _sum_of(client: TopicClient, topic: TopicRecord, index: int, run: str) -> Checksum:
    import pyarrow.compute as pc

    from ledger_client.replay.columns import Given

    found = Checksum()
    async with client.topic_reader(topic.name, partitions=[index]) as reader:
        async for batch in reader.read_batches():
            own = batch.filter(pc.equal(batch.column("producer"), run))
            if own.num_rows:
                found = found.add(Given(own).columns)
    return found


def _arrow(rows: array[int]) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(rows)])
