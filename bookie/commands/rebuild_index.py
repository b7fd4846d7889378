"""``bookie rebuild-index``: bring a bookie back whose mark, table or indexes are lost."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from bookie.commands import options
from bookie.commands.outcome import CommandFailed, DamageFound
from bookie.commands.output import count, print_json
from bookie.config import BookieConfig
from bookie.lock import hold_folders
from bookie.rebuild import Rebuilt, Step, rebuild, total_size


@click.command("rebuild-index")
@options.data_folder
@options.config_file
@options.settings
@options.as_json
def rebuild_index(
    *, data_folder: str | None, config_file: Path | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Build indexes, ledger table and mark anew from entry logs and journals.

    For a bookie that does not start because its lastMark is missing or damaged, or whose
    indexes are. The bookie must be stopped. Every ledger ends up fenced on this bookie,
    since a fence may be among what was lost: writers go on in a new ledger, and readers
    notice nothing. May be repeated, also after it was interrupted.

    Exit code 1 when damage was met. The work is done all the same, and the bookie starts;
    but it is in limbo: it answers "I/O error" instead of "no such entry", until repair has
    compared its ledgers with their other copies. So it is after the mark was lost, for then
    nobody knows whether journal files are missing.
    """
    config = options.read_config(config_file, settings, data_folder=data_folder)
    for folder in (config.journal_folder, config.ledger_folder):
        if not Path(folder).is_dir():
            raise CommandFailed(f"{folder} is not there; --data names a bookie's folder")
    with hold_folders(config):
        rebuilt = _rebuild(config)
    if as_json:
        print_json(rebuilt)
    else:
        _tell(rebuilt)
    if rebuilt.damages:
        raise DamageFound


def _rebuild(config: BookieConfig) -> Rebuilt:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=total_size(config))

        def tell(step: Step) -> None:
            progress.update(task, advance=step.size, description=step.text)

        return rebuild(config, tell)


def _tell(rebuilt: Rebuilt) -> None:
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
