"""The destination of a replay: the interface of all targets, and how one is opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ledger_client.errors import ReplayConflict
from ledger_client.jobs.replay.log import WHOLE, ReplayLog, ReplayReport, sums_of
from ledger_client.jobs.replay.source import ReplayChunk
from ledger_client.topics.messages import Message
from metadata.replays import Engine, LaneMark, ReplayRecord
from native.checksum import Checksum

if TYPE_CHECKING:
    import pyarrow as pa

Reached = Callable[[], list[LaneMark]]


class ReplayBatch(NamedTuple):
    """Consecutive messages as a RecordBatch and, if a stream wants them, as objects."""

    batch: pa.RecordBatch
    messages: Sequence[Message] = ()

    @property
    def num_rows(self) -> int:
        """The number of messages, under the name that a RecordBatch has for it."""
        return int(self.batch.num_rows)

    def slice(self, start: int, count: int) -> ReplayBatch:
        """Return *count* messages from *start* on."""
        return ReplayBatch(self.batch.slice(start, count), self.messages[start : start + count])


class ReplayTarget(Protocol):
    """Takes messages in the order of the replay.

    Attributes:
        sent: checksums of all messages taken since the replay began, by part.
        bytes: of their values and keys.
        repeated: messages that were sent again although it had them.
    """

    sent: dict[int, Checksum]
    bytes: int
    repeated: int

    def reached(self) -> list[LaneMark] | None:
        """Return the marks reached, or `None` if only the record knows; called once opened."""

    def batch_of(self, chunk: ReplayChunk) -> ReplayBatch:
        """Return a chunk with the columns that put() takes."""

    async def put(self, batch: ReplayBatch, reached: Reached | None) -> bool:
        """Take messages; return whether everything so far is durable.

        *reached* returns the marks after the batch; it is `None` within an entry, which has
        none. Raises LedgerError, or OSError for files.
        """

    async def finish(self, reached: Reached) -> None:
        """Wait until all messages are durable. Raises as put()."""


Write = Callable[[ReplayBatch], Awaitable[None]]


class StreamTarget:
    """Passes messages to a function; see ReplayTarget. It can neither resume nor verify."""

    def __init__(self, write: Write, *, as_objects: bool) -> None:
        self.sent: dict[int, Checksum] = {WHOLE: Checksum()}
        self.bytes = 0
        self.repeated = 0
        self._write = write
        self._as_objects = as_objects

    def reached(self) -> list[LaneMark] | None:
        """Return `None`: a stream always begins anew."""
        return None

    def batch_of(self, chunk: ReplayChunk) -> ReplayBatch:
        """Return the messages in the wanted forms."""
        return ReplayBatch(chunk.record_batch(), chunk.messages() if self._as_objects else ())

    async def put(self, batch: ReplayBatch, reached: Reached | None) -> bool:
        """Write *batch*. Raises as the function does."""
        from ledger_client.jobs.replay.columns import CopiedColumns

        given = CopiedColumns(batch.batch)
        await self._write(batch)
        self.sent[WHOLE] = self.sent[WHOLE].add(given.columns)
        self.bytes += given.size
        return False

    async def finish(self, reached: Reached) -> None:
        """Do nothing, since put() returned only after the function had taken the batch."""


class Destination(NamedTuple):
    """The destination of a replay: a text that identifies it, and how to open it."""

    text: str
    open: Callable[[ReplayRecord, bool], AbstractAsyncContextManager[ReplayTarget]]
    """opens the target for a record, resumed or not"""
    uid: int = -1
    partitions: int = 0
    one_to_one: bool = False
    check: Callable[[ReplayRecord], None] | None = None
    """raises if a finished replay's messages are gone; blocks"""
    read_back: Callable[[ReplayRecord], Awaitable[Mapping[int, Checksum]]] | None = None
    """returns the checksums of the stored messages by part; `None` if it cannot be read back"""
    name_of: Callable[[int], str] = str
    """returns the name of a part for messages"""
    engine: Engine = "process"
    work: Callable[[ReplayLog, ReplayRecord], Awaitable[ReplayReport]] | None = None
    """replays the rest of a record by workers; `None` if this process does it by *open*"""
    forget: Callable[[ReplayRecord], Awaitable[None]] | None = None
    """ends the mark beside the target of a replay that is done or was begun anew"""


async def verify(aim: Destination, record: ReplayRecord) -> None:
    """Raise ReplayConflict if the target does not hold what was sent."""
    found = {} if aim.read_back is None else await aim.read_back(record)
    for part, sent in sorted(sums_of(record.sent).items(), reverse=True):  # WHOLE is the lowest
        if part in found and found[part] != sent:
            raise ReplayConflict.differs(
                record.sources[0].name,
                part=record.target + ("" if part == WHOLE else f", {aim.name_of(part)}"),
                sent=sent,
                found=found[part],
            )


def pin_of(mark: LaneMark) -> tuple[int, int, int]:
    """Return the pin for a lane from a mark on: partition, lane, ledger number."""
    return mark.partition, mark.lane, max(mark.number, 0)
