"""Progress bars on standard error, if it is a terminal.

Each function yields the callback that moves its bar. In a pipe, one line names the *work* once it
has lasted for two seconds, if it is given: a verb in its -ing form, and what is worked on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich import progress
from rich.console import Console

from ledger_client.commands.patience import Patience


@contextmanager
def show_progress(source: int) -> Iterator[Callable[[int], None]]:
    """Show the bytes read from the descriptor *source*; of a file, also the time left.

    In a pipe nothing is said: whoever writes to *source* may take their time.
    """
    columns = (
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    status = os.fstat(source)
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with _bar(None, *columns) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)


@contextmanager
def show_entries(work: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of *total* entries are done; the callback takes their number."""
    with _bar(work, progress.MofNCompleteColumn(), progress.TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def show_messages(work: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show a count of messages; the callback takes messages, entries, and entries in total."""
    text = progress.TextColumn("{task.fields[messages]:,} messages", markup=False)
    columns = (progress.TaskProgressColumn(), progress.TimeRemainingColumn(), text)
    with _bar(work, *columns) as bar:
        task = bar.add_task("", total=None, messages=0)

        def update(messages: int, entries: int, entries_total: int) -> None:
            bar.update(task, completed=entries, total=entries_total, messages=messages)

        yield update


@contextmanager
def show_part(work: str | None = None) -> Iterator[Callable[[float], None]]:
    """Show which part of a job is done; the callback takes a fraction, 0 to 1."""
    with _bar(work, progress.TaskProgressColumn(), progress.TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda part: bar.update(task, completed=part)


@contextmanager
def show_ledgers(work: str) -> Iterator[Callable[[int], None]]:
    """Show how many ledgers were seen, of an unknown total; the callback takes their number."""
    text = progress.TextColumn("{task.completed:,} ledgers", markup=False)
    with _bar(work, progress.TimeElapsedColumn(), text) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.advance(task, count)


class SizeBar:
    """A bar of bytes whose total and text may change."""

    def __init__(self, bar: progress.Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def advance(self, size: int) -> None:
        """Count *size* more bytes as done."""
        self._bar.advance(self._task, size)

    def show(self, text: str, *, total: int, done: int | None = None) -> None:
        """Set the text and total, and how much is done."""
        self._bar.update(self._task, description=text, total=total, completed=done)


@contextmanager
def show_sizes(work: str) -> Iterator[SizeBar]:
    """Show a bar of bytes with a text that the caller sets."""
    text = progress.TextColumn("{task.description}", markup=False)
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    with _bar(work, *columns, text) as bar:
        yield SizeBar(bar)


@contextmanager
def _bar(work: str | None, *columns: progress.ProgressColumn) -> Iterator[progress.Progress]:
    console = Console(stderr=True)
    bar = progress.Progress(
        progress.BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    is_silent = work is None or console.is_terminal
    with nullcontext() if is_silent else Patience(f"still {work}").waiting(), bar:
        yield bar
