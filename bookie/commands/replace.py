"""``bookie replace``: a bookie whose disks are lost goes on with empty ones."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.output import print_json
from bookie.config import BookieConfig
from bookie.lock import hold_folders
from bookie.succession import succeed
from metadata.records import CookieRecord
from metadata.urls import open_store


class Replaced(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

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
    """Let a bookie whose folders are lost go on in empty ones, under its own name.

    Needs both folders empty, and the bookie stopped and known to the metadata. Writes it a
    new cookie; the old disks, should they come back, are refused from then on. Started, the
    bookie is in limbo: it serves what it has and denies nothing, until it got all its
    entries back from the others. `quire cluster status` shows how far that is.

    Without a replacement its ledgers are copied to other bookies after a while, and
    `bookie decommission` forgets it.
    """
    config = options.read_config(config_file, settings, **direct)
    record = trio.run(_replace, config)
    if as_json:
        print_json(Replaced(record.bookie_id, record.journal_folder, record.ledger_folder))
        return
    click.echo(f"{record.bookie_id} is ready to be started by `bookie run`; it is refilled then")
    click.echo(f"  journal  {record.journal_folder}")
    click.echo(f"  ledgers  {record.ledger_folder}")


async def _replace(config: BookieConfig) -> CookieRecord:
    with hold_folders(config):
        async with open_store(config.metadata) as store:
            return await succeed(config, store)
