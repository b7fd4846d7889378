"""``quire group export`` and ``import``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.group.names import GroupParam, group_name
from ledger_client.commands.group.new_places import GroupReset, print_reset
from ledger_client.commands.outcome import finish
from ledger_client.errors import BadGroup
from ledger_client.groups.exports import EXPORT_SIZE_MAX, GroupExport
from ledger_client.topics.positions import Position
from metadata.outcome import confirm


def _in_a_folder(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a file in a folder that does not exist, before anything is asked."""
    folder = Path(value).parent
    if not folder.is_dir():
        raise click.BadParameter(f"{folder} is no folder", context, parameter)
    return value


@click.command()
@group_name
@click.argument(
    "file",
    type=click.Path(allow_dash=True, dir_okay=False),
    default="-",
    callback=_in_a_folder,
)
@options.cluster
def export(*, name: str, file: str, cluster: str) -> None:
    """Write how far a group came to FILE as JSON. Without FILE, write to standard output.

    `quire group import` puts it back. The places exist in this cluster alone.
    """
    found = trio.run(finish, partial(_export, cluster, name))
    with click.open_file(file, "wb", atomic=file != "-") as output:
        output.write(found.to_json())


async def _export(cluster: str, name: str) -> GroupExport:
    async with connect(cluster) as client:
        return await client.groups.export(name)


class ImportRequest(NamedTuple):
    """The options and arguments of the command line."""

    cluster: str
    export: GroupExport
    group: str


@click.command("import")
@click.argument("file", type=click.Path(exists=True, allow_dash=True, dir_okay=False))
@click.option("--group", type=GroupParam(), metavar="NAME", help="Import as this group.")
@click.option("--dry-run", is_flag=True, help="Check it, show its places, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.cluster
@options.as_json
def import_(
    *, file: str, group: str | None, dry_run: bool, yes: bool, cluster: str, as_json: bool
) -> None:
    """Let a group go on where FILE says. Its consumers must be stopped.

    FILE comes from `quire group export`; "-" is standard input. The group is created if it does
    not exist. Nothing is changed if a place does not exist in this cluster, or a topic was created
    anew since. The places are shown before anything is changed.
    """
    if file == "-" and not (yes or dry_run):
        raise click.UsageError("standard input has the export; pass --yes or --dry-run")
    parsed = _read(file)
    request = ImportRequest(cluster, parsed, group or parsed.group)
    if dry_run or not yes:
        planned = trio.run(finish, partial(_import, request, dry_run=True))
        print_reset(GroupReset(request.group, True, planned), as_json)
        if dry_run:
            return
        confirm(f"Let group {request.group} go on there?", refused="nothing was changed")
    done = trio.run(finish, partial(_import, request, dry_run=False))
    if as_json or yes:
        print_reset(GroupReset(request.group, False, done), as_json)


def _read(file: str) -> GroupExport:
    """Return the export in a file. Raises BadGroup, OSError."""
    with click.open_file(file, "rb") as source:
        text = source.read(EXPORT_SIZE_MAX + 1)
    if len(text) > EXPORT_SIZE_MAX:
        raise BadGroup(f"{file} has more than {EXPORT_SIZE_MAX >> 20} MiB: no export of a group")
    return GroupExport.parse(text)


async def _import(request: ImportRequest, *, dry_run: bool) -> Position:
    async with connect(request.cluster) as client:
        return await client.groups.restore(request.export, group=request.group, dry_run=dry_run)
