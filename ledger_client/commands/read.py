"""``quire ledger read`` and ``follow``: entries to standard output, exactly as they were sent."""

from __future__ import annotations

from functools import partial

import click
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.output import Form, form_for, put

_framed = click.option("--framed", is_flag=True, help="A 4-byte big-endian size before each entry.")
_first = click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, show_default=True, metavar="ENTRY"
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
    help="The last entry to read.",
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
    password: str,
    as_json: bool,
) -> None:
    """Write the entries of LEDGER to standard output.

    Without --framed they stand one after the other, so that a file written line by
    line comes back byte for byte. With --json each is an object on a line of its own, the
    payload in base64. Of a ledger that is not closed, what is acknowledged by now is read.
    """
    form = form_for(framed=framed, json=as_json)
    trio.run(partial(_read, ledger_id, first, last, form, cluster, password))


async def _read(
    ledger_id: int, first: int, last: int | None, form: Form, cluster: str, password: str
) -> None:
    async with (
        ledger_client.connect(cluster) as client,
        client.open_ledger(ledger_id, password=password.encode(), recover=False) as reader,
    ):
        end = reader.last_confirmed if last is None else last
        if last is None and not reader.closed:
            _hint(ledger_id, end)
        if last is None and first == end + 1:
            return  # nothing there yet, and nothing in particular was asked for
        async for batch in reader.read_batches(first, max(end, first)):
            await put(form(batch))


def _hint(ledger_id: int, end: int) -> None:
    click.echo(
        f"ledger {ledger_id} is not closed: this ends with entry {end}, the last one known to be "
        f"acknowledged; `quire ledger follow {ledger_id}` waits for more, and if its writer is "
        f"gone `quire ledger recover {ledger_id}` closes it",
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
    *, ledger_id: int, first: int, framed: bool, cluster: str, password: str, as_json: bool
) -> None:
    """Write the entries of LEDGER as they are acknowledged, until it is closed.

    Ends with Ctrl-C too. The output is that of `quire ledger read`.
    """
    form = form_for(framed=framed, json=as_json)
    trio.run(partial(_follow, ledger_id, first, form, cluster, password))


async def _follow(ledger_id: int, first: int, form: Form, cluster: str, password: str) -> None:
    async with (
        ledger_client.connect(cluster) as client,
        client.open_ledger(ledger_id, password=password.encode(), recover=False) as reader,
    ):
        entries = reader.follow(first)
        while (batch := await entries.next_batch()) is not None:
            await put(form(batch))
