"""Failures that decide at once: no second try may cover them up.

A test with real processes that fails is tried a second time, alone, since the machine may have
been busy. But data that are lost once are lost.

    with never_twice():
        assert await read_all(client) == acknowledged
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from own_copy import ReplicaDamaged

from ledger_client.errors import (
    EntryLost,
    Gap,
    MessagesLost,
    MetadataBroken,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchTopic,
)

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that no test sends, and that a process of ours dies of by its own fault."""
FINDING = re.compile(
    r"\w+Sanitizer|:\d+: runtime error: |was killed by "
    + f"(?:{'|'.join(each.name for each in CRASHES)})"
)
"""What a sanitizer says, and ``bookie standalone`` of a bookie that crashed."""
LOSSES = (
    AssertionError,
    EntryLost,
    Gap,
    MessagesLost,
    MetadataBroken,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchTopic,
    ReplicaDamaged,
)
"""What reading back raises where something is not there; that nobody answers is not among them."""
SHOWN = 4000


class NeverTwice(AssertionError):
    """A promise is broken: such a failure is never tried a second time.

    Raised where data are lost or wrong, a checker found a violation, a sanitizer spoke, or a
    process died of a signal that nobody sent it.
    """


@contextmanager
def never_twice() -> Iterator[None]:
    """Raise NeverTwice for what the block, which reads back and compares, finds lost or wrong.

    It stands before a test as well, ``@never_twice()``, unless that is ``async``.
    """
    try:
        yield
    except NeverTwice:
        raise
    except LOSSES as wrong:
        raise NeverTwice(str(wrong) or repr(wrong)) from wrong
    except ExceptionGroup as several:  # out of a nursery, as that of a client
        lost = several.subgroup(LOSSES)
        if lost is None:
            raise
        raise NeverTwice(_first(lost)) from several


def _first(group: ExceptionGroup[Exception]) -> str:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else str(inner) or repr(inner)


def check_end(code: int | None, log: str) -> None:
    """Look at how a process of ours ended.

    Args:
        code: its exit code, negative for a signal; None while it runs.
        log: all that it, and those that it started, logged.

    Raises:
        NeverTwice: it crashed, or a sanitizer found something.
    """
    crash = next((each for each in CRASHES if code == -each), None)
    if crash is not None:
        raise NeverTwice(f"a process died of {crash.name}; it logged:\n{log[-SHOWN:]}")
    if found := FINDING.search(log):
        raise NeverTwice(log[max(0, found.start() - 200) :][:SHOWN])


def may_be_tried_again(error: BaseException | None) -> bool:
    """Whether a failure may be the machine's: nothing in it is a ``NeverTwice``."""
    return not any(isinstance(each, NeverTwice) for each in _within(error, set()))


def _within(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """*error*, what it groups, and what led to it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _within(each, seen)
    yield from _within(error.__cause__, seen)
    yield from _within(error.__context__, seen)
