"""``bookie metadata``: move a cluster's metadata to another store, back it up, and check it."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bookie.commands import options
from bookie.commands.output import count, print_json
from metadata.archive import CHUNK_SIZE, Archive, ArchiveHeader, Spool, private_file
from metadata.audit import Audited, Finding, audit
from metadata.cluster_url import is_cluster_url, shown
from metadata.errors import MetadataUnavailable
from metadata.moving import Imported, MovableStore, export_store, import_archive
from metadata.outcome import CommandFailed, Exit
from metadata.urls import SQLITE_SCHEME, open_movable

STREAM = "-"
_store = click.option(
    "--metadata",
    "url",
    required=True,
    metavar="URL",
    help="The metadata store, as the bookies' setting `metadata` names it.",
)
_file = click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE"
)


class Exported(msgspec.Struct, frozen=True):
    """Output of ``export --json``."""

    cluster: str
    keys: int
    counters: dict[str, int]
    consistent: bool
    leases: int
    sha256: str


class MovedIn(msgspec.Struct, frozen=True):
    """Output of ``import --json``.

    *resumed_at*: keys that an earlier attempt had put. *marked*: closed ledgers that repair is to
    look at, since the archive may be a backup.
    """

    cluster: str
    keys: int
    counters: dict[str, int]
    resumed_at: int
    sha256: str
    marked: int = 0


class Checked(msgspec.Struct, frozen=True):
    """The last line of ``check --json``: records, and how many of each severity were found."""

    records: int
    consistent: bool
    broken: int
    leftover: int
    foreign: int


@click.group()
def metadata() -> None:
    """Move a cluster's metadata to another store, back it up, and check it.

    \b
    To move: stop all bookies and clients, then
      bookie metadata export house.jsonl --metadata sqlite:///data/metadata.db
      bookie metadata import house.jsonl --metadata zk://HOST:2181/quire
      bookie metadata check --metadata zk://HOST:2181/quire
    and start the bookies with the new URL. Their folders stay as they are.

    The same way leads from ZooKeeper back to a SQLite file.
    """  # noqa: D301 - the backslash keeps lines


@metadata.command("export")
@_file
@_store
@click.option("--force", is_flag=True, help="Also while the cluster runs, as a backup.")
@options.as_json
def export_metadata(*, file: Path, url: str, force: bool, as_json: bool) -> None:
    """Write all that the store holds into FILE, or to standard output if it is -.

    FILE appears once it is whole, and replaces one of that name. Only you can read it, since it
    holds the passwords of ledgers. It has keys and values, counters and the store's time.
    Leases are left out, so stop the cluster first; the command refuses while leases are live.

    With --force it is a backup of a running cluster, of one moment if the store can (SQLite
    can); the report says so. To go back to a backup loses all that was changed since, also
    messages.
    """
    to_stderr = str(file) == STREAM
    folder = None if to_stderr else file.resolve().parent
    if folder is not None and not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder, so {file.name} cannot be written there")
    with tempfile.TemporaryFile(dir=folder) as spooled:
        spool = Spool(spooled)
        header = trio.run(_export, spool, url, force)
        with _output(file) as to:
            digest = spool.finish(header, to)
    exported = Exported(
        header.cluster, header.keys, header.counters, header.consistent, header.leases, digest
    )
    if as_json:
        click.echo(msgspec.json.encode(exported), err=to_stderr)
        return
    if not exported.consistent:
        click.echo("the store changed meanwhile: this is not of one moment", err=True)
    if exported.leases:
        click.echo(f"the cluster ran, with {count(exported.leases, 'live lease')}", err=True)
    click.echo(f"exported {_contents(exported)}", err=to_stderr)


@metadata.command("import")
@_file
@_store
@click.option("--force", is_flag=True, help="Also from an archive that is not of one moment.")
@options.as_json
def import_metadata(*, file: Path, url: str, force: bool, as_json: bool) -> None:
    """Put all that FILE holds into an empty store; - reads standard input.

    FILE is read and checked to its end before anything is changed. After an interruption run
    the same command again: it continues. Until then no bookie starts on the store.

    Ids, versions and epochs of leases continue above those of the old store, and its time
    does not go back. The old store stays as it is: never start bookies on both.

    From a backup, or a file that is more than an hour old, closed ledgers are marked for repair:
    their copies may have moved since, and bookies delete no copies of a marked ledger.
    """
    name = "standard input" if str(file) == STREAM else str(file)
    with _input(file) as source:
        archive = Archive(source, name)
        if not archive.header.consistent and not force:
            raise CommandFailed(
                f"{name} is not of one moment, because the cluster ran when it was exported; "
                "--force imports it nevertheless, and `bookie metadata check` shows what is wrong"
            )
        imported = trio.run(_import, archive, url)
    header = archive.header
    done = MovedIn(
        header.cluster,
        imported.keys,
        header.counters,
        imported.resumed_at,
        archive.digest,
        imported.marked,
    )
    if as_json:
        print_json(done)
        return
    if done.resumed_at:
        click.echo(f"continued after {count(done.resumed_at, 'key')}", err=True)
    click.echo(f"imported {_contents(done)}")
    if done.marked:
        click.echo(
            f"marked {count(done.marked, 'closed ledger')}: until repair has looked for their "
            "copies, bookies delete none; `quire cluster status` counts them"
        )


@metadata.command("check")
@_store
@options.as_json
def check_metadata(*, url: str, as_json: bool) -> None:
    """Read all records and report those that break a rule; nothing is changed.

    A record is broken if it cannot be decoded, or contradicts another one: a lane that names a
    ledger which does not exist, versions that overlap, a ledger on an unknown bookie and the
    like. Leftovers are no fault: the cluster cleans them up by itself. The cluster may run.

    With --json each finding is a line, and the last line counts them. Exit code 1 if a record
    is broken.
    """
    counts: Counter[str] = Counter()

    def show(finding: Finding) -> None:
        counts[finding.severity] += 1
        if as_json:
            print_json(finding)
        else:
            click.echo(f"{finding.severity}: {finding.key}: {finding.problem}")

    found = trio.run(_check, url, show)
    done = Checked(
        found.records, found.consistent, counts["broken"], counts["leftover"], counts["foreign"]
    )
    if as_json:
        print_json(done)
    else:
        _summarise(done)
    if done.broken:
        raise click.exceptions.Exit(Exit.FAILED)


def _summarise(done: Checked) -> None:
    if not done.consistent:
        click.echo("the store changed meanwhile, so a finding may be of no moment", err=True)
    found = f"{done.broken} broken, {count(done.leftover, 'leftover')}, {done.foreign} foreign"
    click.echo(f"checked {count(done.records, 'record')}: {found}")


def _contents(done: Exported | MovedIn) -> str:
    of_cluster = f" of cluster {done.cluster}" if done.cluster else ""
    return f"{count(done.keys, 'key')} and {count(len(done.counters), 'counter')}{of_cluster}"


async def _export(spool: Spool, url: str, force: bool) -> ArchiveHeader:
    _check_there(url)
    with _progress("reading", None) as show:
        async with _open(url) as store:
            return await export_store(
                store, spool, program=version("quire"), force=force, on_progress=show
            )


async def _import(archive: Archive, url: str) -> Imported:
    with _progress("writing", archive.header.keys) as show:
        async with _open(url, create=True) as store:
            return await import_archive(store, archive, on_progress=show)


async def _check(url: str, show: Callable[[Finding], None]) -> Audited:
    _check_there(url)
    with _progress("checking", None) as progress:
        async with _open(url) as store, store.snapshot() as snapshot:
            return await audit(snapshot, on_finding=show, on_progress=progress)


def _check_there(url: str) -> None:
    """Raise CommandFailed if a SQLite file is missing, which opening it would create."""
    if url.startswith(SQLITE_SCHEME) and not Path(url.removeprefix(SQLITE_SCHEME)).is_file():
        raise CommandFailed(f"there is no metadata store at {url}")


@asynccontextmanager
async def _open(url: str, *, create: bool = False) -> AsyncIterator[MovableStore]:
    """Open the store itself. Raises CommandFailed with the code for a store that is away."""
    if is_cluster_url(url):
        raise CommandFailed(
            f"{shown(url)} names bookies, which must be stopped; name their store, as their "
            "setting `metadata` does",
            code=Exit.USAGE,
        )
    try:
        async with open_movable(url, create=create) as store:
            yield store
    except MetadataUnavailable as cause:
        raise CommandFailed.unreachable(str(cause)) from cause


@contextmanager
def _output(file: Path) -> Iterator[BinaryIO]:
    if str(file) == STREAM:
        yield sys.stdout.buffer
        sys.stdout.flush()  # it fails here if it does, before the export is reported
        return
    with private_file(file) as to:
        yield to


@contextmanager
def _input(file: Path) -> Iterator[BinaryIO]:
    """Open FILE. Standard input is copied, because an archive is read twice."""
    if str(file) != STREAM:
        with file.open("rb") as source:
            yield source
        return
    with tempfile.TemporaryFile() as copy:
        while chunk := sys.stdin.buffer.read(CHUNK_SIZE):
            copy.write(chunk)
        yield copy


@contextmanager
def _progress(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and nothing else."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)
