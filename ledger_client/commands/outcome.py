"""How a command ends: one line on stderr and an exit code.

    0  done
    1  the operation failed
    2  the command line is wrong
    3  the cluster cannot be reached
  130  interrupted

A reader that closed its end of our output wants no more, which is no failure.
A bug is none of these: it keeps its traceback.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence

import click

from ledger_client.commands.errors import CommandFailed, Interrupted, first_of
from ledger_client.errors import (
    AckQuorumLost,
    InvalidAddress,
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    ReplicasUnavailable,
    WrongPassword,
)
from ledger_client.topics.errors import BadTopic, Gap, TopicExists
from metadata import errors as metadata_errors

_START_ONE = "start one with `bookie standalone --data DIR` or name the cluster with --cluster"
# What to do next, where the message itself does not say.
ADVICE: dict[type[BaseException], str] = {
    MetadataUnavailable: _START_ONE,
    metadata_errors.MetadataUnavailable: _START_ONE,
    NoSuchLedger: "`quire ledger list` shows those that exist",
    WrongPassword: "give the one it was created with by --password or QUIRE_PASSWORD",
    NotEnoughBookies: "start more bookies, or ask for fewer: --ensemble, of topics --replication",
    TopicExists: "`quire topic describe` shows it",
    Gap: "`quire read --skip-gaps` goes on with what is left",
    AckQuorumLost: "what was acknowledged stays readable; write the rest to a new ledger",
    ReplicasUnavailable: "start the bookies that are named",
}


class Exit(enum.IntEnum):
    """Exit codes."""

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
    # An error in a nursery comes as a group: this takes it apart, and lets through
    # what is not named here.
    except* (
        click.ClickException,
        LedgerError,
        metadata_errors.MetadataError,
        OSError,
        CommandFailed,
    ) as group:
        code = _report(first_of(group))
    except* (KeyboardInterrupt, Interrupted, click.Abort):  # Abort: a question, answered no
        code = Exit.INTERRUPTED
    return code


def _fill_streams() -> None:
    """Lead standard streams that were closed by whoever started us to nowhere.

    Else the next file or socket takes their number, and what is printed goes into it.
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
        # What is left in the buffer has no reader: keep the exit from trying again.
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
    if "\n" in message:  # a group without a command: the message is its help
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
    if isinstance(error, OSError) and error.strerror:  # without its number
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
