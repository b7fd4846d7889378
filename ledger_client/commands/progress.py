"""Progress bars on standard error, where somebody sits who can see them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console


@contextmanager
def show_progress(source: int) -> Iterator[Callable[[int], None]]:
    """Show how many bytes of the file descriptor *source* were taken; yield who counts them.

    Of a pipe only what was taken is known, of a file also what is left.
    """
    columns = (
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    status = os.fstat(source)
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with _bar(*columns) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)


@contextmanager
def show_entries(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of *total* entries are done; yield who counts them."""
    with _bar(progress.MofNCompleteColumn(), progress.TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def show_messages() -> Iterator[Callable[[int, int, int], None]]:
    """Show how far messages are; yield who is told messages, entries, and entries in all."""
    text = progress.TextColumn("{task.fields[messages]:,} messages", markup=False)
    columns = (progress.TaskProgressColumn(), progress.TimeRemainingColumn(), text)
    with _bar(*columns) as bar:
        task = bar.add_task("", total=None, messages=0)

        def tell(messages: int, entries: int, entries_total: int) -> None:
            bar.update(task, completed=entries, total=entries_total, messages=messages)

        yield tell


@contextmanager
def show_part() -> Iterator[Callable[[float], None]]:
    """Show which part of a work is done; yield who is told, 0 to 1."""
    with _bar(progress.TaskProgressColumn(), progress.TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda part: bar.update(task, completed=part)


@contextmanager
def show_ledgers() -> Iterator[Callable[[int], None]]:
    """Show how many ledgers were seen, of nobody knows how many; yield who counts them."""
    text = progress.TextColumn("{task.completed:,} ledgers", markup=False)
    with _bar(progress.TimeElapsedColumn(), text) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.advance(task, count)


class SizeBar:
    """A bar of bytes whose total and text change on the way."""

    def __init__(self, bar: progress.Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def advance(self, size: int) -> None:
        """*size* more bytes are done."""
        self._bar.advance(self._task, size)

    def show(self, text: str, *, total: int, done: int | None = None) -> None:
        """Say what is under way, how much there is, and how much of it is done."""
        self._bar.update(self._task, description=text, total=total, completed=done)


@contextmanager
def show_sizes() -> Iterator[SizeBar]:
    """Show bytes of a work that explains itself."""
    text = progress.TextColumn("{task.description}", markup=False)
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    with _bar(*columns, text) as bar:
        yield SizeBar(bar)


def _bar(*columns: progress.ProgressColumn) -> progress.Progress:
    console = Console(stderr=True)
    return progress.Progress(
        progress.BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
