"""``bookie inspect``: look into a bookie, running or not, without changing anything."""

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
    """Look into a bookie's files (--data DIR), or ask a running one (--address).

    Nothing is changed, and a bookie may run over the files meanwhile. Of entries that
    are still in its memory only, the files show the journal's record.

    Damage is told with file and offset, and makes the exit code 1; the look goes on
    behind it.
    """


for command in (mark, journal, log, ledger, entry, index):
    inspect.add_command(command)
