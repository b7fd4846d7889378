"""A replay to whoever takes messages as they come, such as standard output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.replay import Aim, run_once
from ledger_client.replay.report import Report
from ledger_client.replay.source import Chunk
from ledger_client.replay.target import WHOLE, Reached
from ledger_client.topics.client import TopicClient
from ledger_client.topics.messages import Message
from metadata.replays import LaneMark, ReplayRecord
from native.checksum import Checksum

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pyarrow as pa


class Part(NamedTuple):
    """Consecutive messages, as a RecordBatch and, if they are wanted, as objects."""

    batch: pa.RecordBatch
    messages: Sequence[Message]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return int(self.batch.num_rows)

    def slice(self, start: int, count: int) -> Part:
        """Return *count* of them from *start* on."""
        return Part(self.batch.slice(start, count), self.messages[start : start + count])


Write = Callable[[Part], Awaitable[None]]


class StreamTarget:
    """Writes what comes; see Target. Nothing of it can be resumed or verified."""

    def __init__(self, write: Write, *, as_objects: bool) -> None:
        self.sent: dict[int, Checksum] = {WHOLE: Checksum()}
        self.bytes = 0
        self.repeated = 0
        self._write = write
        self._as_objects = as_objects

    def reached(self) -> list[LaneMark] | None:
        """Return nothing: it begins anew."""
        return None

    def batch_of(self, chunk: Chunk) -> Part:
        """Return the messages in the forms that are wanted."""
        return Part(chunk.record_batch(), chunk.messages() if self._as_objects else ())

    async def put(self, batch: Any, reached: Reached | None) -> bool:  # noqa: ANN401
        """Write the part *batch*. Raises as the writer does."""
        from ledger_client.replay.columns import Given

        given = Given(batch.batch)
        await self._write(batch)
        self.sent[WHOLE] = self.sent[WHOLE].add(given.columns)
        self.bytes += given.size
        return False

    async def finish(self, reached: Reached) -> None:
        """Nothing is left to do."""


async def replay_into_stream(
    client: TopicClient,
    names: Sequence[str],
    write: Write,
    options: ReplayOptions,
    *,
    as_objects: bool,
) -> Report:
    """Replay *names* to *write*, part by part. Raises as TopicClient.replay, and as *write*."""
    topics = [(await client.topics.get(name))[0] for name in names]
    options.check(topics)

    @asynccontextmanager
    async def open_it(record: ReplayRecord, resumed: bool) -> AsyncIterator[StreamTarget]:
        yield StreamTarget(write, as_objects=as_objects)

    return await run_once(client, topics, Aim("a stream", open_it), options)
