"""The command ``bookie``: run, maintain and inspect bookies."""

from __future__ import annotations

import sys

import click

from bookie.commands.config import config
from bookie.commands.decommission import decommission
from bookie.commands.format import format_folders
from bookie.commands.gc import gc
from bookie.commands.inspect import inspect
from bookie.commands.metadata import metadata
from bookie.commands.outcome import conclude
from bookie.commands.rebuild_index import rebuild_index
from bookie.commands.replace import replace
from bookie.commands.run import run
from bookie.commands.standalone import standalone
from bookie.commands.user import user


@click.group()
@click.version_option(package_name="quire", message="bookie of quire %(version)s")
def bookie() -> None:
    """Run, maintain and inspect bookies, the storage nodes of quire.

    \b
    A cluster on this machine:   bookie standalone --data DIR
    One bookie:                  bookie run --data DIR

    Exit codes: 0 done; 1 failed, or damage found; 2 wrong command line or setting;
    3 no bookie answers; 130 interrupted.
    """  # noqa: D301 - the backslash keeps lines


for command in (
    run,
    standalone,
    format_folders,
    replace,
    decommission,
    config,
    gc,
    inspect,
    metadata,
    rebuild_index,
    user,
):
    bookie.add_command(command)


def main() -> None:
    """Run the command line and exit with its code (see commands/outcome.py)."""
    sys.exit(conclude(bookie, sys.argv[1:]))
