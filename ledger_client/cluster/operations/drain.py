"""Decommissioning: everything on a bookie moves elsewhere, then the cluster forgets it.

    Draining mark ──► workers move its copies ──► no record names it ──► every copy
    (stops new entries)        (repair)                                  confirmed elsewhere,
                                                                         and it takes no more
                                                                              │
                                    cookie and mark deleted in one transaction ◄┘

The mark alone sets this in motion; drain() waits and makes the final decision. So it works
for a dead bookie too, and may be interrupted and started again at will.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import trio

from ledger_client.cluster.operations.overview import registered
from ledger_client.cluster.repair.plan import fragment_ends, shares_of, wanted, without
from ledger_client.cluster.repair.survey import look
from ledger_client.errors import DrainRefused
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.wire.inflight import LedgerName
from metadata.errors import MetadataError, VersionConflict
from metadata.ledger_changes import LedgerChanges
from metadata.listings import ledger_records, list_draining, list_marks
from metadata.records import (
    DamagedRun,
    Draining,
    LedgerRecord,
    LedgerState,
    cookie_key,
    decode_ledger,
    draining_key,
    encode_record,
    ledger_key,
)
from metadata.store import ABSENT, Delete, MetadataStore

POLL_S = 0.5
"""Pause between two checks of what is left."""
RECOUNT_S = 60.0
"""All ledgers are read again this often, and after twenty times as long as that takes."""
SETTLE_S = 30.0
"""Ledgers that lack copies elsewhere have this long to be repaired before drain() gives up."""
NAMED_MAX = 5


class DrainProgress(msgspec.Struct, frozen=True):
    """The work left before a bookie can go. *size* is payload bytes."""

    step: Literal["moving", "checking"]
    ledgers: int
    size: int
    not_closed: int = 0
    """number of ledgers that are open or in recovery"""
    waits_for: str = ""
    """the obstacle, if a move is blocked"""


OnProgress = Callable[[DrainProgress], None]


async def drain(
    ledgers: Ledgers,
    store: MetadataStore,
    bookie_id: str,
    *,
    wait: bool = False,
    on_progress: OnProgress = lambda _progress: None,
) -> None:
    """Move everything off a bookie and forget it. After a cancellation it goes on draining.

    Args:
        ledgers: of the cluster.
        store: its metadata.
        bookie_id: the bookie to decommission; it may be dead.
        wait: if the other bookies are too few for some ledger, wait for more.
        on_progress: called at each check with the work that is left.

    Raises:
        DrainRefused: the bookie is unknown, or the others are too few for some ledger, and
            nothing was changed; or entries have too few copies elsewhere, repair does not
            help, and the bookie goes on draining; or the mark was removed meanwhile.
        MetadataError, LedgerError: metadata is unavailable or damaged.
    """
    await _check_known(store, bookie_id)
    if not wait:
        await check_room(store, bookie_id)
    await begin(store, bookie_id)
    while True:
        await _wait_until_empty(store, bookie_id, on_progress)
        await _wait_until_copied(ledgers, store, bookie_id, on_progress, wait=wait)
        await _wait_until_heard(store, bookie_id, on_progress)
        if not (await remaining(store, bookie_id)).ledgers:
            break  # no ledger came back during the check
    await _forget(store, bookie_id)


async def begin(store: MetadataStore, bookie_id: str) -> None:
    """Mark a bookie as draining; no effect if it is. Raises DrainRefused: it is unknown."""
    await _check_known(store, bookie_id)
    mark = Draining(bookie_id, time.time_ns() // 1_000_000)
    try:
        await store.put(draining_key(bookie_id), encode_record(mark), expected=ABSENT)
    except VersionConflict:
        return


async def cancel(store: MetadataStore, bookie_id: str) -> None:
    """Remove the mark: the bookie gets new entries again. What has moved stays moved.

    Raises:
        DrainRefused: there is no mark.
    """
    found = await store.get(draining_key(bookie_id))
    if found is None:
        raise _not_draining(bookie_id)
    await store.delete(draining_key(bookie_id))


async def check_room(store: MetadataStore, bookie_id: str) -> None:
    """Raise DrainRefused if an ensemble of some ledger does not fit on the other bookies."""
    live, leaving = await registered(store), await list_draining(store)
    staying = [b for name, b in live.items() if name not in {bookie_id, *leaving}]
    takers = {b.bookie_id for b in staying if not (b.read_only or b.limbo)}
    everybody = {b.bookie_id for b in staying}
    cramped: dict[int, int] = {}
    async for record in ledger_records(store):
        listed = {name for fragment in record.fragments for name in fragment.bookies}
        room = takers | (listed & everybody)
        if bookie_id in listed and len(room) < record.ensemble_size:
            cramped[record.ledger_id] = record.ensemble_size
    if cramped:
        raise _too_few_bookies(bookie_id, len(takers), min(cramped.values()), [*cramped])


async def remaining(store: MetadataStore, bookie_id: str) -> DrainProgress:
    """Count the ledgers that name the bookie, and the bytes it holds of them."""
    return await Remaining(store, bookie_id).count()


class Remaining:
    """The ledgers that name a bookie: all are read once, and then those that change.

    All are read again now and then: BookKeeper's clients change ledgers without a trace in the
    change log.
    """

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._changes = LedgerChanges(store)
        self._sizes: dict[int, int | None] = {}  # None: it is not closed
        self._recount_at = float("inf")

    async def count(self) -> DrainProgress:
        """Return the work that is left now. Raises MetadataError."""
        try:
            await self._update()
        except MetadataError:
            self._changes.forget()
            raise
        failures = {mark.ledger_id: mark.last_failure for mark in await list_marks(self._store)}
        stuck = min((each for each in self._sizes if failures.get(each)), default=None)
        return DrainProgress(
            "moving",
            len(self._sizes),
            sum(size for size in self._sizes.values() if size is not None),
            sum(size is None for size in self._sizes.values()),
            "" if stuck is None else f"ledger {stuck}: {failures[stuck]}",
        )

    async def _update(self) -> None:
        began_at = trio.current_time()
        if began_at >= self._recount_at:
            self._changes.forget()
        changed = await self._changes.take()
        if changed is None:
            self._sizes.clear()
            async for record in ledger_records(self._store):
                self._note(record)
            now = trio.current_time()
            self._recount_at = now + max(RECOUNT_S, 20 * (now - began_at))
            return
        for ledger_id in changed:
            found = await self._store.get(ledger_key(ledger_id))
            self._sizes.pop(ledger_id, None)
            if found is not None:
                self._note(decode_ledger(ledger_key(ledger_id), found.value))

    def _note(self, record: LedgerRecord) -> None:
        if _is_listed(record, self._bookie_id):
            closed = record.state is LedgerState.CLOSED
            size = shares_of(record).sizes[self._bookie_id] if closed else None
            self._sizes[record.ledger_id] = size


async def shortages(
    ledgers: Ledgers, store: MetadataStore, bookie_id: str
) -> tuple[list[str], int]:
    """Check that no closed ledger lacks a copy that *bookie_id* may have.

    Bookies answer from their indexes and do not verify the records, but known damage
    does not count as a copy. What a ledger lacks is no reason to keep a bookie that answers and
    has nothing of it.

    Returns:
        A description of what is missing, for at most five ledgers, and the number of all
        ledgers that lack something.
    """
    damaged = {mark.ledger_id: mark.damaged for mark in await list_marks(store)}
    named: list[str] = []
    count = 0
    async for record in ledger_records(store):
        if record.state is not LedgerState.CLOSED:
            continue
        marked = damaged.get(record.ledger_id, [])
        problem = await _shortage(ledgers, record, bookie_id, marked)
        if problem:
            problem = await _needing(ledgers, record, bookie_id, problem)
        count += bool(problem)
        if problem and len(named) < NAMED_MAX:
            named.append(f"ledger {record.ledger_id} lacks {problem}")
    return named, count


async def _shortage(
    ledgers: Ledgers, record: LedgerRecord, bookie_id: str, damaged: list[DamagedRun]
) -> str:
    names = {name for fragment in record.fragments for name in fragment.bookies}
    presence, reasons = await look(
        ledgers, names, LedgerName(record.ledger_id, record.incarnation), damaged
    )
    for fragment, end in fragment_ends(record):
        for index, name in enumerate(fragment.bookies):
            share = wanted(record, fragment, end, index)
            held = presence[name]
            if share and name == bookie_id:
                return f"another place for entries {share[0][0]} to {share[-1][1]}"
            if share and held is None:
                return f"an answer from {name} ({reasons[name]})"
            missing = without(share, held or [])
            if missing:
                return f"entries {missing[0][0]} to {missing[0][1]} on {name}"
    return ""


async def _needing(ledgers: Ledgers, record: LedgerRecord, bookie_id: str, problem: str) -> str:
    """Return *problem*, and what the bookie may have against it; "" if it certainly has nothing."""
    if _is_listed(record, bookie_id):
        return problem
    named = LedgerName(record.ledger_id, record.incarnation)
    presence, reasons = await look(ledgers, [bookie_id], named)
    held = presence[bookie_id]
    if held is None:
        return f"{problem}, and {bookie_id} does not say what it has of it ({reasons[bookie_id]})"
    return f"{problem}, and {bookie_id} has a copy" if held else ""


def _is_listed(record: LedgerRecord, bookie_id: str) -> bool:
    return any(bookie_id in fragment.bookies for fragment in record.fragments)


async def _wait_until_empty(store: MetadataStore, bookie_id: str, on_progress: OnProgress) -> None:
    all_left = Remaining(store, bookie_id)
    while True:
        left = await all_left.count()
        on_progress(left)
        if not left.ledgers:
            return
        await trio.sleep(POLL_S)


async def _wait_until_copied(
    ledgers: Ledgers, store: MetadataStore, bookie_id: str, on_progress: OnProgress, *, wait: bool
) -> None:
    until = trio.current_time() + (float("inf") if wait else SETTLE_S)
    while True:
        missing, count = await shortages(ledgers, store, bookie_id)
        on_progress(DrainProgress("checking", count, 0, waits_for="; ".join(missing)))
        if not count:
            return
        if trio.current_time() >= until:
            raise _copies_missing(bookie_id, missing, count)
        await trio.sleep(POLL_S)


async def _wait_until_heard(store: MetadataStore, bookie_id: str, on_progress: OnProgress) -> None:
    """Return once the bookie takes no new entries, or is gone.

    It looks for the mark at each renewal of its registration, and clients choose it until that
    says so. A ledger to which it was added before is found by the next count.
    """
    while True:
        found = (await registered(store)).get(bookie_id)
        if found is None or found.draining:
            return
        waits_for = f"{bookie_id} does not say yet that it takes no new entries"
        on_progress(DrainProgress("checking", 0, 0, waits_for=waits_for))
        await trio.sleep(POLL_S)


async def _check_known(store: MetadataStore, bookie_id: str) -> None:
    if await store.get(cookie_key(bookie_id)) is None:
        raise _unknown(bookie_id)


async def _forget(store: MetadataStore, bookie_id: str) -> None:
    """Delete cookie and mark in one transaction, so that the bookie is never half forgotten."""
    cookie, mark = await store.get(cookie_key(bookie_id)), await store.get(draining_key(bookie_id))
    if cookie is None:
        raise _unknown(bookie_id)
    if mark is None:
        raise _not_draining(bookie_id)
    try:
        await store.transact(
            [
                Delete(cookie_key(bookie_id), cookie.version),
                Delete(draining_key(bookie_id), mark.version),
            ]
        )
    except VersionConflict as changed:
        raise _not_draining(bookie_id) from changed


# --- refusals -----------------------------------------------------------------------------


def _unknown(bookie_id: str) -> DrainRefused:
    return DrainRefused(
        bookie_id, "unknown", f"no bookie {bookie_id} is known; `quire cluster status` lists them"
    )


def _not_draining(bookie_id: str) -> DrainRefused:
    return DrainRefused(
        bookie_id, "not draining", f"bookie {bookie_id} is not being decommissioned"
    )


def _too_few_bookies(
    bookie_id: str, left: int, needed: int, ledgers: Sequence[int]
) -> DrainRefused:
    shown = ", ".join(map(str, ledgers[:NAMED_MAX]))
    more = f" and {len(ledgers) - NAMED_MAX} more" if len(ledgers) > NAMED_MAX else ""
    need = f"ledgers {shown}{more} need" if len(ledgers) > 1 else f"ledger {shown} needs"
    return DrainRefused(
        bookie_id,
        "too few bookies",
        f"without bookie {bookie_id}, {left} take copies, and {need} {needed}; start more "
        "bookies, or wait for them with --wait",
        ledgers=ledgers,
    )


def _copies_missing(bookie_id: str, missing: Sequence[str], count: int) -> DrainRefused:
    more = f"; and {count - len(missing)} more" if count > len(missing) else ""
    return DrainRefused(
        bookie_id,
        "copies missing",
        f"bookie {bookie_id} is still needed: {'; '.join(missing)}{more}; its copies stay",
    )
