"""``bookie config``: print a sample of all settings, or those a bookie would run with."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from bookie.commands import options
from bookie.config import sample_file


@click.command()
@click.option("--effective", is_flag=True, help="Print the settings a bookie would use, as JSON.")
@options.bookie_of_folder
def config(
    *,
    effective: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
    **direct: str | None,
) -> None:
    """Print a sample bookie.toml with every setting.

    Each has its unit, default and bounds.

    \b
    Create a file to edit:     bookie config > bookie.toml
    Check an edited file:      bookie config --effective --config bookie.toml

    Settings may also be given on the command line: --set memtable_size=128MiB.
    """  # noqa: D301 - the backslash keeps lines
    if not effective:
        click.echo(sample_file(), nl=False)
        return
    found = options.read_config(config_file, settings, **direct)
    click.echo(msgspec.json.format(msgspec.json.encode(found)))
