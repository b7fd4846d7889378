"""``bookie format``: create a bookie, reset one, or accept that its folders were moved."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.output import count, print_json, size
from bookie.commands.stores import open_store
from bookie.config import BookieConfig
from bookie.cookie import adopt_folders, check_cookie
from bookie.cookie_file import check_user, look
from bookie.lock import hold_folders
from bookie.wiping import Wiped, wipe_bookie
from metadata.outcome import CommandFailed, confirm
from metadata.records import CookieRecord
from metadata.urls import check_url


class Formatted(msgspec.Struct, frozen=True):
    """Output of ``--json``: the bookie's name and its folders."""

    bookie_id: str
    journal_folder: str
    ledger_folder: str
    wiped: Wiped | None = None


@click.command("format")
@options.bookie_of_folder
@options.bookie_id
@click.option("--force", is_flag=True, help="Delete the bookie in the folders, and all its copies.")
@click.option("--moved", is_flag=True, help="Accept that the folders were moved to a new place.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before --force deletes.")
@options.as_json
def format_folders(
    *,
    force: bool,
    moved: bool,
    yes: bool,
    as_json: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
    **direct: str | None,
) -> None:
    """Create the folders and the identity of a new bookie.

    `bookie run` does this by itself for a new bookie. Use this command when a bookie refuses
    to start: with --moved after its folders were moved, with --force to delete its data and
    start again under the same name. Its ledgers then lack the copies that were here. Repair
    restores them, and until then the bookie is in limbo. Entries without another copy are
    lost. The bookie must not be running.
    """
    if force and moved:
        raise click.UsageError("--force and --moved exclude each other")
    config = options.read_config(config_file, settings, **direct)
    check_url(config.metadata)  # before any folder is made
    if force and not yes:
        _ask(config)
    formatted = trio.run(_format, config, force, moved)
    if as_json:
        print_json(formatted)
    else:
        _show(formatted)


def _ask(config: BookieConfig) -> None:
    click.echo(f"This deletes every entry in {config.journal_folder}", err=True)
    click.echo(f"and in {config.ledger_folder}, for good.", err=True)
    confirm("Delete them?", refused="nothing was deleted")


async def _format(config: BookieConfig, force: bool, moved: bool) -> Formatted:
    check_user(config)
    with hold_folders(config):
        async with open_store(config.metadata, create=not moved) as store:
            if moved:
                return _formatted(await adopt_folders(config, store))
            if not force:
                await _check_no_bookie(config)
                return _formatted(await check_cookie(config, store))
            wiped = await wipe_bookie(config, store)
            config = msgspec.structs.replace(config, bookie_id=wiped.bookie_id)
            return _formatted(await check_cookie(config, store), wiped)


async def _check_no_bookie(config: BookieConfig) -> None:
    for folder in await look(config):
        if folder.cookie is not None and folder.cookie.complete:
            raise CommandFailed(
                f"{folder.path}: holds bookie {folder.cookie.bookie_id} already; "
                "`bookie run` starts it, --force deletes it"
            )


def _formatted(record: CookieRecord, wiped: Wiped | None = None) -> Formatted:
    return Formatted(record.bookie_id, record.journal_folder, record.ledger_folder, wiped)


def _show(formatted: Formatted) -> None:
    if formatted.wiped is not None:
        wiped = formatted.wiped
        click.echo(f"deleted {count(wiped.files, 'file')}, {size(wiped.size)}")
    click.echo(f"{formatted.bookie_id} is ready to be started by `bookie run`")
    click.echo(f"  journal  {formatted.journal_folder}")
    click.echo(f"  ledgers  {formatted.ledger_folder}")
