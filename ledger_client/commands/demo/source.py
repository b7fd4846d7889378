"""The lines of the file with their keys, divided among the producers.

A line's key is its last word. All lines of a key go to one producer, so the last line of a key
in the file is its latest message in the topic, which compaction keeps.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ledger_client.commands.demo.report import Sum
from ledger_client.commands.streams import Lines, chunks
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
