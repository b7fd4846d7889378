"""What Spark's tasks do of a compaction. PySpark pickles Work and sends it to executors.

A row that a task yields is a report, or a candidate of a key. What pass 1 noted of a lane goes
to the task of pass 2 as a row, too: it is its own winner, as no other row has its mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from ledger_client import connecting
from ledger_client.background import Background
from ledger_client.compaction.candidates import Candidate, candidates
from ledger_client.compaction.partition import (
    Found,
    PartitionFound,
    PartitionResult,
    compact_partition,
    find_survivors,
    floors_of,
    result_of,
    write_survivors,
)
from ledger_client.compaction.plan import CompactionPlan, PartitionPlan
from ledger_client.compaction.runner import elsewhere
from ledger_client.compaction.scan import EntryTable
from ledger_client.errors import LedgerError
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.topics.client import TopicClient
from ledger_client.topics.staging import JobStage
from native.latest import Survivors

RESULTS = "result binary"
CANDIDATES = (
    "mark long, key binary, place long, part int, lane int, ordinal long, tombstone boolean,"
    " notes binary"
)
PAGES_MAX = 2
"""Pages of candidates that wait for Spark."""
CANDIDATE = -1
"""The mark of candidates; that of a lane's notes is the lane's own."""


class LaneNotes(msgspec.Struct, frozen=True):
    """What pass 1 noted of a lane."""

    counts: bytes
    orders: bytes
    keyless: bytes
    last_order: int
    foreign: int
    """of the partition"""

    @classmethod
    def of(cls, found: Found, foreign: int) -> LaneNotes:
        """Return what is to be sent."""
        table = found.table
        return cls(
            table.counts.tobytes(),
            table.orders.tobytes(),
            bytes(table.keyless),
            table.last_order,
            foreign,
        )

    def table(self) -> EntryTable:
        """Return what was sent."""
        table = EntryTable()
        table.counts.frombytes(self.counts)
        table.orders.frombytes(self.orders)
        table.keyless += self.keyless
        table.last_order = self.last_order
        return table


class Work:
    """A compaction as tasks have it."""

    def __init__(
        self, url: str, plan: CompactionPlan, stage: JobStage, *, tasks: int, memory_max: int
    ) -> None:
        self._url = url
        self._plan = plan
        self._stage = stage
        self._tasks = tasks
        self._memory_max = memory_max

    def compact(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Compact partitions, those of each task, and yield reports."""
        with without_stack():
            for partitions in self._partitions(batches):
                yield _reports(trio.run(self._compact, partitions))

    def find(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the candidates of partitions, and what was noted of their lanes."""
        with without_stack():
            portal = Portal(partial(connecting.connect, self._url))
            try:
                for partitions in self._partitions(batches):
                    for partition in partitions:
                        yield from self._find(portal, partition)
            finally:
                portal.close()

    def write(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Take winners, and yield reports of the partitions whose lanes came with them."""
        with without_stack():
            winners = _Winners()
            for batch in batches:
                winners.take(batch)
            if winners.notes:
                yield _reports(trio.run(self._write, winners))

    def _partitions(self, batches: Iterable[Any]) -> Iterator[Sequence[PartitionPlan]]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self._plan.partitions[number :: self._tasks]

    async def _compact(self, partitions: Sequence[PartitionPlan]) -> list[PartitionResult]:
        async with connecting.connect(self._url) as client:
            return [
                await compact_partition(
                    client, self._plan, each, self._stage, memory_max=self._memory_max
                )
                for each in partitions
            ]

    # --- keys in several partitions -------------------------------------------------

    def _find(self, portal: Portal[TopicClient], partition: PartitionPlan) -> Iterator[Any]:
        with portal.hold(self._pages(portal.value, partition)) as pages:
            following = partial(_following, pages)
            while (page := portal.call(following)) is not None:
                yield page

    @asynccontextmanager
    async def _pages(
        self, client: TopicClient, partition: PartitionPlan
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Any]]:
        """Lend pages for Spark, made by a task that is a bounded way ahead."""
        send, receive = trio.open_memory_channel[Any](PAGES_MAX)

        async def make() -> None:
            async with send:
                try:
                    found = await find_survivors(
                        client,
                        self._plan,
                        partition,
                        memory_max=self._memory_max,
                        tombstones=True,
                    )
                    async with aclosing(candidates(client, found)) as some:
                        async for page in some:
                            await send.send(_candidate_page(page))
                    await send.send(_notes_page(found))
                except LedgerError as failure:
                    await send.send(failure)

        async with Background() as nursery:
            nursery.start_soon(make)
            with receive:
                yield receive

    async def _write(self, winners: _Winners) -> list[PartitionResult]:
        results: list[PartitionResult] = []
        async with connecting.connect(self._url) as client:
            for partition in self._plan.partitions:
                if (partition.partition, partition.lanes[0].lane) not in winners.notes:
                    continue
                found = winners.found(partition)
                floors = floors_of(found.lanes, elsewhere(self._plan, partition.partition))
                result = await write_survivors(
                    client,
                    self._plan,
                    found,
                    self._stage,
                    result_of(partition, found),
                    floors=floors,
                )
                results.append(msgspec.structs.replace(result, foreign=found.foreign))
        return results


