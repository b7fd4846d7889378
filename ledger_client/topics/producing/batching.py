"""A batch on its way: messages gathered, sealed into one entry's payload, acknowledged.

    add, add, add ──► encode ──► LaneWriter.append ──► acknowledge ─► all who wait go on
                                                   └─► fail ────────►

Who sends a message waits for its batch, at one event: so a thousand messages cost one
wait of the lane, and no object of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.message_id import NOT_BATCHED, MessageId
from native.batch import Columns, Compression, encode

UNKNOWN = -2
"""Place in its batch of a message whose batch is not remembered."""
NOWHERE = (-1, -1)
T = TypeVar("T")


class Manner(NamedTuple):
    """How a producer's batches are encoded."""

    compression: Compression
    batched: bool
    producer: bytes
    now_ms: Callable[[], int]
    """the time that batches are stamped with: the store's, whatever this host's clock says"""


class Batch:
    """Messages of one partition that share an entry.

    Attributes:
        done: set once the batch is acknowledged or failed.
        failure: why it failed, when it did.
        place: ledger and entry id, once acknowledged.
        sequence: number of its first message, -1 when the producer does not count.
        room: bytes of the producer's buffer that it gives back at its end.
        followed: somebody knows, or will look, what becomes of it, even if nobody waits.
        began: when it was begun, by time.perf_counter().
    """

    __slots__ = (
        "_columns",
        "began",
        "count",
        "done",
        "failure",
        "followed",
        "partition",
        "place",
        "room",
        "sealed",
        "sequence",
        "size",
    )

    def __init__(self, partition: int, *, sequence: int = -1) -> None:
        self.partition = partition
        self.sequence = sequence
        self.count = self.size = self.room = 0
        self.sealed: SealedBatch | None = None
        self.followed = False
        self.began = time.perf_counter()
        self.done = trio.Event()
        self.failure: LedgerError | None = None
        self.place = NOWHERE
        self._columns: _Lists = ([], [], [], [])

    @classmethod
    def of(cls, payload: bytes, partition: int, *, sequence: int = -1) -> Batch:
        """Return a batch that is encoded already and takes no room of the buffer."""
        batch = cls(partition, sequence=sequence)
        batch.sealed = SealedBatch.of(payload)
        batch.count, batch.size = batch.sealed.count, len(payload)
        return batch

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        size: int,
    ) -> int:
        """Take a message in; return its place."""
        values, keys, event_times, named = self._columns
        values.append(value)
        keys.append(key)
        event_times.append(event_time)
        named.append(headers)
        place = self.count
        self.count = place + 1
        self.size += size
        self.room += size
        return place

    def seal(self, manner: Manner, *, epoch: int) -> SealedBatch:
        """Return the batch encoded; no message can be added any more."""
        if self.sealed is None:
            values, keys, event_times, headers = self._columns
            self._columns = _NO_LISTS
            columns = Columns.of(
                values,
                keys=_unless_empty(keys),
                event_times=_unless_empty(event_times),
                headers=_unless_empty(headers),
            )
            self.sealed = SealedBatch.of(
                encode(
                    columns,
                    0,
                    self.count,
                    compression=manner.compression,
                    batched=manner.batched,
                    producer=manner.producer,
                    sequence=self.sequence,
                    epoch=epoch,
                    created_ms=manner.now_ms(),
                )
            )
        return self.sealed

    def acknowledge(self, place: tuple[int, int]) -> None:
        """The batch is durable there."""
        self.place = place
        self._end()

    def fail(self, failure: LedgerError) -> bool:
        """The batch is given up. Return whether somebody will learn why."""
        heard = self.followed or self.done.statistics().tasks_waiting > 0
        self.failure = failure
        self._end()
        return heard

    async def id_of(self, place: int) -> MessageId:
        """Wait for the acknowledgement; return the id of the message at *place*.

        Raises why the batch failed. Cancelled, it changes nothing.
        """
        await self.done.wait()
        if self.failure is not None:
            self.followed = True
            # One error, many who wait: each begins its own trace.
            raise self.failure.with_traceback(None)
        if place == UNKNOWN:
            return MessageId(-1, -1, self.partition, NOT_BATCHED)
        ledger_id, entry_id = self.place
        return MessageId(ledger_id, entry_id, self.partition, place)

    def _end(self) -> None:
        self._columns = _NO_LISTS
        self.sealed = None
        self.done.set()


_Lists = tuple[
    list[bytes | None],
    list[bytes | None],
    list[int | None],
    list[Mapping[str, bytes] | None],
]
_NO_LISTS: _Lists = ([], [], [], [])


def _unless_empty(column: list[T]) -> list[T] | None:
    """Return the column, None if there is nothing in it: then it costs no bytes."""
    nulls = cast(list[Any], column).count(None)
    return column if nulls < len(column) else None
