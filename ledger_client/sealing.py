"""A ledger's writer for the length of a block: the ledger is sealed at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ledger_client.errors import LedgerError
from ledger_client.writer import LedgerWriter


@asynccontextmanager
async def sealed_after(writer: LedgerWriter) -> AsyncIterator[LedgerWriter]:
    """Lend *writer* to the block, then close it, however the block ends.

    Raises:
        LedgerError: as LedgerWriter.close(); an error of the block itself goes first.
    """
    try:
        try:
            yield writer
        except Exception as error:
            await _close_after(error, writer.close)
            raise
        await writer.close()
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled or interrupted: be quick
            await _close_after(error, writer.abort)
        raise


async def _close_after(error: BaseException, close: Callable[[], Awaitable[None]]) -> None:
    """Close a ledger whose block failed; the block's error is the one to tell."""
    try:
        await close()
    except LedgerError as failure:
        error.add_note(f"the ledger was not closed: {failure}")
