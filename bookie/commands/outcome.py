"""How a command ends: at most one line on stderr, and an exit code.

    0  done
    1  the operation failed, or damage was found
    2  the command line or the configuration is wrong
    3  the bookie or the cluster cannot be reached
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

from bookie.config import ConfigError
from bookie.errors import BookieError
from metadata.errors import MetadataError
from native.errors import CoreError


class Exit(enum.IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandFailed(Exception):
    """A command cannot go on; the message says why and what to do next."""


class DamageFound(Exception):
    """The command came to its end and met damage, which it has reported already."""


class Unreachable(Exception):
    """Nobody answers at the address given."""


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
        BookieError,
        MetadataError,
        CoreError,
        OSError,
        CommandFailed,
        Unreachable,
    ) as group:
        code = _report(_first(group))
    except* DamageFound:
        code = Exit.FAILED
    except* (KeyboardInterrupt, click.Abort):
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
        with command.make_context("bookie", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit:
        sys.stdout.flush()  # --help and --version end this way


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _report(error: BaseException) -> Exit:
    if isinstance(error, BrokenPipeError):
        # What is left in the buffer has no reader: keep the exit from trying again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    click.echo(f"bookie: {one_line(error)}", err=True)
    if isinstance(error, ConfigError):
        return Exit.USAGE
    return Exit.UNREACHABLE if isinstance(error, Unreachable) else Exit.FAILED


def _report_usage(error: click.ClickException) -> Exit:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "bookie"
    message = error.format_message()
    if "\n" in message:  # a group without a command: the message is its help
        click.echo(message, err=True)
    else:
        click.echo(f"bookie: {message} (`{path} --help` shows what there is)", err=True)
    return Exit.USAGE


def one_line(error: BaseException) -> str:
    """What *error* says, on one line; an operating system's error without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())
    return " ".join(str(error).split()) or type(error).__name__
