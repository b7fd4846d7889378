"""Errors on their way through Spark: short when they leave Python, and found again on arrival.

Spark tells an error of a Python data source as a text, with the whole stack of the process in
which it was raised, and of its own where there is none of ours. So where our errors leave, one
place of their stack stays, and behind it the one line that says what is wrong. Our commands
take that line out again; users hide the rest by Spark's setting hideTraceback.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from ledger_client.errors import LedgerError
from ledger_client.spark.errors import SparkFailed

_OURS = re.compile(r"^((?:ledger_client|metadata)(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
_LAST = re.compile(r"^[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_NOISE = re.compile(r" SQLSTATE: \w{5}$")


class without_stack:  # noqa: N801  # read as a word: with without_stack()
    """Let errors of ours leave the block with no more of their stack than the block itself.

    A class, since a generator's manager would put the stack back.
    """

    def __enter__(self) -> None:
        """Nothing is to be done."""

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
    """Raise what Spark raises in the block as an error of ours, in one line.

    Raises:
        MetadataUnavailable, SparkError: as tasks or the planner raised them.
        SparkFailed: anything else; the message is the line that says why.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise error_in(str(failure)) from failure


def error_in(told: str) -> LedgerError:
    """Return the error that a text of Spark's tells."""
    found = _OURS.findall(told)
    if not found:
        last = _LAST.findall(told)
        lines = [line for line in told.strip().splitlines() if line.strip()]
        return SparkFailed(_plain(last[-1] if last else next(iter(lines), "it says nothing")))
    module, name, message = found[-1]
    kind = _kind(module, name)
    return SparkFailed(_plain(message)) if kind is None else kind(_plain(message))


def _plain(line: str) -> str:
    return _NOISE.sub("", line.strip())


def _kind(module: str, name: str) -> type[LedgerError] | None:
    """Return the error's own class, if a message is all that it is made of."""
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    if not (isinstance(kind, type) and issubclass(kind, LedgerError)):
        return None
    own = any("__init__" in each.__dict__ for each in _below(kind))
    return None if own else kind


def _below(kind: type[LedgerError]) -> Sequence[type]:
    """Return the class and those it is made of, up to LedgerError."""
    return kind.__mro__[: kind.__mro__.index(LedgerError)]
