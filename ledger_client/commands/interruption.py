"""Ctrl-C and SIGTERM as a cancellation, so that a command can still tidy up."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio


async def interrupted(work: Callable[[], Awaitable[None]]) -> bool:
    """Run *work* to its end, or cancel it when a signal comes.

    Only the first signal is taken: during what the caller does afterwards,
    Ctrl-C is a KeyboardInterrupt again.

    Returns:
        True when a signal cut the work short.
    """
    came = False

    async def watch() -> None:
        nonlocal came
        async for _ in signals:
            came = True
            nursery.cancel_scope.cancel()
            return

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await work()
            nursery.cancel_scope.cancel()
    return came
