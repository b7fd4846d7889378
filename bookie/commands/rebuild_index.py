"""``bookie rebuild-index``: restore a bookie that lost its mark, ledger table or indexes."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from bookie.commands import options
from bookie.commands.output import count, print_json
from bookie.config import BookieConfig
from bookie.cookie_file import check_user
from bookie.lock import hold_folders
from bookie.rebuild import Rebuilt, Step, rebuild, total_size
from metadata.outcome import CommandFailed, Exit


@click.command("rebuild-index")
@options.data_folder
@options.config_file
@options.settings
@options.as_json
def rebuild_index(
    *, data_folder: str | None, config_file: Path | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Rebuild lost indexes from entry logs and journals.

    The ledger table and the mark (the last checkpoint) are rebuilt, too.

    Use it for a bookie that does not start because its lastMark or its indexes are missing
    or damaged. The bookie must be stopped. Afterwards every ledger is fenced on this bookie,
    since fences may be among the lost data: writers continue in a new ledger, and readers
    are not affected. May be repeated, also after an interruption.

    Exit code 1 if damage was found. The rebuild is complete even then, and the bookie
    starts, but in limbo: it answers "I/O error" instead of "no such entry" until repair has
    compared its ledgers with their other copies. The bookie is also in limbo if the mark was
    lost, because journal files may then be missing without a trace. A lost or damaged ledger
    table counts as damage.
    """
    config = options.read_config(config_file, settings, data_folder=data_folder)
    for folder in (config.journal_folder, config.ledger_folder):
        if not Path(folder).is_dir():
            raise CommandFailed(f"{folder} is not there; --data names a bookie's folder")
    check_user(config)
    with hold_folders(config):
        rebuilt = _rebuild(config)
    if as_json:
        print_json(rebuilt)
    else:
        _show(rebuilt)
    if rebuilt.damages:
        raise click.exceptions.Exit(Exit.FAILED)


def _rebuild(config: BookieConfig) -> Rebuilt:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=total_size(config))

        def show(step: Step) -> None:
            progress.update(task, advance=step.size, description=step.text)

        return rebuild(config, show)


def _show(rebuilt: Rebuilt) -> None:
    for damage in rebuilt.damages:
        click.echo(f"damaged: {damage.file} at offset {damage.offset}", err=True)
    logs = count(rebuilt.logs, "entry log")
    entries = f"{rebuilt.entries:,} entries"
    click.echo(f"indexed {entries} in {logs}")
    files = count(rebuilt.journal_files, "journal file")
    click.echo(f"replayed {count(rebuilt.journal_records, 'record')} of {files}")
    click.echo(f"fenced {count(rebuilt.ledgers, 'ledger')}; the bookie can be started")
    if rebuilt.limbo:
        click.echo("in limbo: records may be lost here; see the file `limbo`", err=True)
