"""``quire tso``: the cluster's timestamps."""

from __future__ import annotations

import click

from ledger_client.commands import DeferredGroup

_COMMANDS = {
    "get": "ledger_client.commands.tso.timestamps:get",
    "parse": "ledger_client.commands.tso.timestamps:parse",
    "reset": "ledger_client.commands.tso.timestamps:reset",
    "bench": "ledger_client.commands.tso.bench:bench",
}


@click.group(cls=DeferredGroup, places=_COMMANDS)
def tso() -> None:
    """Take, read and measure timestamps, which put the events of a cluster in one order.

    The bookie that leads hands them out. A timestamp is an integer of 64 bits: milliseconds
    since 1970 in UTC, and 18 bits that count within the millisecond.
    """
