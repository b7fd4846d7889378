"""``quire ledger write``: store a file or standard input in a new ledger.

The id is printed as soon as the ledger exists. However writing ends, the ledger is closed
after its last acknowledged entry, and the number of entries is reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.options import NewLedger
from ledger_client.commands.outcome import interrupted
from ledger_client.commands.progress import show_progress
from ledger_client.commands.streams import Frames, Lines, Splitter, chunks, pump
from ledger_client.errors import LedgerError
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.ledgers.writer import LedgerWriter
from metadata.outcome import CommandFailed, first_of


class LedgerWritten(msgspec.Struct, frozen=True):
    """The contents of the ledger when it was closed; *bytes* counts payloads."""

    ledger_id: int
    entries: int
    bytes: int
    complete: bool


@click.command()
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False), default="-")
@options.new_ledger
@click.option(
    "--framed", is_flag=True, help="The input has a size before each record, 4 bytes, big-endian."
)
@options.cluster
@options.as_json
def write(
    *,
    file: str,
    new: NewLedger,
    framed: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Store FILE, or standard input, in a new ledger and close it.

    Each line becomes an entry, including its ending, so `quire ledger read` restores the same
    bytes. The ledger's id is printed on standard output at once.
    """
    source = sys.stdin.fileno() if file == "-" else os.open(file, os.O_RDONLY)
    splitter = Frames(PAYLOAD_SIZE_MAX) if framed else Lines(PAYLOAD_SIZE_MAX)
    trio.run(_write, source, splitter, new, cluster, as_json)


async def _write(
    source: int, splitter: Splitter, new: NewLedger, cluster: str, as_json: bool
) -> None:
    async with (
        connect(cluster) as client,
        new.create(client.ledgers.create) as ledger,
    ):
        if not as_json:
            click.echo(ledger.id)
            sys.stdout.flush()
        cut_short = await interrupted(partial(_transfer, source, splitter, ledger))
        await ledger.close(wait=not cut_short)
    record = ledger.metadata
    _show(
        LedgerWritten(record.ledger_id, record.last_entry + 1, record.length, not cut_short),
        as_json,
    )
    if cut_short:
        raise click.Abort


async def _transfer(source: int, splitter: Splitter, ledger: LedgerWriter) -> None:
    with show_progress(source) as advance:

        async def watched() -> AsyncIterator[bytes]:
            async for data in chunks(source):
                yield data
                advance(len(data))

        try:
            await pump(watched(), splitter, ledger)
        except* (LedgerError, CommandFailed) as failed:
            first_of(failed).add_note(
                f"{ledger.last_confirmed + 1} entries of ledger {ledger.id} are acknowledged"
            )
            raise


def _show(written: LedgerWritten, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(written).decode())
        return
    begin = "" if written.complete else "interrupted; "
    click.echo(
        f"{begin}{written.entries} entries, {written.bytes} bytes acknowledged and "
        f"ledger {written.ledger_id} closed",
        err=True,
    )
