"""The first part: several producers write a file, a reader follows, and a bookie is lost.

The file's lines are divided among the producers by key, a line's last word. All lines of a key go
to one producer, so the last line of a key in the file is its latest message in the topic, which
compaction keeps.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio

from ledger_client.commands.demo.report import Sum
from ledger_client.commands.streams import Lines, chunks, without_ending
from ledger_client.message_id import MessageId, MessageIds
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.reading.reader import TopicReader
from native.batch import murmur3

CHUNKS = 64
CHUNK_SIZE_MIN = 4 << 10
CHUNK_SIZE_MAX = 1 << 20
NO_KEY = b"-"
"""The key of a blank line."""


class Deal(NamedTuple):
    """One producer's part of some consecutive lines: those with its keys."""

    keys: list[bytes]
    values: list[bytes]


class InputFile:
    """Reads the file once, and counts its lines and bytes.

    Attributes:
        sum: of all lines, without their endings.
        latest: of each key, its last line.
        consumed: bytes of the file that were read.
    """

    def __init__(self, path: Path, producers: int, *, line_size_max: int) -> None:
        self._path = path
        self._producers = producers
        self._splitter = Lines(line_size_max)
        self.sum = Sum()
        self.latest: dict[bytes, bytes] = {}
        self.consumed = 0

    async def deals(self) -> AsyncIterator[list[Deal]]:
        """Yield the file chunk by chunk, divided among the producers.

        Raises:
            OSError: the file cannot be read.
            CommandFailed: a line does not fit into a message.
        """
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size // CHUNKS
            async for data in chunks(descriptor, min(max(size, CHUNK_SIZE_MIN), CHUNK_SIZE_MAX)):
                self.consumed += len(data)
                yield self._deal(self._splitter.feed(data))
            yield self._deal(self._splitter.finish())
        finally:
            os.close(descriptor)

    def _deal(self, whole: list[bytes]) -> list[Deal]:
        lines = [*map(without_ending, whole)]  # as `quire produce` sends them
        keys = [key_of(line) for line in lines]
        if lines:
            self.sum.add(keys, lines)
        self.latest.update(zip(keys, lines, strict=True))
        deals = [Deal([], []) for _ in range(self._producers)]
        for key, line in zip(keys, lines, strict=True):
            deal = deals[murmur3(key) % self._producers]
            deal.keys.append(key)
            deal.values.append(line)
        return deals


def key_of(line: bytes) -> bytes:
    """Return the last word of a line, at most 256 bytes."""
    words = line.rsplit(None, 1)
    return words[-1][:256] if words else NO_KEY


# --- The file to send if none is named ---------------------------------------------------


# Logs found on many machines, the likely ones first.
LOGS = (
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/dpkg.log",
    "/var/log/dnf.log",
    "/var/log/pacman.log",
    "/var/log/apt/term.log",
    "/var/log/bootstrap.log",
    "/var/log/install.log",
)
SIZE_MIN = 64 << 10
LINES = 50_000


class Sample(msgspec.Struct, frozen=True):
    """A file to send, and if it was generated."""

    path: Path
    generated: bool


def choose_sample(scratch: Path) -> Sample:
    """Return a log of this machine, or one generated in the folder *scratch*."""
    for name in LOGS:
        path = Path(name)
        if _is_worth_writing(path):
            return Sample(path, generated=False)
    return Sample(_generate(scratch / "generated.log"), generated=True)


def _is_worth_writing(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.seek(0, 2) >= SIZE_MIN
    except OSError:
        return False  # missing or unreadable


def _generate(path: Path) -> Path:
    choice = random.Random(LINES)
    hosts = [f"host-{number:02}" for number in range(20)]
    with path.open("w") as file:
        for number in range(LINES):
            seconds, millis = divmod(number * 37, 1000)
            took = choice.randrange(1, 900)
            file.write(
                f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{millis:03} "
                f"{choice.choice(hosts)} request={number} status=200 took_ms={took}\n"
            )
    return path


# --- writing and following --------------------------------------------------------------


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

    async def _write(self, half_size: int, on_half: Callable[[], None]) -> None:
        is_half_written = False
        async with AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(self._open_producer(name)) for name in self._names
            ]
            async for deals in self._source.deals():
                async with trio.open_nursery() as nursery:
                    self.under_way = sum(len(deal.values) for deal in deals)
                    for producer, name, deal in zip(producers, self._names, deals, strict=True):
                        nursery.start_soon(self._send, producer, name, deal)
                    if self._source.consumed >= half_size and not is_half_written:
                        is_half_written = True
                        on_half()

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
