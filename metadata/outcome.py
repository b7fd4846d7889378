"""How a command of bookie or quire ends: one line on stderr and an exit code.

    0  done
    1  the operation failed, or damage was found
    2  the command line or the configuration is wrong
    3  the bookie or the cluster cannot be reached
  130  interrupted

If the reader of our output goes away (`| head`), the command ends with 0. If standard output is
closed (`>&-`) or its disk is full, a command that prints something fails. A bug keeps its
traceback.

Either program says with a ``Program`` which of its packages' errors it reports. A command that
has already reported what is wrong raises click's ``Exit`` with the code, one that was interrupted
and has tidied up raises click's ``Abort``.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click


class Exit(enum.IntEnum):
    """Exit codes of all commands; scripts may rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandFailed(Exception):
    """The command cannot go on. The message gives the reason and, if known, a remedy."""

    def __init__(self, message: str, *, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def unreachable(cls, message: str) -> CommandFailed:
        """Return the failure for a bookie that does not answer; the exit code says so."""
        return cls(message, code=Exit.UNREACHABLE)


def confirm(question: str, *, refused: str) -> None:
    """Ask a question on stderr before something is changed.

    Args:
        question: is printed with its choices, [y/N].
        refused: the line that is printed unless the answer is yes.

    Raises:
        click.Abort: the answer was no, the end of the input, or Ctrl-C.
    """
    try:
        agrees = click.confirm(question, err=True)
    except click.Abort:
        agrees, ends_line = False, False
    else:
        ends_line = sys.stdin.isatty()  # a terminal shows the answer, with its end of line
    if not agrees:
        if not ends_line:
            click.echo(err=True)
        click.echo(refused, err=True)
        raise click.Abort


_REPORTED: tuple[type[Exception], ...] = (click.ClickException, OSError, CommandFailed)


@dataclass(frozen=True)
class Program:
    """A program, and what its errors mean.

    Attributes:
        name: its name on the command line.
        errors: the roots of the errors that it reports; any other is a bug.
        codes: exit codes of the errors that end it with another code than 1.
        advice: the next step, for errors whose own message does not name it.
    """

    name: str
    errors: tuple[type[Exception], ...]
    codes: Mapping[type[BaseException], Exit] = field(default_factory=dict)
    advice: Mapping[type[BaseException], str] = field(default_factory=dict)

    def conclude(self, command: click.Command, arguments: Sequence[str]) -> int:
        """Run *command* and return its exit code; an error becomes one line on stderr."""
        code: int = Exit.DONE
        reported = (*_REPORTED, *self.errors)
        is_closed = sys.stdout is None
        _fill_streams()
        try:
            code = self._invoke(command, arguments)
        # Errors from nurseries come in groups; except* takes these apart and lets any
        # unexpected error through.
        except* reported as group:
            error = first_of(group)
            if is_closed and isinstance(error, OSError) and error.errno == errno.EBADF:
                error = CommandFailed("standard output is closed")
            code = self._report(error)
        except* (KeyboardInterrupt, click.Abort):  # Abort: also a question answered "no"
            code = Exit.INTERRUPTED
        return code

    def _invoke(self, command: click.Command, arguments: Sequence[str]) -> int:
        code: int = Exit.DONE
        try:
            with command.make_context(self.name, list(arguments)) as context:
                command.invoke(context)
        except click.exceptions.Exit as end:  # --help and --version end this way, too
            code = end.exit_code
        sys.stdout.flush()
        return code

    def _report(self, error: BaseException) -> Exit:
        _flush_or_drop()
        if isinstance(error, BrokenPipeError):
            return Exit.DONE
        if isinstance(error, click.ClickException):
            return self._report_usage(error)
        advice = self.advice.get(type(error))
        click.echo(f"{self.name}: {one_line(error, advice)}", err=True)
        if isinstance(error, CommandFailed):
            return error.code
        return next(
            (code for kind, code in self.codes.items() if isinstance(error, kind)), Exit.FAILED
        )

    def _report_usage(self, error: click.ClickException) -> Exit:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else self.name
        message = error.format_message()
        if "\n" in message:  # a group without a command: its help is the message
            click.echo(message, err=True)
        else:
            click.echo(f"{self.name}: {message} (see `{path} --help`)", err=True)
        return Exit.USAGE


def one_line(error: BaseException, advice: str | None = None) -> str:
    """Return the message of *error*, its notes and *advice* as one line.

    An OSError comes without its errno.
    """
    parts = [_text(error), *getattr(error, "__notes__", ())]
    if advice is not None:
        parts.append(advice)
    return " ".join("; ".join(parts).split())


def first_of(error: BaseException) -> BaseException:
    """Return *error*, or the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def drop_output() -> None:
    """Discard all further output, and what Python's buffer still holds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush_or_drop() -> None:
    """Write what is buffered; if that fails, keep the interpreter from a try when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def _fill_streams() -> None:
    """Open /dev/null in place of standard streams that the parent process closed.

    Otherwise the next file or socket gets their descriptor, and output goes into it. Writing to
    standard output fails with EBADF, so that nobody takes a command for done that printed nothing.
    """
    for name, flags, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