class _Winners:
    """Winners as they come, in any order, and what was noted of their lanes."""

    def __init__(self) -> None:
        self.notes: dict[tuple[int, int], LaneNotes] = {}
        self._bits: dict[tuple[int, int], bytearray] = {}
        self._keys: dict[int, int] = {}

    def take(self, batch: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Take some rows."""
        _places, parts, lanes, ordinals, tombstones, notes = (
            column.to_pylist() for column in batch.columns
        )
        for part, lane, ordinal, tombstone, noted in zip(
            parts, lanes, ordinals, tombstones, notes, strict=True
        ):
            if noted is not None:
                self.notes[part, lane] = msgspec.msgpack.decode(noted, type=LaneNotes)
                continue
            bits = self._bits.setdefault((part, lane), bytearray())
            if ordinal >> 3 >= len(bits):
                bits.extend(bytes((ordinal >> 3) + 1 + len(bits) // 2 - len(bits)))
            bits[ordinal >> 3] |= 1 << (ordinal & 7)
            if not tombstone:
                self._keys[part] = self._keys.get(part, 0) + 1

    def found(self, partition: PartitionPlan) -> PartitionFound:
        """Return what pass 1 found out, less what lost."""
        lanes: list[Found] = []
        foreign = 0
        for lane in partition.lanes:
            noted = self.notes[lane.partition, lane.lane]
            table = noted.table()
            survivors = Survivors(table.messages)
            bits = self._bits.get((lane.partition, lane.lane), bytearray())[: len(survivors.bits)]
            survivors.bits[: len(bits)] = bits
            lanes.append(Found(lane, table, survivors))
            foreign = noted.foreign
        return PartitionFound(lanes, self._keys.get(partition.partition, 0), foreign)


async def _following(pages: trio.MemoryReceiveChannel[Any]) -> Any:  # noqa: ANN401
    page = await anext(pages, None)
    if isinstance(page, LedgerError):
        raise page
    return page


def _reports(results: Sequence[PartitionResult]) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow as pa

    packed = [msgspec.msgpack.encode(each) for each in results]
    return pa.record_batch({"result": pa.array(packed, pa.binary())})


def _candidate_page(page: Sequence[Candidate]) -> Any:  # noqa: ANN401 - pyarrow has no types
    keys, orders, parts, lanes, ordinals, tombstones = zip(*page, strict=True)
    count = len(page)
    return _page(
        [CANDIDATE] * count, keys, orders, parts, lanes, ordinals, tombstones, [None] * count
    )


def _notes_page(found: PartitionFound) -> Any:  # noqa: ANN401 - pyarrow has no types
    lanes = [(each.lane.partition, each.lane.lane) for each in found.lanes]
    notes = [msgspec.msgpack.encode(LaneNotes.of(each, found.foreign)) for each in found.lanes]
    count = len(lanes)
    marks = [partition << 31 | lane for partition, lane in lanes]
    parts, numbers = zip(*lanes, strict=True)
    zeros = [0] * count
    return _page(marks, [b""] * count, zeros, parts, numbers, zeros, [False] * count, notes)


def _page(*columns: Sequence[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow as pa

    kinds = {
        "mark": pa.int64(),
        "key": pa.binary(),
        "place": pa.int64(),
        "part": pa.int32(),
        "lane": pa.int32(),
        "ordinal": pa.int64(),
        "tombstone": pa.bool_(),
        "notes": pa.binary(),
    }
    arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds.values(), strict=True)]
    return pa.record_batch(arrays, names=list(kinds))
