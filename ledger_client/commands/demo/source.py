"""The lines of the file, each with its key, dealt to the producers.

A line's key is its last word. All lines of a key go to one producer, so that the last line of a
key in the file is the latest message of that key in the topic: what compaction is to keep.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from ledger_client.commands.demo.sums import Sum
from ledger_client.commands.pump import chunks
from ledger_client.commands.records import Lines
from native.batch import murmur3

CHUNKS = 64
CHUNK_SIZE_MIN = 4 << 10
CHUNK_SIZE_MAX = 1 << 20
NO_KEY = b"-"
"""The key of a line without a word."""


class Deal(NamedTuple):
    """Some consecutive lines of the file as one producer gets them: those of its keys."""

    keys: list[bytes]
    values: list[bytes]


class Source:
    """Reads the file once; knows afterwards what was in it.

    Attributes:
        sum: of all lines.
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
        """Yield the file chunk by chunk, for each producer its part.

        Raises:
            OSError: the file cannot be read.
            RecordTooLarge: a line does not fit a message.
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

    def _deal(self, lines: list[bytes]) -> list[Deal]:
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
    """Return the key of a line."""
    words = line.rsplit(None, 1)
    return words[-1][:256] if words else NO_KEY
