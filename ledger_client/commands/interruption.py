"""Ctrl-C, SIGTERM and a closed terminal as a cancellation, so that a command can tidy up."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ledger_client.commands.errors import Interrupted

T = TypeVar("T")


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

    with trio.open_signal_receiver(*_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await work()
            nursery.cancel_scope.cancel()
    return came


async def finish(work: Callable[[], Awaitable[T]]) -> T:
    """Return what *work* returns.

    Raises:
        Interrupted: a signal cut it short.
    """
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await work())

    if await interrupted(keep_result):
        raise Interrupted
    return results[0]


def _signals() -> list[signal.Signals]:
    """Return the signals that ask for an end; nohup's wish to outlive the terminal counts."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]
