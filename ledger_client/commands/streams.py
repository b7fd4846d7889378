"""Streams of bytes as entries, and entries as the same bytes again.

Two forms, both exact whatever the bytes are:

* lines: an entry is a line including its ending, so writing entries one after the other
  restores the stream: CRLF, empty lines, and a last line without an ending.
* framed: each record is preceded by its size, 4 bytes, big-endian, which is not part of
  the entry.

A splitter buffers at most one unfinished record, and refuses one that exceeds the size of
an entry before it is complete.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Protocol

import trio

from ledger_client.ledgers.writer import LedgerWriter
from metadata.outcome import CommandFailed

SIZE_BYTES = 4


class Splitter(Protocol):
    """Splits a stream into records, of which at most one is buffered."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that *data* completes.

        Raises:
            CommandFailed: a record exceeds the limit.
        """

    def finish(self) -> list[bytes]:
        """Return the rest at the end of the stream.

        Raises:
            CommandFailed: the stream ends within a record.
        """


class Lines:
    """Splits after each LF; the last line may lack one."""

    def __init__(
        self, size_max: int, remedy: str = "cut it up, or send records with --framed"
    ) -> None:
        """*remedy* ends the error about a line of more than *size_max* bytes."""
        self._size_max = size_max
        self._remedy = remedy
        self._rest = bytearray()
        self._count = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that *data* completes, with their endings."""
        end = data.rfind(b"\n") + 1
        lines: list[bytes] = []
        if end:
            lines = io.BytesIO(b"".join((self._rest, memoryview(data)[:end]))).readlines()
            self._rest.clear()
        self._rest += memoryview(data)[end:]
        self._refuse_past_limit(lines)
        self._count += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no ending."""
        return [bytes(self._rest)] if self._rest else []

    def _refuse_past_limit(self, lines: list[bytes]) -> None:
        for index, line in enumerate((*lines, self._rest)):
            if len(line) > self._size_max:
                raise CommandFailed(
                    f"line {self._count + index + 1} is larger than an entry can be "
                    f"({self._size_max} bytes); {self._remedy}"
                )


def without_ending(line: bytes) -> bytes:
    """Return a line without its LF or CRLF, as it becomes a message."""
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


class Frames:
    """Splits records by the sizes in front of them."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._rest = b""
        self._count = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that *data* completes, without their sizes."""
        held = self._rest + data
        records: list[bytes] = []
        start = 0
        while start + SIZE_BYTES <= len(held):
            size = int.from_bytes(held[start : start + SIZE_BYTES], "big")
            if size > self._size_max:
                raise CommandFailed(
                    f"record {self._count + len(records) + 1} claims {size} bytes, but an entry "
                    f"has at most {self._size_max}; is the input framed?"
                )
            end = start + SIZE_BYTES + size
            if end > len(held):
                break
            records.append(held[start + SIZE_BYTES : end])
            start = end
        self._rest = held[start:]
        self._count += len(records)
        return records

    def finish(self) -> list[bytes]:
        """Return an empty list: a stream of whole records leaves no rest."""
        if self._rest:
            raise CommandFailed(f"the input ends within record {self._count + 1}; is it framed?")
        return []


def join_framed(payloads: Sequence[bytes]) -> bytes:
    """Join *payloads*, each preceded by its size, 4 bytes, big-endian."""
    return b"".join(
        part for payload in payloads for part in (len(payload).to_bytes(SIZE_BYTES, "big"), payload)
    )


# --- From a file descriptor to entries --------------------------------------------------
# descriptor ──thread──► splitter ──► append_many ─┐ in order; while one batch is
#                                     append_many ─┤ sent, earlier ones wait for
#                                     append_many ─┘ their acknowledgement


READ_SIZE = 1 << 20
BATCH_ENTRIES_MAX = 16384
APPENDS_MAX = 4


async def chunks(descriptor: int, size: int = READ_SIZE) -> AsyncIterator[bytes]:
    """Yield the descriptor's bytes as they arrive, at most *size* at once."""
    while data := await trio.to_thread.run_sync(os.read, descriptor, size, abandon_on_cancel=True):
        yield data


async def pump(source: AsyncIterator[bytes], splitter: Splitter, ledger: LedgerWriter) -> None:
    """Append all records of *source*, and return once the last one is acknowledged.

    Raises:
        LedgerError: an append failed. Entries acknowledged before stay acknowledged.
        CommandFailed: the splitter refuses the source.
    """
    slots = trio.Semaphore(APPENDS_MAX)
    async with trio.open_nursery() as nursery:

        async def append(records: Sequence[bytes]) -> None:
            for start in range(0, len(records), BATCH_ENTRIES_MAX):
                await slots.acquire()
                # start() runs the task up to its first wait, so batches get their entry ids
                # in the order of the source.
                await nursery.start(
                    _append, ledger, records[start : start + BATCH_ENTRIES_MAX], slots
                )

        async for data in source:
            await append(splitter.feed(data))
        await append(splitter.finish())


async def _append(
    ledger: LedgerWriter,
    records: Sequence[bytes],
    slots: trio.Semaphore,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    try:
        task_status.started()
        await ledger.append_many(records)
    finally:
        slots.release()


# --- To standard output -----------------------------------------------------------------
#
# Writes go past every buffer. One blocks while nobody reads, so it runs on a thread
# that a cancellation can abandon.

ABANDON_S = 0.2
"""After a cancellation, a write that is under way has so long to end."""


async def put(data: bytes) -> None:
    """Write *data* to standard output.

    It returns if all was written, also after a cancellation: whoever reads it may have it, and
    have sent the signal that ends the command. The next wait is cancelled then.

    Raises:
        BrokenPipeError: its reader is gone.
    """
    written, token = trio.Event(), trio.lowlevel.current_trio_token()

    def write() -> None:
        _write(sys.stdout.fileno(), data)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(written.set)

    try:
        await trio.to_thread.run_sync(write, abandon_on_cancel=True)
    except trio.Cancelled:
        with trio.move_on_after(ABANDON_S, shield=True):
            await written.wait()
        if not written.is_set():
            raise


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
