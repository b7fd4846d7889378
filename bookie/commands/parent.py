"""The process that started a command, when it asked to be outlived by nobody."""

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
    """Return whether standard input is a pipe; a terminal or a file tells nothing."""
    return stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)


async def gone() -> None:
    """Wait until the parent ended, however it did.

    Our end of the pipe is read-only and the parent never writes: the read ends when the
    last holder of the other end is gone.
    """
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
        while await pipe.receive_some(4096):
            pass
