"""Bytes from a file descriptor to the entries of a ledger.

descriptor ──thread──► splitter ──► append_many ─┐ in order; while one batch is
append_many ─┤ sent, those before it wait for
append_many ─┘ their acknowledgement
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence

import trio

from ledger_client.commands.records import Splitter
from ledger_client.writer import LedgerWriter

READ_SIZE = 1 << 20
BATCH_ENTRIES_MAX = 16384
APPENDS_MAX = 4


async def chunks(descriptor: int, size: int = READ_SIZE) -> AsyncIterator[bytes]:
    """Yield what the descriptor gives, as it comes, at most *size* bytes at once."""
    while data := await trio.to_thread.run_sync(os.read, descriptor, size, abandon_on_cancel=True):
        yield data


async def pump(source: AsyncIterator[bytes], splitter: Splitter, ledger: LedgerWriter) -> None:
    """Append all records of *source*; return when the last is acknowledged.

    Raises:
        LedgerError: an append failed; what was acknowledged before stays so.
        RecordTooLarge, RecordCut: the source is not what the splitter takes.
    """
    slots = trio.Semaphore(APPENDS_MAX)
    async with trio.open_nursery() as nursery:

        async def append(records: Sequence[bytes]) -> None:
            for start in range(0, len(records), BATCH_ENTRIES_MAX):
                await slots.acquire()
                # Runs up to its first wait before it returns here, so that batches
                # take their entry ids in the order of the source.
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
