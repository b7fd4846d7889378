"""How a command of quire ends, and what ends it: its errors, signals, a machine without Spark.

The exit codes are those of metadata/outcome.py.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click
import trio

from ledger_client.errors import (
    AckQuorumLost,
    BadAddress,
    BadTopic,
    Gap,
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    ReplicasUnavailable,
    SparkMissing,
    TopicExists,
    WrongPassword,
)
from metadata.errors import MetadataError
from metadata.outcome import Exit, Program, first_of

_FIND_ONE = (
    "check --cluster, and that its bookies and their metadata store run; "
    "`bookie standalone --data DIR` starts a cluster on this host"
)
# The next step, for errors whose own message does not name it.
_ADVICE: dict[type[BaseException], str] = {
    MetadataUnavailable: _FIND_ONE,
    NoSuchLedger: "`quire ledger list` shows those that exist",
    WrongPassword: "pass the one it was created with by --password or QUIRE_PASSWORD",
    NotEnoughBookies: "`quire cluster status` shows them",
    TopicExists: "`quire topic describe` shows it",
    Gap: "--skip-gaps goes on with what is left",
    AckQuorumLost: "what was acknowledged stays readable; write the rest to a new ledger",
    ReplicasUnavailable: "start the bookies named here",
}


_CODES: dict[type[BaseException], Exit] = {
    BadTopic: Exit.USAGE,
    BadAddress: Exit.USAGE,
    MetadataUnavailable: Exit.UNREACHABLE,
}

conclude = Program("quire", (LedgerError, MetadataError), _CODES, _ADVICE).conclude


# --- Interruption -----------------------------------------------------------------------


T = TypeVar("T")


async def interrupted(work: Callable[[], Awaitable[None]]) -> bool:
    """Run *work*, and cancel it on SIGINT, SIGTERM or SIGHUP.

    Only the first signal is handled: afterwards, Ctrl-C raises KeyboardInterrupt again.

    Returns:
        True if a signal cut the work short.
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
    """Run *work* and return its result.

    Raises:
        click.Abort: a signal cut it short.
    """
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await work())

    if await interrupted(keep_result):
        raise click.Abort
    return results[0]


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, once each; for work without trio."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the block is already cleaning up
        raise KeyboardInterrupt

    others = [number for number in _signals() if number != signal.SIGINT]
    kept = {number: signal.signal(number, end) for number in others}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    """Return the signals that end a command; under nohup, SIGHUP is none of them."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


# --- A machine without Spark ------------------------------------------------------------


@contextmanager
def advising(way_around: str = "run it without Spark: --no-spark") -> Iterator[None]:
    """Add *way_around* to an error in the block about missing Spark or Java."""
    try:
        yield
    except* SparkMissing as missing:
        first_of(missing).add_note(f"or {way_around}")
        raise
