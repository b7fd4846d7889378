"""``bookie decommission``: move all data off a bookie and remove it from the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec
import trio
from rich.console import Console
from rich.status import Status
from rich.text import Text

from bookie.commands import options
from bookie.commands.output import count, print_json, size
from bookie.commands.stores import open_store
from metadata.errors import BadAddress, MetadataUnavailable
from metadata.outcome import CommandFailed

if TYPE_CHECKING:
    from ledger_client.cluster.operations.drain import DrainProgress


class Decommissioned(msgspec.Struct, frozen=True):
    """Output of ``--json``. *ledgers* and *size* (payload bytes) were on the bookie at first."""

    bookie_id: str
    ledgers: int = 0
    size: int = 0
    cancelled: bool = False


class ProgressLine:
    """Shows progress: on a terminal as one line that changes, else as a new line per change."""

    def __init__(self) -> None:
        self.ledgers = 0
        self.size = 0
        self.line: Status | None = None
        self.begun = False
        """there was progress: the bookie drains"""
        self._shown = ""

    def show(self, progress: DrainProgress) -> None:
        """Show *progress*, unless a log would repeat its last line; keep the greatest numbers."""
        self.begun = True
        if progress.step == "moving":
            self.ledgers = max(self.ledgers, progress.ledgers)
            self.size = max(self.size, progress.size)
        text = _describe(progress)
        if self.line is not None:
            self.line.update(Text(text))
        elif text != self._shown:
            click.echo(text, err=True)
        self._shown = text


@click.command()
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--wait", is_flag=True, help="If too few other bookies are there, wait for more.")
@click.option("--cancel", is_flag=True, help="Stop draining: the bookie gets new entries again.")
@options.cluster
@options.as_json
def decommission(*, bookie_id: str, wait: bool, cancel: bool, cluster: str, as_json: bool) -> None:
    """Move all data off BOOKIE, then remove it from the cluster.

    From now on the bookie gets no new entries, and other bookies take over its copies. Once
    no ledger names it any more, and every entry has its full number of copies elsewhere, it
    is removed from the metadata. Then stop it and delete its folders. Also works for a dead
    bookie.

    Fails at once if too few other bookies remain for some ledger, and at the end as long as
    any entry lacks copies. If interrupted, the bookie continues to drain; run the command
    again to wait for the rest. Exit code 3 if the cluster cannot be reached.
    """
    if wait and cancel:
        raise click.UsageError("--wait and --cancel exclude each other")
    progress = ProgressLine()
    draining = partial(_drain, bookie_id, wait, cluster, progress)
    try:
        done = trio.run(partial(_cancel, bookie_id, cluster) if cancel else draining)
    except* KeyboardInterrupt:
        click.echo(_interrupted(bookie_id, begun=progress.begun), err=True)
        raise
    if as_json:
        print_json(done)
    else:
        click.echo(_summary(done))


async def _drain(
    bookie_id: str, wait: bool, cluster: str, progress: ProgressLine
) -> Decommissioned:
    # Loading the client takes a while, and other commands do without it.
    import ledger_client
    from ledger_client.cluster.operations.drain import drain
    from ledger_client.errors import LedgerError

    try:
        async with ledger_client.connect(cluster) as client, open_store(cluster) as store:
            with _shown(progress):
                await drain(
                    client._context.ledgers, store, bookie_id, wait=wait, on_progress=progress.show
                )
    except MetadataUnavailable as cause:
        raise CommandFailed.unreachable(str(cause)) from cause
    except BadAddress:
        raise
    except LedgerError as cause:
        raise CommandFailed(str(cause)) from cause
    return Decommissioned(bookie_id, progress.ledgers, progress.size)


async def _cancel(bookie_id: str, cluster: str) -> Decommissioned:
    from ledger_client.cluster.operations.drain import cancel
    from ledger_client.errors import LedgerError

    try:
        async with open_store(cluster) as store:
            await cancel(store, bookie_id)
    except MetadataUnavailable as cause:
        raise CommandFailed.unreachable(str(cause)) from cause
    except BadAddress:
        raise
    except LedgerError as cause:
        raise CommandFailed(str(cause)) from cause
    return Decommissioned(bookie_id, cancelled=True)


@contextmanager
def _shown(progress: ProgressLine) -> Iterator[None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status("") as progress.line:
        yield


def _interrupted(bookie_id: str, *, begun: bool) -> str:
    """Say what goes on. Before the first progress the mark may or may not be there."""
    if begun:
        return f"{bookie_id} goes on draining; --cancel takes that back, the same command waits on"
    return f"interrupted; `quire cluster status` shows whether {bookie_id} drains"


def _describe(progress: DrainProgress) -> str:
    if progress.step == "checking":
        lacking = f": {progress.waits_for}" if progress.waits_for else ""
        return f"checking the copies elsewhere{lacking}"
    text = f"{count(progress.ledgers, 'ledger')}, {size(progress.size)} to move"
    if progress.not_closed:
        text += f"; {progress.not_closed} not closed yet"
    return f"{text}; {progress.waits_for}" if progress.waits_for else text


def _summary(done: Decommissioned) -> str:
    if done.cancelled:
        return f"{done.bookie_id} gets new entries again; what has moved stays where it is"
    return (
        f"{done.bookie_id} is decommissioned, {count(done.ledgers, 'ledger')} "
        f"({size(done.size)}) moved; stop it if it still runs, and delete its folders"
    )
