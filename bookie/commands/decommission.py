"""``bookie decommission``: move everything off a bookie, then forget it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec
import trio
from rich.console import Console
from rich.status import Status
from rich.text import Text

from bookie.commands import options
from bookie.commands.outcome import CommandFailed, Unreachable
from bookie.commands.output import count, print_json, size
from metadata.errors import MetadataUnavailable
from metadata.urls import open_store

if TYPE_CHECKING:
    from ledger_client.operations.drain import DrainProgress


class Decommissioned(msgspec.Struct, frozen=True):
    """What ``--json`` prints. *ledgers* and *size* (payload bytes) were still there at first."""

    bookie_id: str
    ledgers: int = 0
    size: int = 0
    cancelled: bool = False


class Watch:
    """Tells how far it is: on a terminal in one line that changes, else a line a change."""

    def __init__(self, line: Status | None) -> None:
        self.ledgers = 0
        self.size = 0
        self._line = line
        self._told = ""

    def tell(self, progress: DrainProgress) -> None:
        """Show *progress*."""
        if progress.step == "moving":
            self.ledgers = max(self.ledgers, progress.ledgers)
            self.size = max(self.size, progress.size)
        text = _describe(progress)
        if self._line is not None:
            self._line.update(Text(text))
        elif text != self._told:
            click.echo(text, err=True)
        self._told = text


@click.command()
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--wait", is_flag=True, help="Wait for new bookies where too few are there.")
@click.option("--cancel", is_flag=True, help="Take it back: the bookie gets new entries again.")
@options.cluster
@options.as_json
def decommission(*, bookie_id: str, wait: bool, cancel: bool, cluster: str, as_json: bool) -> None:
    """Move everything off BOOKIE, and then take it out of the cluster.

    From now on the bookie gets no new entries, and others take over its copies. When no
    ledger names it any more, and every entry has its full number of copies elsewhere, the
    bookie is forgotten: stop it then, and delete its folders. Works for a dead bookie too.

    Refuses at once when the other bookies are too few for some ledger, and at the end while
    anything lacks copies. May be interrupted: the bookie goes on draining, and the same
    command waits for the rest. Exit code 3 when the cluster cannot be reached.
    """
    if wait and cancel:
        raise click.UsageError("--wait and --cancel exclude each other")
    try:
        done = trio.run(_cancel if cancel else _drain, bookie_id, wait, cluster)
    except* KeyboardInterrupt:
        click.echo(
            f"{bookie_id} goes on draining; --cancel takes that back, the same command waits on",
            err=True,
        )
        raise
    if as_json:
        print_json(done)
    else:
        click.echo(_summary(done))


async def _drain(bookie_id: str, wait: bool, cluster: str) -> Decommissioned:
    # Loading the client takes a while, and other commands do without.
    import ledger_client
    from ledger_client.errors import LedgerError, MetadataUnavailable as ClusterUnavailable
    from ledger_client.operations.drain import drain

    try:
        async with ledger_client.connect(cluster) as client, open_store(cluster) as store:
            with _watch() as watch:
                await drain(client, store, bookie_id, wait=wait, tell=watch.tell)
    except (ClusterUnavailable, MetadataUnavailable) as cause:
        raise Unreachable(str(cause)) from cause
    except LedgerError as cause:
        raise CommandFailed(str(cause)) from cause
    return Decommissioned(bookie_id, watch.ledgers, watch.size)


async def _cancel(bookie_id: str, _wait: bool, cluster: str) -> Decommissioned:
    from ledger_client.errors import LedgerError
    from ledger_client.operations.drain import cancel

    try:
        async with open_store(cluster) as store:
            await cancel(store, bookie_id)
    except MetadataUnavailable as cause:
        raise Unreachable(str(cause)) from cause
    except LedgerError as cause:
        raise CommandFailed(str(cause)) from cause
    return Decommissioned(bookie_id, cancelled=True)


@contextmanager
def _watch() -> Iterator[Watch]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Watch(None)
        return
    with console.status("") as line:
        yield Watch(line)


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
