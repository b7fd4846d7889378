"""The first part: several producers write, a reader follows, and a bookie is lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from itertools import chain

import trio

from ledger_client.commands.demo.report import Sum
from ledger_client.commands.demo.source import Deal, InputFile
from ledger_client.message_id import MessageId, MessageIds
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.reading.reader import TopicReader

FOLLOW_TIMEOUT_S = 60.0
FOLLOW_POLL_S = 0.01
OnHalf = Callable[[], Awaitable[None]]


class Writing:
    """Writes a topic from several producers, and follows it meanwhile.

    Args:
        producers: number of producers.
        source: the file to write.
        open_producer: opens the producer with this name.
        open_reader: opens a reader that follows the topic.

    Attributes:
        ids: the ids that each producer got, in the order of sending.
        followed: the messages that the following reader saw.
        under_way: lines sent and not yet acknowledged.
        seconds: duration of the writing.
    """

    def __init__(
        self,
        producers: int,
        source: InputFile,
        *,
        open_producer: Callable[[str], AbstractAsyncContextManager[Producer]],
        open_reader: Callable[[], AbstractAsyncContextManager[TopicReader]],
    ) -> None:
        self._open_producer = open_producer
        self._open_reader = open_reader
        self._names = [f"producer-{number + 1}" for number in range(producers)]
        self._source = source
        self._ids: dict[str, list[MessageIds]] = {name: [] for name in self._names}
        self.followed = Sum()
        self.under_way = 0
        self.seconds = 0.0

    @property
    def ids(self) -> dict[str, chain[MessageId]]:
        """Each producer's ids, in the order of sending."""
        return {name: chain.from_iterable(found) for name, found in self._ids.items()}

    async def run(self, half_size: int, on_half: OnHalf) -> None:
        """Write everything, and let the reader reach the end.

        Once *half_size* bytes are read from the file, *on_half* starts while writing goes on.

        Raises:
            LedgerError: writing or reading failed.
            OSError, CommandFailed: the file cannot be written.
        """
        async with trio.open_nursery() as nursery:
            started = time.perf_counter()
            ready = trio.Event()
            written = trio.Event()
            nursery.start_soon(self._follow, ready, written)
            await ready.wait()
            await self._write(half_size, partial(nursery.start_soon, on_half))
            self.seconds = time.perf_counter() - started
            written.set()

    async def _write(self, half_size: int, tell_half: Callable[[], None]) -> None:
        told = False
        async with AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(self._open_producer(name)) for name in self._names
            ]
            async for deals in self._source.deals():
                async with trio.open_nursery() as nursery:
                    self.under_way = sum(len(deal.values) for deal in deals)
                    for producer, name, deal in zip(producers, self._names, deals, strict=True):
                        nursery.start_soon(self._send, producer, name, deal)
                    if self._source.consumed >= half_size and not told:
                        told = True
                        tell_half()

    async def _send(self, producer: Producer, name: str, deal: Deal) -> None:
        if deal.values:
            self._ids[name].append(await producer.send_many(deal.values, keys=deal.keys))
        self.under_way -= len(deal.values)

    async def _follow(self, ready: trio.Event, written: trio.Event) -> None:
        async with (
            self._open_reader() as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._end, written, nursery.cancel_scope)
            ready.set()
            async for batch in reader.read_batches(rows_min=1):
                self.followed.add_batch(batch)

    async def _end(self, written: trio.Event, reading: trio.CancelScope) -> None:
        """Stop the reader once it has everything, or a minute after the last write."""
        await written.wait()
        with trio.move_on_after(FOLLOW_TIMEOUT_S):
            while not self._has_all:  # noqa: ASYNC110 - a check costs nothing
                await trio.sleep(FOLLOW_POLL_S)
        reading.cancel()

    @property
    def _has_all(self) -> bool:
        return self.followed.messages >= self._source.sum.messages
