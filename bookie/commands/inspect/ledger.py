"""``bookie inspect ledger``: the ledgers that a bookie holds."""

from __future__ import annotations

import click

from bookie.commands import options
from bookie.commands.call import RemoteBookie
from bookie.commands.inspect.report import DamageReport
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.ledgers import LedgerFacts, read_ledgers
from metadata.calls import LedgerOnBookie, LedgerStatePage, LedgerStates
from metadata.outcome import CommandFailed

_PAGE = 1000


@click.command()
@click.argument("ledger_id", metavar="[LEDGER]", type=click.IntRange(0), required=False)
@of_files_or_address
@options.as_json
def ledger(*, place: InspectionTarget, ledger_id: int | None, as_json: bool) -> None:
    """List the ledgers that a bookie holds, or show one.

    This shows the part of a ledger that is on one bookie; `quire ledger info` shows the
    ledger's metadata. "unflushed" entries are in memory and in the journal only.
    """
    report = DamageReport(as_json=as_json)
    if place.address:
        states = [s for s in place.ask(_ask) if ledger_id in (None, s.ledger_id)]
        _check_found(ledger_id, states)
        _print_states(states, as_json)
    else:
        found = read_ledgers(place.journal_folder, place.ledger_folder)
        facts = [found.by_id[key] for key in sorted(found.by_id) if ledger_id in (None, key)]
        for damage in found.damages:
            report.damage(damage.path, damage.offset)
        _check_found(ledger_id, facts)
        _print_facts(facts, as_json)
    report.conclude()


async def _ask(remote: RemoteBookie) -> list[LedgerOnBookie]:
    found: list[LedgerOnBookie] = []
    while True:
        after = found[-1].ledger_id if found else -1
        page = (await remote.ask(LedgerStates(after, _PAGE), LedgerStatePage)).ledgers
        if not page:
            return found
        found += page


def _check_found(ledger_id: int | None, found: list[LedgerFacts] | list[LedgerOnBookie]) -> None:
    if ledger_id is not None and not found:
        raise CommandFailed(f"ledger {ledger_id} is not on this bookie")


def _print_states(states: list[LedgerOnBookie], as_json: bool) -> None:
    if as_json:
        for state in states:
            print_json(state)
        return
    print_table(
        ("ledger", "last", "confirmed", "explicit", "bytes in logs", "fenced"),
        [
            (s.ledger_id, s.last_entry, s.lac, s.explicit_lac, s.bytes_in_logs, s.fenced)
            for s in states
        ],
    )


def _print_facts(facts: list[LedgerFacts], as_json: bool) -> None:
    if as_json:
        for each in facts:
            print_json(each)
        return
    print_table(
        ("ledger", "first", "last", "entries", "unflushed", "bytes in logs", "fenced", "deleted"),
        [
            (
                each.ledger_id,
                each.first_entry,
                each.last_entry,
                each.entries,
                each.unflushed,
                each.size,
                each.fenced,
                each.deleted,
            )
            for each in facts
        ],
    )
