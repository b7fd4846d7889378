"""``quire ledger write``: a file or standard input becomes the entries of a new ledger.

The id is printed as soon as the ledger exists. However the writing ends, the ledger is
closed after its last acknowledged entry, and how many there are is told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.errors import CommandFailed, Interrupted, first_of
from ledger_client.commands.interruption import interrupted
from ledger_client.commands.progress import show_progress
from ledger_client.commands.pump import chunks, pump
from ledger_client.commands.records import Frames, Lines, Splitter
from ledger_client.commands.target import Target, fill_quorums
from ledger_client.errors import LedgerError
from ledger_client.writer import PAYLOAD_SIZE_MAX, LedgerWriter


class Written(msgspec.Struct, frozen=True):
    """What a ledger held when it was closed; *bytes* are those of its payloads."""

    ledger_id: int
    entries: int
    bytes: int
    complete: bool


@click.command()
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False), default="-")
@options.quorums
@options.digest
@options.password
@options.new_id
@click.option("--framed", is_flag=True, help="Records with a 4-byte big-endian size in front.")
@options.cluster
@options.as_json
def write(
    *,
    file: str,
    ensemble: int,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    password: str,
    new_id: int | None,
    framed: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Write FILE, or standard input, into a new ledger, and close it.

    Each line is an entry, its ending included, so that `quire ledger read` gives back the
    same bytes. The ledger's id is printed on standard output at once.
    """
    target = Target(
        cluster=cluster,
        quorums=fill_quorums(ensemble, write_quorum, ack_quorum),
        digest=digest,
        password=password,
        ledger_id=new_id,
    )
    source = sys.stdin.fileno() if file == "-" else os.open(file, os.O_RDONLY)
    splitter = Frames(PAYLOAD_SIZE_MAX) if framed else Lines(PAYLOAD_SIZE_MAX)
    trio.run(_write, source, splitter, target, as_json)


async def _write(source: int, splitter: Splitter, target: Target, as_json: bool) -> None:
    async with (
        ledger_client.connect(target.cluster) as client,
        target.create(client) as ledger,
    ):
        if not as_json:
            click.echo(ledger.id)
            sys.stdout.flush()
        cut_short = await interrupted(partial(_transfer, source, splitter, ledger))
        if cut_short:
            await ledger.abort()
        else:
            await ledger.close()
    record = ledger.metadata
    _tell(Written(record.ledger_id, record.last_entry + 1, record.length, not cut_short), as_json)
    if cut_short:
        raise Interrupted


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


def _tell(written: Written, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(written).decode())
        return
    begin = "" if written.complete else "interrupted; "
    click.echo(
        f"{begin}{written.entries} entries, {written.bytes} bytes acknowledged and "
        f"ledger {written.ledger_id} closed",
        err=True,
    )
