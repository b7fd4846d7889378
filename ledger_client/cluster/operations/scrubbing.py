"""Verification of many closed ledgers, and repair of what it finds.

Ledgers are divided into groups of about equal bytes, one for each task (of Spark, or of this
process). Open ledgers are left out, as their copies need not be alike yet.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from heapq import heapify, heapreplace
from typing import NamedTuple

import msgspec
import trio

from ledger_client.cluster.operations.verification import Fault, Verification, not_closed, verify
from ledger_client.cluster.repair.claim import Claim, claim_ledger
from ledger_client.cluster.repair.copier import Copier, Throttle
from ledger_client.cluster.repair.plan import (
    RepairCopy,
    Runs,
    common,
    fragment_ends,
    union,
    wanted,
    without,
)
from ledger_client.errors import LedgerError, NoSuchLedger, Retryable
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import LeaseHeld
from metadata.records import LedgerRecord, LedgerState
from metadata.sessions import ProcessSession
from metadata.store import MetadataStore

AT_ONCE = 4
"""Ledgers that one process verifies at once."""
OnProgress = Callable[[float], None]
"""Called with the fraction of the bytes that is done."""


class Chosen(NamedTuple):
    """A closed ledger to verify, and its weight among the others."""

    ledger_id: int
    topic: str
    size: int
    """payload bytes of all copies"""


class ScrubbedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a ledger's copies, counted in copies of entries; *size* in bytes."""

    ledger_id: int
    topic: str = ""
    entries: int = 0
    size: int = 0
    """payload bytes of all copies"""
    copies: int = 0
    """the number that there should be"""
    sound: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unreachable: int = 0
    lost: int = 0
    """entries without a copy known to be right"""
    faulty: list[str] = []
    """bookies with missing, damaged or different copies"""
    silent: list[str] = []
    """bookies that did not answer"""
    gone: bool = False
    """the ledger was deleted meanwhile"""

    @property
    def whole(self) -> bool:
        """True if every copy is there and right."""
        return self.sound == self.copies and not self.lost


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over all ledgers; *faulty* names those that are not whole."""

    ledgers: int = 0
    entries: int = 0
    copies: int = 0
    size: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unreachable: int = 0
    lost: int = 0
    faulty: list[ScrubbedLedger] = []

    @property
    def whole(self) -> bool:
        """True if all ledgers are whole."""
        return not self.faulty


async def choose_ledgers(
    ledgers: Ledgers, *, topics: Sequence[str] = (), ids: Sequence[int] = ()
) -> list[Chosen]:
    """Return all closed ledgers, or those with these *ids* or of these *topics*.

    Raises:
        NoSuchLedger: an id in *ids* does not exist.
        LedgerError: a ledger in *ids* is still open.
    """
    chosen: list[Chosen] = []
    left = set(ids)
    async for info in ledgers.list():
        topic = info.custom.get("topic", "")
        if (topics or ids) and info.ledger_id not in left and topic not in topics:
            continue
        if info.state is not LedgerState.CLOSED:
            if info.ledger_id in left:
                raise not_closed(info.ledger_id)
            continue
        left.discard(info.ledger_id)
        chosen.append(Chosen(info.ledger_id, topic, info.length * info.write_quorum))
    if left:
        raise NoSuchLedger(min(left))
    return chosen


def group(chosen: Iterable[Chosen], count: int) -> list[list[Chosen]]:
    """Divide the ledgers into at most *count* groups of about the same bytes."""
    groups: list[tuple[int, int, list[Chosen]]] = [(0, number, []) for number in range(count)]
    heapify(groups)
    for each in sorted(chosen, key=lambda one: one.size, reverse=True):
        size, number, members = groups[0]
        members.append(each)
        heapreplace(groups, (size + max(each.size, 1), number, members))
    return [members for _, _, members in groups if members]


async def scrub(
    ledgers: Ledgers, chosen: Sequence[Chosen], on_progress: OnProgress = lambda _part: None
) -> list[ScrubbedLedger]:
    """Verify these ledgers, a few at once. Bookies that do not answer are counted.

    Raises:
        LedgerError: metadata is unavailable.
    """
    found: list[ScrubbedLedger] = []
    failures: list[LedgerError] = []
    limit = trio.CapacityLimiter(AT_ONCE)
    total, done = sum(one.size for one in chosen), 0

    async def look(one: Chosen) -> None:
        nonlocal done
        async with limit:
            try:
                found.append(await _scrub_one(ledgers, one))
            except LedgerError as failure:
                failures.append(failure)
            done += one.size
            on_progress(done / max(total, 1))

    async with trio.open_nursery() as nursery:
        for one in chosen:
            nursery.start_soon(look, one)
    if failures:
        raise failures[0]
    return found


async def _scrub_one(ledgers: Ledgers, one: Chosen) -> ScrubbedLedger:
    try:
        record, _ = await ledgers.catalogue.get(one.ledger_id)
    except NoSuchLedger:
        return ScrubbedLedger(ledger_id=one.ledger_id, topic=one.topic, gone=True)
    return scrubbed_of(await verify(ledgers, record), one)


def scrubbed_of(found: Verification, one: Chosen) -> ScrubbedLedger:
    """Count the faults of one verification by kind."""
    copies = list(found.copies.values())
    return ScrubbedLedger(
        ledger_id=one.ledger_id,
        topic=one.topic,
        entries=found.entries,
        size=one.size,
        copies=sum(copy.expected for copy in copies),
        sound=sum(copy.sound for copy in copies),
        missing=sum(copy.missing for copy in copies),
        damaged=sum(copy.damaged for copy in copies),
        different=sum(copy.different for copy in copies),
        unreachable=sum(copy.unknown for copy in copies),
        lost=found.lost,
        faulty=[c.bookie_id for c in copies if c.missing or c.damaged or c.different],
        silent=[copy.bookie_id for copy in copies if copy.silent],
    )


def summary(found: Iterable[ScrubbedLedger]) -> Scrubbed:
    """Add up the ledgers that still exist."""
    ledgers = sorted((each for each in found if not each.gone), key=lambda one: one.ledger_id)
    return Scrubbed(
        ledgers=len(ledgers),
        entries=sum(each.entries for each in ledgers),
        copies=sum(each.copies for each in ledgers),
        size=sum(each.size for each in ledgers),
        missing=sum(each.missing for each in ledgers),
        damaged=sum(each.damaged for each in ledgers),
        different=sum(each.different for each in ledgers),
        unreachable=sum(each.unreachable for each in ledgers),
        lost=sum(each.lost for each in ledgers),
        faulty=[each for each in ledgers if not each.whole],
    )


# --- Repair of one ledger ---------------------------------------------------------------
# The ledger is claimed first, so that no other process moves or deletes its copies
# meanwhile, and then verified again: a worker may have repaired it already.


CLAIM_S = 60.0
"""How long to wait for another process to finish its repair of the ledger."""
AGAIN_S = 0.5
MENDABLE = (Fault.MISSING, Fault.DAMAGED, Fault.DIFFERENT)
RATE = 50 * 1024 * 1024
"""Payload bytes copied a second, which leaves bandwidth to clients."""


async def mend(
    ledgers: Ledgers,
    store: MetadataStore,
    ledger_id: int,
    *,
    advance: Callable[[int], None] = lambda _entries: None,
) -> tuple[Verification, Verification]:
    """Verify a closed ledger, replace bad copies by sound ones, and verify it again.

    Missing, damaged and different entries are copied verbatim from bookies that hold the
    right ones. Bookies that do not answer stay as they are.

    Args:
        ledgers: of the cluster.
        store: its metadata.
        ledger_id: a closed ledger.
        advance: called with the number of entries just compared.

    Returns:
        The verifications before and after the repair.

    Raises:
        LedgerError: it is not closed, so its entries are not final.
        Retryable: another process repairs or moves it and does not finish.
        BookieUnavailable: a bookie that lacks entries takes none; some may be copied.
        MetadataError, LedgerError: metadata is unavailable, or the ledger was deleted.
    """
    async with _claimed(ledgers.session, ledger_id) as claim:
        catalogue = Catalogue(store, timeout_s=ledgers.options.metadata_timeout_s)
        record, _ = await catalogue.get(ledger_id)
        before = await verify(ledgers, record, advance=advance)
        copies = _copies(record, before)
        if not copies:
            return before, before
        copier = Copier(ledgers.bookies, Throttle(RATE), ledgers.options)
        sources = _sound(record, before)
        for copy in copies:
            await copier.copy(record, sources, copy, claim.copied, mends=True)
        return before, await verify(ledgers, record, advance=advance)


@asynccontextmanager
async def _claimed(session: ProcessSession, ledger_id: int) -> AsyncIterator[Claim]:
    owner = f"verify/{secrets.token_hex(8)}"
    until = trio.current_time() + CLAIM_S
    while True:
        try:
            async with claim_ledger(session, ledger_id, owner) as claim:
                yield claim
                return
        except LeaseHeld as held:
            if trio.current_time() >= until:
                reason = f"{held.owner} repairs or moves it; try again later"
                raise Retryable(reason, ledger_id=ledger_id) from held
        await trio.sleep(AGAIN_S)


def _sound(record: LedgerRecord, found: Verification) -> dict[str, Runs | None]:
    """Return the entries known to be right on each bookie."""
    faulty = {name: _faults(found, name) for name in found.copies}
    return {name: without(runs, faulty[name]) for name, runs in _shares(record).items()}


def _copies(record: LedgerRecord, found: Verification) -> list[RepairCopy]:
    """Return the copies to make of entries that some bookie holds."""
    sound = _sound(record, found)
    had = union(*(runs or [] for runs in sound.values()))
    lacking = {name: common(_faults(found, name, *MENDABLE), had) for name in found.copies}
    return [RepairCopy(name, runs) for name, runs in lacking.items() if runs]


def _shares(record: LedgerRecord) -> dict[str, Runs]:
    """Return the entries that belong on each bookie."""
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
