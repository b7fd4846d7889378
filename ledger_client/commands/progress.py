"""A progress bar on standard error, where somebody sits who can see it."""

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
    console = Console(stderr=True)
    columns = (
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    status = os.fstat(source)
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)
