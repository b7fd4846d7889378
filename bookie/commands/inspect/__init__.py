"""``bookie inspect``: show a bookie's data, running or not, without changing anything."""

from __future__ import annotations

import click

from bookie.commands.inspect.entry import entry
from bookie.commands.inspect.index import index
from bookie.commands.inspect.journal import journal
from bookie.commands.inspect.ledger import ledger
from bookie.commands.inspect.log import log
from bookie.commands.inspect.mark import mark


@click.group()
def inspect() -> None:
    """Inspect a bookie's files, or ask a running bookie.

    --data DIR names the files, --address the bookie.

    Nothing is changed, and a bookie may use the files at the same time. Entries that it has
    not flushed yet appear in the files as records of the journal.

    Damage is reported with file and offset. The command then continues after it, and ends
    with exit code 1.
    """


for command in (mark, journal, log, ledger, entry, index):
    inspect.add_command(command)
