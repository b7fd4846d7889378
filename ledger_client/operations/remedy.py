"""Putting a sound copy where a verification found none, from a bookie that has one.

The ledger is claimed first, so that nobody moves or deletes its copies meanwhile, and is
then verified again: what the first look found, a worker may have mended already.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from ledger_client.catalogue import Catalogue
from ledger_client.client import Client
from ledger_client.operations.errors import RepairedElsewhere
from ledger_client.operations.own_copy import Fault
from ledger_client.operations.verification import Verification, verify
from ledger_client.repair.claim import Claim, claim_ledger
from ledger_client.repair.copier import Copier
from ledger_client.repair.plan import Copy, fragment_ends, wanted
from ledger_client.repair.runs import Runs, common, union, without
from ledger_client.repair.throttle import Throttle
from metadata.errors import LeaseHeld
from metadata.records import LedgerRecord
from metadata.store import MetadataStore

CLAIM_S = 60.0
"""How long to wait for somebody else's repair of the ledger to end."""
AGAIN_S = 0.5
MENDABLE = (Fault.MISSING, Fault.DAMAGED, Fault.DIFFERENT)
RATE = 50 * 1024 * 1024
"""Payload bytes copied a second: writers and readers go first."""


async def mend(
    client: Client,
    store: MetadataStore,
    ledger_id: int,
    *,
    advance: Callable[[int], None] = lambda _entries: None,
) -> tuple[Verification, Verification]:
    """Verify a closed ledger, copy what can be mended, and verify it again.

    Entries are copied verbatim, where they are missing, damaged or different, from bookies
    that hold the right ones. What is on bookies that do not answer stays as it is.

    Args:
        client: of the cluster.
        store: its metadata.
        ledger_id: a closed ledger.
        advance: is told how many more entries were compared.

    Returns:
        How the copies were before, and how they are now.

    Raises:
        LedgerNotClosed: its entries are not final.
        RepairedElsewhere: somebody else repairs or moves it and does not end.
        BookieUnavailable: a bookie that lacks entries took none; some may be copied.
        MetadataError, LedgerError: metadata cannot be asked, or the ledger is gone.
    """
    async with _claimed(store, ledger_id) as claim:
        catalogue = Catalogue(store, timeout_s=client.options.metadata_timeout_s)
        record, _ = await catalogue.get(ledger_id)
        before = await verify(client, record, advance=advance)
        copies = _copies(record, before)
        if not copies:
            return before, before
        copier = Copier(client.bookies, Throttle(RATE), client.options)
        sources = _sound(record, before)
        for copy in copies:
            await copier.copy(record, sources, copy, claim.copied, mends=True)
        return before, await verify(client, record, advance=advance)


@asynccontextmanager
async def _claimed(store: MetadataStore, ledger_id: int) -> AsyncIterator[Claim]:
    owner = f"verify/{secrets.token_hex(8)}"
    until = trio.current_time() + CLAIM_S
    while True:
        try:
            async with claim_ledger(store, ledger_id, owner) as claim:
                yield claim
                return
        except LeaseHeld as held:
            if trio.current_time() >= until:
                raise RepairedElsewhere(ledger_id, held.owner) from held
        await trio.sleep(AGAIN_S)


def _sound(record: LedgerRecord, found: Verification) -> dict[str, Runs | None]:
    """Return what each bookie holds that is known to be right."""
    faulty = {name: _faults(found, name) for name in found.copies}
    return {name: without(runs, faulty[name]) for name, runs in _shares(record).items()}


def _copies(record: LedgerRecord, found: Verification) -> list[Copy]:
    """Return what is to be copied, as far as somebody has it."""
    sound = _sound(record, found)
    had = union(*(runs or [] for runs in sound.values()))
    lacking = {name: common(_faults(found, name, *MENDABLE), had) for name in found.copies}
    return [Copy(name, runs) for name, runs in lacking.items() if runs]


def _shares(record: LedgerRecord) -> dict[str, Runs]:
    """Return what each bookie should hold."""
    shares: dict[str, Runs] = {}
    for fragment, end in fragment_ends(record):
        for index, name in enumerate(fragment.bookies):
            share = wanted(record, fragment, end, index)
            shares[name] = union(shares.get(name, []), share)
    return shares


def _faults(found: Verification, bookie_id: str, *kinds: Fault) -> Runs:
    return union(
        (run.first_entry, run.last_entry)
        for run in found.faults
        if run.bookie_id == bookie_id and (not kinds or run.fault in kinds)
    )
