"""A batch of a partition: messages that share an entry, from the first one until it is settled."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Protocol

from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane_state import SealedBatch

UNKNOWN = -2
"""Place in its batch of a duplicate whose batch is not remembered."""
NOWHERE = (-1, -1)


class BatchSignal(Protocol):
    """Wakes the tasks that wait for a batch: a trio.Event, or a test's record."""

    def set(self) -> None:
        """Wake them, and let those that come later pass."""

    async def wait(self) -> None:
        """Return once set() was called, at once if that is past."""


Columns = tuple[
    list[bytes | None], list[bytes | None], list[int | None], list[Mapping[str, bytes] | None]
]
NO_COLUMNS: Columns = ([], [], [], [])


class Batch:
    """Messages of one partition that share an entry.

    Attributes:
        columns: values, keys, event times and headers, until it is sealed.
        sealed: the encoded batch for the lane, once sealed.
        sequence: number of its first message, -1 if the producer does not count.
        first_timestamp: of its first message; the others follow. 0 for none, or not yet.
        room: bytes of the producer's buffer that it gives back when it is settled.
        is_settled: it is durable, or it failed.
        done: set once it is settled.
        failure: the error, if it failed.
        place: ledger and entry id, once durable.
        waiting: how many tasks wait for it.
        withdrawn: places of messages that were taken back; those behind them moved up.
        is_shared: a task waits for a message of it that another one sent: a duplicate.
        followed: a task knows, or will ask, its outcome, even if none waits now.
        began: when its first message came, by time.perf_counter().
    """

    __slots__ = (
        "began",
        "columns",
        "count",
        "done",
        "failure",
        "first_timestamp",
        "followed",
        "is_settled",
        "is_shared",
        "partition",
        "place",
        "room",
        "sealed",
        "sequence",
        "size",
        "waiting",
        "withdrawn",
    )

    def __init__(
        self,
        partition: int,
        done: BatchSignal,
        *,
        sequence: int = -1,
        sealed: SealedBatch | None = None,
    ) -> None:
        """Begin a batch, or take one that is encoded already and needs no room."""
        self.partition = partition
        self.sequence = sequence
        self.count = self.size = self.room = self.waiting = self.first_timestamp = 0
        self.began = 0.0
        self.sealed = sealed
        if sealed is None:
            self.columns: Columns = ([], [], [], [])
        else:
            self.columns = NO_COLUMNS
            self.count, self.size = sealed.count, sealed.size
        self.done = done
        self.failure: LedgerError | None = None
        self.place = NOWHERE
        self.is_settled = self.followed = self.is_shared = False
        self.withdrawn: list[int] = []

    @property
    def end(self) -> tuple[int | None, int]:
        """The event time of its last message, and the number behind it, until it is settled.

        The time is that of an ordered topic, where it is the greatest; the number is that of a
        producer that counts. The lane may have the batch, but not yet have encoded it.
        """
        time = self.columns[2][-1] if self.sealed is None else self.sealed.last_event_time
        return time, self.sequence + self.count

    @property
    def next_place(self) -> int:
        """The place of the next message, while it gathers; each place is given once."""
        return self.count + len(self.withdrawn)

    def final_place(self, place: int) -> int:
        """Return where the message that was put at *place* is in the entry."""
        return place - bisect_left(self.withdrawn, place)

    def withdraw(self, place: int, size: int, *, keeps_place: bool) -> None:
        """Take back the message at *place*, with *size* bytes of room, before it is encoded.

        *keeps_place*: no later message gets its place.
        """
        position = self.final_place(place)
        for column in self.columns:
            del column[position]
        self.count -= 1
        self.size -= size
        self.room -= size
        if keeps_place:
            insort(self.withdrawn, place)
