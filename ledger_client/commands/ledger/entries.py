"""``quire ledger write``, ``read`` and ``follow``: entries from and to files, byte for byte.

write prints the id as soon as the ledger exists. However writing ends, the ledger is closed after
its last acknowledged entry, and the number of entries is reported.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.options import NewLedger
from ledger_client.commands.outcome import finish, interrupted
from ledger_client.commands.progress import show_progress
from ledger_client.commands.streams import Frames, Lines, Splitter, chunks, join_framed, pump, put
from ledger_client.errors import LedgerError
from ledger_client.ledgers.entries import EntryBatch
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


# --- reading ---------------------------------------------------------------------------


_framed = click.option(
    "--framed", is_flag=True, help="Precede each entry by its size, 4 bytes, big-endian."
)
_first = click.option(
    "--from",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="ENTRY",
    help="Begin at this entry.",
)


@click.command()
@options.ledger_id
@_first
@click.option(
    "--to",
    "last",
    type=click.IntRange(min=0),
    metavar="ENTRY",
    show_default="the last confirmed one",
    help="End at this entry.",
)
@_framed
@options.cluster
@options.password
@options.as_json
def read(
    *,
    ledger_id: int,
    first: int,
    last: int | None,
    framed: bool,
    cluster: str,
    password: bytes,
    as_json: bool,
) -> None:
    """Print the entries of LEDGER.

    Entries are written one after the other, so a file stored by `quire ledger write` comes
    back byte for byte. With --json, each is an object on a line, with the payload in base64. Of
    an open ledger, the entries acknowledged so far are read.
    """
    form = form_for(framed=framed, json=as_json)
    trio.run(finish, partial(_read, ledger_id, first, last, form, cluster, password))


async def _read(
    ledger_id: int, first: int, last: int | None, form: Form, cluster: str, password: bytes
) -> None:
    async with (
        connect(cluster) as client,
        client.ledgers.open(ledger_id, password=password, recover=False) as reader,
    ):
        end = reader.last_confirmed if last is None else last
        if last is None and not reader.closed:
            _hint(ledger_id, end)
        if last is None and first == end + 1:
            return  # the ledger is empty so far
        async for batch in reader.read_batches(first, max(end, first)):
            await put(form(batch))


def _hint(ledger_id: int, end: int) -> None:
    click.echo(
        f"ledger {ledger_id} is open: this output ends with entry {end}, the last one known to be "
        f"acknowledged; `quire ledger follow {ledger_id}` waits for more, and if its writer is "
        f"gone, `quire ledger recover {ledger_id}` closes it",
        err=True,
    )


@click.command()
@options.ledger_id
@_first
@_framed
@options.cluster
@options.password
@options.as_json
def follow(
    *, ledger_id: int, first: int, framed: bool, cluster: str, password: bytes, as_json: bool
) -> None:
    """Print the entries of LEDGER as they are acknowledged.

    Ends when the ledger is closed, or with Ctrl-C. The output has the form of
    `quire ledger read`.
    """
    form = form_for(framed=framed, json=as_json)
    trio.run(finish, partial(_follow, ledger_id, first, form, cluster, password))


async def _follow(ledger_id: int, first: int, form: Form, cluster: str, password: bytes) -> None:
    async with (
        connect(cluster) as client,
        client.ledgers.open(ledger_id, password=password, recover=False) as reader,
    ):
        entries = reader.follow(first)
        while (batch := await entries.next_batch()) is not None:
            await put(form(batch))


# --- Forms of entries -------------------------------------------------------------------


Form = Callable[[EntryBatch], bytes]


def as_lines(batch: EntryBatch) -> bytes:
    """Concatenate the payloads; lines still have their endings."""
    return b"".join(batch.payloads())


def as_frames(batch: EntryBatch) -> bytes:
    """Return the payloads, each preceded by its size."""
    return join_framed(list(batch.payloads()))


def as_json(batch: EntryBatch) -> bytes:
    """Return a JSON object per line and entry, with the payload in base64."""
    return b"".join(
        msgspec.json.encode(
            {
                "ledger_id": entry.ledger_id,
                "entry_id": entry.entry_id,
                "payload": base64.b64encode(entry.payload).decode(),
            }
        )
        + b"\n"
        for entry in batch
    )


def form_for(*, framed: bool, json: bool) -> Form:
    """Return the form that the options ask for."""
    if framed and json:
        raise click.UsageError("--framed and --json exclude each other")
    if json:
        return as_json
    return as_frames if framed else as_lines
