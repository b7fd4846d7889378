"""Errors on their way through Spark: short when they leave Python, and restored on arrival.

Spark reports an error of a Python data source as text, with the whole stack of the process that
raised it, or with its own stack if there is none of ours. So where our errors leave a process,
their stack is cut to one line, followed by the line that says what is wrong. Our commands extract
that line; users hide the rest by Spark's setting hideTraceback.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from ledger_client.errors import LedgerError, SparkError

_OURS = re.compile(r"^((?:ledger_client|metadata)(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
_LAST = re.compile(r"^[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_NOISE = re.compile(r" SQLSTATE: \w{5}$")


class without_stack:  # noqa: N801  # read as a word: with without_stack()
    """Cut the stack of our errors that leave the block to the block itself.

    A class, since a generator-based context manager would restore the stack.
    """

    def __enter__(self) -> None:
        """Do nothing: all of the work is in __exit__()."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, LedgerError):
            return
        error.__cause__, error.__suppress_context__ = None, True
        if error.__traceback__ is not None:
            error.__traceback__.tb_next = None


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise Spark's errors in the block as errors of ours, with one-line messages.

    Raises:
        LedgerError: as tasks or the planner raised them, if that is known.
        SparkError: for anything else.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise error_in(str(failure)) from failure


def error_in(text: str) -> LedgerError:
    """Return the error that Spark's text reports."""
    found = _OURS.findall(text)
    if not found:
        last = _LAST.findall(text)
        lines = [line for line in text.strip().splitlines() if line.strip()]
        return SparkError(_plain(last[-1] if last else next(iter(lines), "it gave no reason")))
    module, name, message = found[-1]
    kind = _kind(module, name)
    return SparkError(_plain(message)) if kind is None else kind(_plain(message))


def _plain(line: str) -> str:
    return _NOISE.sub("", line.strip())


def _kind(module: str, name: str) -> type[LedgerError] | None:
    """Return the error's own class if it is constructed from a message alone."""
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    if not (isinstance(kind, type) and issubclass(kind, LedgerError)):
        return None
    first, *others = inspect.signature(kind).parameters.values()
    alone = first.name == "message" and all(each.default is not each.empty for each in others)
    return kind if alone else None
