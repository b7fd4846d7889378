"""``quire ledger recover``: close a ledger whose writer is gone."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

import ledger_client
from ledger_client import LedgerInfo
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.quantity import count


@click.command()
@options.ledger_id
@options.cluster
@options.password
@options.as_json
def recover(*, ledger_id: int, cluster: str, password: str, as_json: bool) -> None:
    """Close LEDGER in its writer's place, with everything that was acknowledged.

    If its writer lives, it is cut off: it gets no acknowledgement any more. A ledger that
    is closed stays as it is. When too few of its bookies answer to tell where it ends, the
    command fails, and may be repeated when more of them are back.
    """
    found = trio.run(finish, partial(_recover, ledger_id, cluster, password))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    entries = count(found.last_entry + 1, "entry")
    click.echo(f"ledger {ledger_id} is closed with {entries}, {found.length} bytes")


async def _recover(ledger_id: int, cluster: str, password: str) -> LedgerInfo:
    async with ledger_client.connect(cluster) as client:
        return await client.recover_ledger(ledger_id, password=password.encode())
