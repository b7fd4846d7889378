"""``quire ledger verify``: compare every copy of every entry, and repair bad ones."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio
from rich.table import Table

from ledger_client.client import connect
from ledger_client.cluster.operations.scrubbing import mend
from ledger_client.cluster.operations.verification import (
    CopyReport,
    Fault,
    FaultyRun,
    Verification,
    verify as verify_copies,
)
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.commands.progress import show_entries
from ledger_client.commands.tables import Output, count
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.wire.stores import open_store
from metadata.outcome import CommandFailed

SHOWN_MAX = 20
WIDTH = 100


class Verified(msgspec.Struct, frozen=True):
    """The output of --json: the state of the copies, after repairs if --repair was given."""

    ledger_id: int
    entries: int
    whole: bool
    copies: list[CopyReport]
    faults: list[FaultyRun]
    """the first 10,000 runs"""
    lost: int
    """entries without a copy known to be right"""
    mended: int = 0
    """copies of entries that --repair replaced"""


@click.command()
@options.ledger_id
@click.option("--repair", is_flag=True, help="Replace bad copies by good ones from other bookies.")
@options.cluster
@options.as_json
def verify(*, ledger_id: int, repair: bool, cluster: str, as_json: bool) -> None:
    """Compare all copies of a closed LEDGER.

    Shows for each bookie how many entries are sound, missing, damaged (unreadable, or with a
    wrong checksum), different from what most bookies hold, or unknown because the bookie does
    not answer.

    Exit code 1 unless every copy is whole, with --repair after the repair.
    """
    found = trio.run(finish, partial(_verify, ledger_id, cluster, repair))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)
    if not found.whole:
        raise CommandFailed(_verdict(found, repaired=repair))


async def _verify(ledger_id: int, cluster: str, repair: bool) -> Verified:
    async with connect(cluster) as client, open_store(cluster) as store:
        catalogue = Catalogue(store, timeout_s=client._context.options.metadata_timeout_s)
        record, _ = await catalogue.get(ledger_id)
        work = f"comparing the copies of ledger {ledger_id}"
        with show_entries(work, record.last_entry + 1) as advance:
            if not repair:
                found = await verify_copies(client._context.ledgers, record, advance=advance)
                return _verified(found)
            before, after = await mend(client._context.ledgers, store, ledger_id, advance=advance)
            return _verified(after, mended=_faulty(before) - _faulty(after))


def _verified(found: Verification, mended: int = 0) -> Verified:
    return Verified(
        found.ledger_id,
        found.entries,
        found.whole,
        list(found.copies.values()),
        found.faults,
        found.lost,
        mended,
    )


def _faulty(found: Verification) -> int:
    return sum(copy.expected - copy.sound for copy in found.copies.values())


def _show(found: Verified) -> None:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("bookie")
    for head in ("sound", *(fault.value for fault in Fault)):
        table.add_column(head, justify="right")
    for copy in found.copies:
        numbers = (copy.sound, copy.missing, copy.damaged, copy.different, copy.unknown)
        table.add_row(copy.bookie_id, *map(str, numbers))
    Output(highlight=False, markup=False, width=WIDTH).print(table)
    for run in found.faults[:SHOWN_MAX]:
        click.echo(f"{_entries(run)} {run.fault.value} on {run.bookie_id}")
    if len(found.faults) > SHOWN_MAX:
        click.echo(f"and more: {len(found.faults)} runs of entries in total; --json lists them")
    if found.mended:
        click.echo(f"repaired {count(found.mended, 'copy')} of entries")
    if found.whole:
        click.echo(f"every copy of {count(found.entries, 'entry')} is whole")


def _entries(run: FaultyRun) -> str:
    if run.first_entry == run.last_entry:
        return f"entry {run.first_entry}:"
    return f"entries {run.first_entry} to {run.last_entry}:"


def _verdict(found: Verified, *, repaired: bool) -> str:
    silent = [f"{copy.bookie_id} ({copy.silent})" for copy in found.copies if copy.silent]
    parts = ["not every copy is whole"]
    if found.lost:
        parts.append(f"{count(found.lost, 'entry')} without a copy known to be right")
    if silent:
        parts.append(f"no answer from {', '.join(silent)}")
    if not repaired and any(copy.missing + copy.damaged + copy.different for copy in found.copies):
        parts.append("--repair replaces bad copies by good ones from other bookies")
    return f"ledger {found.ledger_id}: {'; '.join(parts)}"
