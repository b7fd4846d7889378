"""``bookie inspect mark``: the last checkpoint, where a restart begins to replay."""

from __future__ import annotations

import click
import msgspec

from bookie.commands import options
from bookie.commands.call import RemoteBookie
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.files import list_files
from bookie.limbo import in_limbo
from bookie.mark import FILE_NAME, read_mark
from metadata.calls import JournalMark, JournalState
from metadata.outcome import CommandFailed
from native.mark import Mark


class Checkpoint(msgspec.Struct, frozen=True):
    """The mark, and the state of the journal and of limbo.

    Attributes:
        mark: None if the bookie never took a checkpoint.
        journal_files: ids of all journal files; only the newest one if a running bookie was
            asked.
        journal_end: offset where the journal ends now; None if the files were read.
        limbo: whether the bookie answers "I/O error" instead of "no such entry"; None if a
            running bookie was asked.
    """

    mark: Mark | None
    journal_files: list[int]
    journal_end: int | None
    limbo: bool | None


@click.command()
@of_files_or_address
@options.as_json
def mark(*, place: InspectionTarget, as_json: bool) -> None:
    """Show where a restart begins to replay the journal.

    That place is the last checkpoint: entries before it are in the entry logs. "log end",
    "index end" and "table end" are the sizes of those files at the checkpoint; data beyond
    belongs to a flush that was not finished. Exit code 1 if the mark is damaged.
    """
    found = place.ask(_ask) if place.address else _look(place)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found.mark is not None and _is_gone(found):
        raise CommandFailed(
            f"journal file {found.mark.journal_id:016x}, which the mark names, is missing; "
            "restore it or run `bookie rebuild-index`"
        )


def _look(place: InspectionTarget) -> Checkpoint:
    files = list_files(place.journal_folder, "journal")
    return Checkpoint(
        mark=read_mark(place.ledger_folder),
        journal_files=[file.id for file in files],
        journal_end=None,
        limbo=in_limbo(place.ledger_folder),
    )


async def _ask(remote: RemoteBookie) -> Checkpoint:
    state = await remote.ask(JournalMark(), JournalState)
    return Checkpoint(state.mark, [state.journal_id], state.journal_offset, None)


def _is_gone(found: Checkpoint) -> bool:
    offline = found.journal_end is None
    return offline and found.mark is not None and found.mark.journal_id not in found.journal_files


def _show(found: Checkpoint) -> None:
    if found.mark is None:
        click.echo(f"no {FILE_NAME} yet: a restart replays the whole journal")
    else:
        fields = msgspec.structs.asdict(found.mark)
        print_table(("mark", ""), [(key.replace("_", " "), fields[key]) for key in fields])
    newest = found.journal_files[-1] if found.journal_files else None
    end = "" if found.journal_end is None else f", written up to {found.journal_end}"
    click.echo(f"newest journal file: {newest if newest is not None else 'none'}{end}")
    if found.limbo:
        click.echo("in limbo: records may be lost here; see the file `limbo`")
