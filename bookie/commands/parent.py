"""The parent process of a command that must stop when its parent ends."""

from __future__ import annotations

import os
import stat
import sys

import click
import trio

stop_with_parent = click.option(
    "--stop-with-parent",
    is_flag=True,
    help="Also stop when standard input is a pipe and its other end is closed.",
)


def is_watchable() -> bool:
    """Check that standard input is a pipe; a terminal or a file shows no end of the parent."""
    return stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)


async def gone() -> None:
    """Wait until the parent has ended, even if it crashed.

    The parent never writes to the pipe, so a read returns only when the last process that
    holds the other end is gone.
    """
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
        while await pipe.receive_some(4096):
            pass
