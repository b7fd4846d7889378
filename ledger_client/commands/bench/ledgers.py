"""Many ledgers open for writing at the same time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from ledger_client import Client, LedgerWriter
from ledger_client.commands.target import Target

CHANGES_MAX = 16


@asynccontextmanager
async def open_ledgers(
    client: Client, target: Target, count: int
) -> AsyncGenerator[list[LedgerWriter]]:
    """Make *count* ledgers and close them at the end, a few at a time.

    Raises as Client.create_ledger.
    """
    ledgers: list[LedgerWriter] = []
    opened, done = trio.Event(), trio.Event()
    limiter = trio.CapacityLimiter(CHANGES_MAX)  # each makes the metadata store sync

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            async with limiter:
                ledgers.append(await stack.enter_async_context(target.create(client)))
            if len(ledgers) == count:
                opened.set()
            await done.wait()
            async with limiter:
                await stack.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(hold)
        await opened.wait()
        yield ledgers
        done.set()
