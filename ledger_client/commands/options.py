"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ledger_client.commands.size import Size

Command = Callable[..., Any]

DEFAULT_CLUSTER = "bookie://127.0.0.1:3181"

cluster = click.option(
    "--cluster",
    envvar="QUIRE_CLUSTER",
    default=DEFAULT_CLUSTER,
    show_default=True,
    metavar="URL",
    help="Any bookies of the cluster: bookie://HOST:PORT[,HOST:PORT...], with a login "
    "bookie://USER:PASSWORD@HOST:PORT, over TLS bookie+tls://...?ca=FILE. Also QUIRE_CLUSTER.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
password = click.option(
    "--password",
    envvar="QUIRE_PASSWORD",
    default="",
    metavar="TEXT",
    help="The ledger's password. Also QUIRE_PASSWORD, which other users cannot see.",
)
folder = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    show_default="the system's temporary one",
    help="Where to put temporary files: the disk to measure.",
)
floor_size = click.option(
    "--floor-bytes",
    "floor_size",
    type=Size(),
    default="512MiB",
    show_default=True,
    help="How much to write and read to measure the disk itself.",
)
digest = click.option(
    "--digest",
    type=click.Choice(["crc32c", "crc32", "hmac", "dummy"]),
    default="crc32c",
    show_default=True,
    help="How entries are protected from end to end; dummy: not at all.",
)
new_id = click.option(
    "--id",
    "new_id",
    type=click.IntRange(0, 2**63 - 1),
    metavar="LEDGER",
    show_default="a fresh one",
    help="The id of the new ledger; it must not be taken.",
)
ledger_id = click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))
_ensemble = click.option(
    "--ensemble",
    type=int,
    default=3,
    show_default=True,
    help="Bookies that hold the ledger.",
)
_write_quorum = click.option(
    "--write-quorum",
    type=int,
    show_default="the ensemble",
    help="Bookies that each entry is written to.",
)
_ack_quorum = click.option(
    "--ack-quorum",
    type=int,
    show_default="more than half of the write quorum",
    help="Bookies that must have synced an entry before it is acknowledged.",
)


def quorums(command: Command) -> Command:
    """Add --ensemble, --write-quorum and --ack-quorum."""
    return _ensemble(_write_quorum(_ack_quorum(command)))
