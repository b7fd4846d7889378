"""What Spark's tasks do of a compaction. PySpark pickles Work and sends it to executors.

Tasks yield reports, or candidates by key. What pass 1 noted of a lane goes to the task of pass 2
beside the candidates: it is its own winner, as nothing else has its mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial

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
from ledger_client.topics.jobs.staging import JobStage
from native.latest import Survivors
from native.route import murmur3

PAGES_MAX = 2
"""Pages of candidates that wait for Spark."""
CANDIDATE = -1
"""The mark of candidates; that of a lane's notes is the lane's own."""
Marked = tuple[int, bytes]
"""A mark and a key."""
Contender = tuple[int, int, int, int, bool, bytes]
"""A candidate without its key, and a lane's notes or nothing: the greater one wins."""
Page = list[tuple[Marked, Contender]]
Pages = trio.MemoryReceiveChannel[Page | LedgerError]


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

    def compact(self, numbers: Iterable[int]) -> Iterator[bytes]:
        """Compact partitions, those of the tasks *numbers*, and yield reports."""
        with without_stack():
            for partitions in self._partitions(numbers):
                yield from map(msgspec.msgpack.encode, trio.run(self._compact, partitions))

    def find(self, numbers: Iterable[int]) -> Iterator[tuple[Marked, Contender]]:
        """Yield the candidates of partitions, and what was noted of their lanes."""
        with without_stack():
            portal = Portal(partial(connecting.connect, self._url))
            try:
                for partitions in self._partitions(numbers):
                    for partition in partitions:
                        yield from self._find(portal, partition)
            finally:
                portal.close()

    def write(self, some: Iterable[tuple[int, Contender]]) -> Iterator[bytes]:
        """Take winners, and yield reports of the partitions whose lanes came with them."""
        with without_stack():
            winners = _Winners()
            for _, winner in some:
                winners.take(winner)
            if winners.notes:
                yield from map(msgspec.msgpack.encode, trio.run(self._write, winners))

    def _partitions(self, numbers: Iterable[int]) -> Iterator[Sequence[PartitionPlan]]:
        for number in numbers:
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

    def _find(
        self, portal: Portal[TopicClient], partition: PartitionPlan
    ) -> Iterator[tuple[Marked, Contender]]:
        with portal.hold(self._pages(portal.value, partition)) as pages:
            following = partial(_following, pages)
            while (page := portal.call(following)) is not None:
                yield from page

    @asynccontextmanager
    async def _pages(self, client: TopicClient, partition: PartitionPlan) -> AsyncIterator[Pages]:
        """Lend candidates and notes, found by a task that is a bounded way ahead."""
        send, receive = trio.open_memory_channel[Page | LedgerError](PAGES_MAX)

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
                            await send.send(_contenders(page))
                    await send.send(_notes(found))
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

    def take(self, winner: Contender) -> None:
        """Take one of them."""
        _, part, lane, ordinal, tombstone, noted = winner
        if noted:
            self.notes[part, lane] = msgspec.msgpack.decode(noted, type=LaneNotes)
            return
        bits = self._bits.setdefault((part, lane), bytearray())
        place = ordinal >> 3
        if place >= len(bits):
            bits.extend(bytes(place + 1 + len(bits) // 2 - len(bits)))
        bits[place] |= 1 << (ordinal & 7)
        self._keys[part] = self._keys.get(part, 0) + (not tombstone)

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


def partition_of(marked: Marked) -> int:
    """Return a number by which Spark chooses a task: the same in every process."""
    return murmur3(marked[1]) + max(marked[0], 0)


async def _following(pages: Pages) -> Page | None:
    page = await anext(pages, None)
    if isinstance(page, LedgerError):
        raise page
    return page


def _contenders(page: Sequence[Candidate]) -> Page:
    return [((CANDIDATE, key), (*rest, b"")) for key, *rest in page]  # type: ignore[misc] # all of them


def _notes(found: PartitionFound) -> Page:
    """Return what pass 1 noted of a partition's lanes."""
    return [
        (
            (each.lane.partition << 31 | each.lane.lane, b""),
            (
                0,
                each.lane.partition,
                each.lane.lane,
                0,
                False,
                msgspec.msgpack.encode(LaneNotes.of(each, found.foreign)),
            ),
        )
        for each in found.lanes
    ]
