"""What the bookies hold of a ledger, by asking each of them for its runs."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ledger_client.client import Client
from ledger_client.errors import BookieUnavailable
from ledger_client.repair.runs import Runs, union, without
from ledger_client.statements import LedgerName
from metadata.calls import LedgerRuns, RunPage
from metadata.records import DamagedRun

PAGE_COUNT = 1000
ASK_S = 5.0
"""For one page of runs; they come out of an index."""

Presence = dict[str, Runs | None]
"""By bookie: the entries that it holds, None when it did not say."""


async def runs_on(client: Client, bookie_id: str, ledger: LedgerName) -> Runs:
    """Return the entries of a ledger that a bookie holds; none if it does not know it.

    That a record is sound is not checked.

    Raises:
        BookieUnavailable: it cannot be reached, or does not answer, or its index is damaged.
    """
    found: Runs = []
    after = -1
    while True:
        request = LedgerRuns(ledger.ledger_id, after, PAGE_COUNT, ledger.incarnation)
        page = await client.call(bookie_id, request, timeout_s=ASK_S)
        if not isinstance(page, RunPage):
            raise BookieUnavailable(bookie_id, f"answered {type(page).__name__}")
        if not page.runs:
            return union(found)
        found += page.runs
        if found[-1][1] <= after:
            raise BookieUnavailable(bookie_id, "told runs that do not rise")
        after = found[-1][1]


async def look(
    client: Client,
    bookie_ids: Iterable[str],
    ledger: LedgerName,
    damaged: Iterable[DamagedRun] = (),
) -> tuple[Presence, dict[str, str]]:
    """Ask all of *bookie_ids* what they hold of a ledger; *damaged* is taken off.

    Returns:
        What each holds, and why some did not say.
    """
    presence: Presence = {}
    reasons: dict[str, str] = {}
    known = list(damaged)

    async def ask(bookie_id: str) -> None:
        try:
            runs = await runs_on(client, bookie_id, ledger)
        except BookieUnavailable as failure:
            presence[bookie_id], reasons[bookie_id] = None, failure.reason
            return
        presence[bookie_id] = without(runs, damaged_on(bookie_id, known))

    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(ask, bookie_id)
    return presence, reasons


def damaged_on(bookie_id: str, damaged: Iterable[DamagedRun]) -> Runs:
    """Return the entries whose copy on one bookie is damaged."""
    return union((d.first_entry, d.last_entry) for d in damaged if d.bookie_id == bookie_id)
