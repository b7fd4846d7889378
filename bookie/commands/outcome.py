"""The end of a command: at most one line on stderr, and an exit code.

    0  done
    1  the operation failed, or damage was found
    2  the command line or the configuration is wrong
    3  the bookie or the cluster cannot be reached
  130  interrupted

If the reader of our output closes its end, the command ends with 0: that is no failure.
A bug is none of these; it ends with a traceback.
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


class ExitCode(enum.IntEnum):
    """Exit codes of every command; the module's text explains them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class ActionFailed(Exception):
    """A command cannot continue; the message says why and what to do next."""


class DamageFound(Exception):
    """The command is done and found damage, which it has already reported."""


class Unreachable(Exception):
    """No bookie answers at the given address; exit code 3."""


def conclude(command: click.Command, arguments: Sequence[str]) -> int:
    """Run *command* and return its exit code; an error becomes one line on stderr."""
    code = ExitCode.DONE
    _fill_streams()
    try:
        _invoke(command, arguments)
    # A nursery raises its errors as a group. except* takes the group apart, and lets
    # errors that are not named here through.
    except* (
        click.ClickException,
        BookieError,
        MetadataError,
        CoreError,
        OSError,
        ActionFailed,
        Unreachable,
    ) as group:
        code = _report(_first(group))
    except* DamageFound:
        code = ExitCode.FAILED
    except* (KeyboardInterrupt, click.Abort):
        code = ExitCode.INTERRUPTED
    return code


def _fill_streams() -> None:
    """Open /dev/null in place of standard streams that the parent process closed.

    Otherwise the next file or socket gets their descriptor, and output goes into it.
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


def _report(error: BaseException) -> ExitCode:
    if isinstance(error, BrokenPipeError):
        # The buffered rest has no reader; keep Python from writing it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    click.echo(f"bookie: {one_line(error)}", err=True)
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    return ExitCode.UNREACHABLE if isinstance(error, Unreachable) else ExitCode.FAILED


def _report_usage(error: click.ClickException) -> ExitCode:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "bookie"
    message = error.format_message()
    if "\n" in message:  # a group without a command: the message is its help
        click.echo(message, err=True)
    else:
        click.echo(f"bookie: {message} (`{path} --help` shows what there is)", err=True)
    return ExitCode.USAGE


def one_line(error: BaseException) -> str:
    """Return the message of *error* as one line; an OSError comes without its errno."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())
    return " ".join(str(error).split()) or type(error).__name__
