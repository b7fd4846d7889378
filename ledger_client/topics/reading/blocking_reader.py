"""Reading topics without trio; see ledger_client/blocking.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING

from ledger_client.portal import Portal
from ledger_client.topics.client import TopicClient
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.reader import TopicReader
from ledger_client.topics.reading.starting import Position, Start

if TYPE_CHECKING:
    import pyarrow as pa


class BlockingTopicReader:
    """An iterator of Message; see ledger_client.TopicReader. One thread uses it.

    Messages are brought from trio's thread by the batch.
    """

    def __init__(self, portal: Portal[TopicClient], reader: TopicReader) -> None:
        self._portal = portal
        self._reader = reader
        self._ready: Iterator[Message] = iter(())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        for message in self._ready:
            return message
        self._ready = iter(self._portal.call(self._reader.next_messages))
        return next(self._ready)

    def read_batches(
        self, *, rows_min: int = 1000, rows_max: int = 50_000
    ) -> Iterator[pa.RecordBatch]:
        """Yield pyarrow RecordBatches."""
        self._portal.call(self._give_back)
        batches = self._reader.read_batches(rows_min=rows_min, rows_max=rows_max)

        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        while (batch := self._portal.call(following)) is not None:
            yield batch

    def position(self) -> Position:
        """Return the place in each lane behind what was handed out."""

        async def position() -> Position:
            await self._give_back()
            return self._reader.position()

        return self._portal.call(position)

    def seek(self, start: Start, *, inclusive: bool = True) -> None:
        """Go on from *start*."""
        self._portal.call(partial(self._reader.seek, start, inclusive=inclusive))
        self._ready = iter(())

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out nothing more of these partitions, or of any."""

        async def pause() -> None:
            await self._give_back()
            self._reader.pause(partitions)

        self._portal.call(pause)

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out these partitions again, or all."""

        async def resume() -> None:
            self._reader.resume(partitions)

        self._portal.call(resume)

    @property
    def caught_up(self) -> bool:
        """Whether all that was there when reading began was handed out."""
        return self._reader.caught_up

    async def _give_back(self) -> None:
        left, self._ready = length_hint(self._ready), iter(())
        self._reader.give_back(left)
