"""Lanes in memory, with failures, delays and fencing on demand; for the producer's tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import trio

from ledger_client.errors import LedgerError, ProducerClosed, SendUnknown
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.routes import Route
from ledger_client.topics.producing.producer import Producer, open_producer
from ledger_client.topics.producing.producer_options import ProducerOptions
from metadata.time.timestamps import TimestampRange
from metadata.topics import TopicRecord
from native.batch import decode
from native.columns import null_places

FIRST_LEDGER = 100
TOPIC = "shop/orders"


class Kept(NamedTuple):
    """A message as a reader would find it."""

    id: MessageId
    value: bytes | None
    key: bytes | None
    event_time: int | None
    headers: dict[str, bytes]
    sequence: int


class Failing(NamedTuple):
    """The plan of the next append: keep so many of its batches, then fail with the lane."""

    failure: LedgerError
    kept: int


class FakeLane:
    """One writer of a partition's only lane; ledger id 100 + partition, epoch rises."""

    lane = 0

    def __init__(self, lanes: FakeLanes, partition: int, epoch: int) -> None:
        self.epoch = epoch
        self._lanes = lanes
        self._partition = partition
        self._turn = 0
        self._done = 0
        self._moved = trio.lowlevel.ParkingLot()
        self._failure: LedgerError | None = None
        self._unkept: tuple[str, list[Route]] | None = None

    @property
    def last_event_time(self) -> int | None:
        times = [batch.last_event_time for batch in self._lanes.kept[self._partition]]
        return max((time for time in times if time is not None), default=None)

    def last_sequence(self, producer: str) -> int:
        kept = self._lanes.kept[self._partition]
        return max((b.sequence for b in kept if b.producer == producer), default=-1)

    def routes(self, producer: str) -> Sequence[Route]:
        return self._lanes.routes[self._partition, producer]

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        self._unkept = (producer, list(routes))

    async def keep_routes(self, producer: str, routes: Sequence[Route]) -> None:
        self.set_routes(producer, routes)
        await self.append([])

    def version_after(self, place: tuple[int, int]) -> int:
        return place[1] + 1

    async def append(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        """Keep the batches after the delay, calls in their order."""
        if self._failure is not None:
            raise self._failure
        turn = self._turn
        self._turn += 1
        self._lanes.calls.append(len(batches))
        await trio.sleep(self._lanes.delay_s)
        await self._lanes.gate.wait()
        while self._done < turn and self._failure is None:
            await self._moved.park()
        try:
            return self._keep(batches)
        finally:
            self._done = turn + 1
            self._moved.unpark_all()

    def fence(self, failure: LedgerError) -> None:
        """Fail now and for good."""
        self._failure = self._failure or failure
        self._moved.unpark_all()

    def _keep(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        if self._failure is not None:
            raise self._failure
        kept = self._lanes.kept[self._partition]
        failing = self._lanes.failing.pop(0) if self._lanes.failing else None
        count = len(batches) if failing is None else failing.kept
        if self._unkept is not None and (count or failing is None):
            self._lanes.routes[self._partition, self._unkept[0]] = self._unkept[1]
            self._unkept = None
        first = len(kept)
        kept.extend(batches[:count])
        if failing is not None:
            self.fence(failing.failure)
            raise failing.failure
        ledger_id = FIRST_LEDGER + self._partition
        return [(ledger_id, entry_id) for entry_id in range(first, len(kept))]


class FakeLanes:
    """The lanes of a topic.

    Attributes:
        kept: batches by partition, in the order of the lane.
        calls: how many batches each call of append had.
        opened: partition and number of each opening.
        failing: what the next appends do, instead of keeping everything.
        refusal: why no lane can be opened now.
        gate: appends wait for it.
        left: how many lanes were left.
        oracle: allots timestamps.
    """

    def __init__(self, *, delay_s: float = 0.001, oracle: Counted | None = None) -> None:
        self.oracle = oracle or Counted()
        self.delay_s = delay_s
        self.kept: dict[int, list[SealedBatch]] = defaultdict(list)
        self.routes: dict[tuple[int, str], list[Route]] = defaultdict(list)
        self.calls: list[int] = []
        self.opened: list[tuple[int, int | None]] = []
        self.failing: list[Failing] = []
        self.refusal: LedgerError | None = None
        self.gate = trio.Event()
        self.gate.set()
        self.left = 0
        self.open_lanes: dict[int, FakeLane] = {}

    def shut(self) -> None:
        """Make appends wait until gate.set()."""
        self.gate = trio.Event()

    def fail_next(self, reason: str = "the bookies are away", *, kept: int = 0) -> None:
        """Leave the outcome of the next append unknown; *kept* of its batches are kept."""
        unknown = SendUnknown(TOPIC, partition=-1, lane=0, count=1, reason=reason)
        self.failing.append(Failing(unknown, kept))

    @asynccontextmanager
    async def open(self, partition: int, number: int | None) -> AsyncIterator[FakeLane]:
        self.opened.append((partition, number))
        await trio.sleep(self.delay_s)
        if self.refusal is not None:
            raise self.refusal
        epoch = sum(1 for index, _ in self.opened if index == partition)
        lane = self.open_lanes[partition] = FakeLane(self, partition, epoch)
        try:
            yield lane
        finally:
            self.left += 1
            lane.fence(ProducerClosed(TOPIC))

    def messages(self, partition: int = -1) -> list[Kept]:
        """Return the messages of a partition."""
        found = []
        for entry_id, batch in enumerate(self.kept[partition]):
            header, columns = decode(batch.payload)
            none: list[None] = [None] * columns.count
            times: list[int | None] = list(none)
            if columns.event_times is not None:
                times[:] = columns.event_times
            if columns.event_time_validity is not None:
                for place in null_places(columns.event_time_validity, columns.count):
                    times[place] = None
            keys = none if columns.keys is None else columns.keys.to_list()
            headers = columns.headers.to_list() if columns.headers else [{}] * columns.count
            for place, value in enumerate(columns.values.to_list()):
                at = MessageId(
                    FIRST_LEDGER + partition, entry_id, partition, place if header.batched else -1
                )
                sequence = -1 if header.sequence < 0 else header.sequence + place
                found.append(Kept(at, value, keys[place], times[place], headers[place], sequence))
        return found

    def values(self, partition: int = -1) -> list[bytes | None]:
        """Return the values that a partition holds."""
        return [message.value for message in self.messages(partition)]

    def sizes(self, partition: int = -1) -> list[int]:
        """Return the message count of each batch in a partition."""
        return [batch.count for batch in self.kept[partition]]


def make_record(*, partitions: int = 0, order: str = "none", timesync: bool = False) -> TopicRecord:
    """Return a topic."""
    return TopicRecord(name=TOPIC, uid=1, partitions=partitions, order=order, timesync=timesync)  # type: ignore[arg-type]


class Counted:
    """Timestamps that count from 1 up.

    Attributes:
        asked: how many of them each call wanted.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []

    @property
    def greatest(self) -> int:
        return sum(self.asked)

    async def allocate(self, count: int = 1) -> TimestampRange:
        await trio.lowlevel.checkpoint()
        self.asked.append(count)
        return TimestampRange(sum(self.asked[:-1]) + 1, count)


def producing(
    lanes: FakeLanes, topic: TopicRecord | None = None, **options: object
) -> AbstractAsyncContextManager[Producer]:
    """Write a topic whose lanes are *lanes*."""
    return open_producer(
        topic or make_record(),
        ProducerOptions(**options),  # type: ignore[arg-type]
        lanes.open,
        lanes.oracle,
    )
