"""What the producer needs of a lane that is open for writing, and of its failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ledger_client.errors import LedgerError, ProducerFailed
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.routes import Route
from metadata.time.timestamps import TimestampRange


class Lane(Protocol):
    """A lane that is open: a LaneWriter, or a test's lane in memory."""

    @property
    def lane(self) -> int:
        """Number of the lane in its partition, from 0 up."""

    @property
    def epoch(self) -> int:
        """Rises with every writer of the lane; batches are encoded with it."""

    @property
    def last_event_time(self) -> int | None:
        """The greatest event time in the lane, `None` if it has none."""

    def last_sequence(self, producer: str) -> int:
        """Return the number of the producer's last message in it, -1 for none."""

    def routes(self, producer: str) -> Sequence[Route]:
        """Return the boundaries of the producer's numbers that the lane knows."""

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Keep the boundaries: durable before a batch that is appended next."""

    async def keep_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Make the boundaries durable. On return no other session had taken the lane.

        After any failure the lane must be left.
        """

    def version_after(self, place: tuple[int, int]) -> int:
        """Return a version after *place*, which is acknowledged; all before it is durable.

        With NOWHERE, a version after all that the lane had when it was opened.
        """

    async def append(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        """Make batches durable; return ledger and entry of each.

        They take their places in the lane before the call waits for anything. After any
        failure the lane must be left: the other calls that are under way fail too.
        """


class TimestampSource(Protocol):
    """Allots timestamps: the client's, or a test's."""

    @property
    def greatest(self) -> int:
        """The greatest timestamp that is known; whatever is asked for from now on is greater."""

    async def allocate(self, count: int = 1, /) -> TimestampRange:
        """Return so many consecutive timestamps. Raises LedgerError."""


OpenLane = Callable[[int, int | None], AbstractAsyncContextManager[Lane]]
"""Opens a lane of a partition: any one, or after a failure the same one by its number."""


def final_cause(failure: LedgerError) -> ProducerFailed | None:
    """Return the reason to leave the lane for good; `None` if it may be opened anew.

    A take-over may leave the outcome of batches unknown: then SendUnknown is the failure, and the
    take-over its cause. To open the lane anew would take it away from its new writer.
    """
    for found in (failure, failure.__cause__):
        if isinstance(found, ProducerFailed):
            return found
    return None
