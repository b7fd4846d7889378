"""``bookie inspect entry``: all stored copies of one entry."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.call import RemoteBookie, read_entry
from bookie.commands.inspect.report import DamageReport
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.entry import StoredEntry, hexdump, take_apart
from bookie.inspection.ledgers import read_unflushed
from bookie.inspection.log import list_logs, read_index, read_log
from metadata.calls import EntryLocation, EntryPlace
from metadata.outcome import CommandFailed
from native.digest import Digest, DigestKind
from native.frame import Code
from native.journal import Damage, Record


class Copy(msgspec.Struct, frozen=True):
    """A stored copy and its place; *entry* is None if the record is too short for an entry."""

    place: str
    offset: int
    entry: StoredEntry | None


@click.command()
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(0))
@click.argument("entry_id", metavar="ENTRY", type=click.IntRange(0))
@of_files_or_address
@click.option(
    "--digest",
    "kind",
    type=click.Choice([kind.name.lower() for kind in DigestKind]),
    default="crc32c",
    show_default=True,
    help="Kind of digest that the ledger's entries have.",
)
@click.option("--password", default="", help="Password of the ledger; digest hmac needs it.")
@click.option("--raw", is_flag=True, help="Write the payload and nothing else.")
@options.as_json
def entry(
    *,
    place: InspectionTarget,
    ledger_id: int,
    entry_id: int,
    kind: str,
    password: str,
    raw: bool,
    as_json: bool,
) -> None:
    """Show one entry: its place, header, payload and digest.

    With --data, this shows all copies in the files: those in entry logs (several after a
    compaction or a repeated add), and the one in the journal until it is flushed. Exit code
    1 if there is no copy, or the digest of one is wrong.
    """
    report = DamageReport(as_json=as_json)
    digest = Digest(DigestKind[kind.upper()], password.encode())
    if place.address:
        copies = [_online(place, ledger_id, entry_id, digest)]
    else:
        copies = list(_offline(place, ledger_id, entry_id, digest, report))
    if not copies:
        report.conclude()
        raise CommandFailed(f"entry {entry_id} of ledger {ledger_id} is not on this bookie")
    for copy in copies[:1] if raw else copies:
        _print(copy, raw=raw, as_json=as_json)
    report.conclude()
    if not all(copy.entry is not None and copy.entry.sound for copy in copies):
        raise CommandFailed("a digest is wrong: damage, or another --digest or --password")


# --- finding ---------------------------------------------------------------------------


def _online(place: InspectionTarget, ledger_id: int, entry_id: int, digest: Digest) -> Copy:
    found = place.ask(lambda remote: _locate(remote, ledger_id, entry_id))
    response = trio.run(read_entry, place.address, ledger_id, entry_id)
    if response.code != Code.OK:
        code = Code(response.code).name if response.code in set(Code) else response.code
        raise CommandFailed(f"entry {entry_id} of ledger {ledger_id}: the bookie answers {code}")
    where = f"log {found.log_id:08x}" if found.source == "log" else found.source
    return Copy(where, found.offset, take_apart(bytes(response.body), digest))


async def _locate(remote: RemoteBookie, ledger_id: int, entry_id: int) -> EntryPlace:
    return await remote.ask(EntryLocation(ledger_id, entry_id), EntryPlace)


def _offline(
    place: InspectionTarget, ledger_id: int, entry_id: int, digest: Digest, report: DamageReport
) -> Iterator[Copy]:
    for found in _in_logs(place, ledger_id, entry_id):
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
        else:
            name, record = found
            yield Copy(f"log {name}", record.offset, take_apart(record.body, digest))
    for unflushed in read_unflushed(place.journal_folder, place.ledger_folder):
        if isinstance(unflushed, Damage):
            report.damage(unflushed.path, unflushed.offset)
        elif (unflushed.ledger_id, unflushed.entry_id) == (ledger_id, entry_id):
            yield Copy("journal", unflushed.offset, take_apart(unflushed.body, digest))


def _in_logs(
    place: InspectionTarget, ledger_id: int, entry_id: int
) -> Iterator[tuple[str, Record] | Damage]:
    """Yield the entry's records in all logs whose index has the entry in a range."""
    for log in list_logs(place.ledger_folder):
        ends = [0]
        for extent in read_index(log):
            if isinstance(extent, Damage):
                yield extent
            elif extent.ledger_id == ledger_id and (
                extent.first_entry <= entry_id <= extent.last_entry
            ):
                ends.append(extent.log_offset + extent.log_size)
        if max(ends):
            upto = msgspec.structs.replace(log, log_end=max(ends))
            for found in read_log(upto):
                if isinstance(found, Damage):
                    yield found
                elif (found.ledger_id, found.entry_id) == (ledger_id, entry_id):
                    yield f"{log.file.id:08x}", found


# --- printing ----------------------------------------------------------------------------


def _print(copy: Copy, *, raw: bool, as_json: bool) -> None:
    if raw:
        sys.stdout.buffer.write(copy.entry.payload if copy.entry else b"")
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(copy)
    else:
        _show(copy)


def _show(copy: Copy) -> None:
    found = copy.entry
    if found is None:
        click.echo(f"{copy.place}, offset {copy.offset}: too short for an entry")
        return
    rows = [
        ("place", f"{copy.place}, offset {copy.offset}"),
        ("ledger", found.ledger_id),
        ("entry", found.entry_id),
        ("confirmed", found.lac),
        ("length", found.length),
        ("digest", f"{found.digest} {'right' if found.sound else 'WRONG'}"),
        ("payload", f"{len(found.payload)} bytes"),
    ]
    print_table(("field", "value"), rows)
    for line in hexdump(found.payload):
        click.echo(line)
