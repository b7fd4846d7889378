"""``bookie replace``: a bookie that lost its disks continues with empty ones."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.output import print_json
from bookie.commands.stores import open_store
from bookie.config import BookieConfig
from bookie.cookie_file import check_user
from bookie.lock import hold_folders
from bookie.succession import succeed
from metadata.records import CookieRecord
from metadata.urls import check_url


class Replaced(msgspec.Struct, frozen=True):
    """Output of ``--json``: the bookie's name and its folders."""

    bookie_id: str
    journal_folder: str
    ledger_folder: str


@click.command()
@options.bookie_of_folder
@options.bookie_id
@options.as_json
def replace(
    *,
    as_json: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
    **direct: str | None,
) -> None:
    """Let a bookie that lost its disks continue in empty folders.

    It keeps its name. Both folders must be empty, and the bookie stopped and known to the
    metadata. It gets a new cookie; the old disks, should they come back, are refused. The
    bookie then starts in limbo: it serves the entries it has, and never answers "no such
    entry" until it got all its entries back from other bookies. `quire cluster status` shows
    the progress.

    If you do not replace the bookie, repair copies its ledgers to other bookies after
    lost_after_s, and `bookie decommission` removes it from the cluster.
    """
    config = options.read_config(config_file, settings, **direct)
    check_url(config.metadata)  # before any folder is made
    record = trio.run(_replace, config)
    if as_json:
        print_json(Replaced(record.bookie_id, record.journal_folder, record.ledger_folder))
        return
    click.echo(f"{record.bookie_id} is ready to be started by `bookie run`; it is refilled then")
    click.echo(f"  journal  {record.journal_folder}")
    click.echo(f"  ledgers  {record.ledger_folder}")


async def _replace(config: BookieConfig) -> CookieRecord:
    check_user(config)
    with hold_folders(config):
        async with open_store(config.metadata) as store:
            return await succeed(config, store)
