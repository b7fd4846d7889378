"""How a command ends: one line on stderr and an exit code.

    0  done
    1  the operation failed
    2  the command line is wrong
    3  the cluster cannot be reached
  130  interrupted

If the reader of our output goes away (`| head`), the command ends with 0. A bug keeps its
traceback.

CommandFailed          the command cannot go on; the message gives the reason and a remedy
└── BadInput           its input is not in the form it expects
Interrupted            Ctrl-C or SIGTERM arrived; the command has tidied up
"""

from __future__ import annotations

import enum
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click
import trio

from ledger_client.errors import (
    AckQuorumLost,
    BadTopic,
    Gap,
    InvalidAddress,
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    ReplicasUnavailable,
    SparkMissing,
    TopicExists,
    WrongPassword,
)
from metadata import errors as metadata_errors

_START_ONE = "start one with `bookie standalone --data DIR` or name the cluster with --cluster"
# The next step, for errors whose own message does not name it.
ADVICE: dict[type[BaseException], str] = {
    MetadataUnavailable: _START_ONE,
    metadata_errors.MetadataUnavailable: _START_ONE,
    NoSuchLedger: "`quire ledger list` shows those that exist",
    WrongPassword: "pass the one it was created with by --password or QUIRE_PASSWORD",
    NotEnoughBookies: "start more bookies, or ask for fewer: --ensemble, for topics --replication",
    TopicExists: "`quire topic describe` shows it",
    Gap: "`quire read --skip-gaps` goes on with what is left",
    AckQuorumLost: "what was acknowledged stays readable; write the rest to a new ledger",
    ReplicasUnavailable: "start the bookies named here",
}


class Exit(enum.IntEnum):
    """Exit codes of all commands; scripts may rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


CODES: dict[type[BaseException], Exit] = {
    BadTopic: Exit.USAGE,
    InvalidAddress: Exit.USAGE,
    MetadataUnavailable: Exit.UNREACHABLE,
    metadata_errors.BadAddress: Exit.USAGE,
    metadata_errors.MetadataUnavailable: Exit.UNREACHABLE,
}


def conclude(command: click.Command, arguments: Sequence[str]) -> int:
    """Run *command* and return its exit code; an error becomes one line on stderr."""
    code = Exit.DONE
    _fill_streams()
    try:
        _invoke(command, arguments)
    # Errors from nurseries come in groups; except* takes these apart and lets any
    # unexpected error through.
    except* (
        click.ClickException,
        LedgerError,
        metadata_errors.MetadataError,
        OSError,
        CommandFailed,
    ) as group:
        code = _report(first_of(group))
    except* (KeyboardInterrupt, Interrupted, click.Abort):  # Abort: a question answered "no"
        code = Exit.INTERRUPTED
    return code


def _fill_streams() -> None:
    """Open /dev/null for standard streams that are closed.

    Otherwise the next file or socket gets their descriptor, and output goes into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _invoke(command: click.Command, arguments: Sequence[str]) -> None:
    try:
        with command.make_context("quire", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit:
        sys.stdout.flush()  # --help and --version end this way


def _report(error: BaseException) -> Exit:
    if isinstance(error, BrokenPipeError):
        # Keep the interpreter from flushing what is left in the buffer when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    click.echo(f"quire: {_one_line(error)}", err=True)
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), Exit.FAILED)


def _report_usage(error: click.ClickException) -> Exit:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "quire"
    message = error.format_message()
    if "\n" in message:  # a group without a command: its help is the message
        click.echo(message, err=True)
    else:
        click.echo(f"quire: {message} (`{path} --help` shows what there is)", err=True)
    return Exit.USAGE


def _one_line(error: BaseException) -> str:
    parts = [_text(error), *getattr(error, "__notes__", ())]
    if type(error) in ADVICE:
        parts.append(ADVICE[type(error)])
    return " ".join("; ".join(parts).split())


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:  # leaves out the errno
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


# --- Errors -----------------------------------------------------------------------------


class CommandFailed(Exception):
    """The command cannot go on. The message gives the reason and, if known, a remedy."""


class BadInput(CommandFailed):
    """The input of the command is not in the form it expects; the message names the line.

    Lines shortly before it may have been dropped too.
    """


class Interrupted(Exception):
    """Ctrl-C or SIGTERM arrived. The command has tidied up and reported what it did."""


def first_of(error: BaseException) -> BaseException:
    """Return *error*, or the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
        Interrupted: a signal cut it short.
    """
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await work())

    if await interrupted(keep_result):
        raise Interrupted
    return results[0]


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
