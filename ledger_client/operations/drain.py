"""Decommissioning a bookie: everything on it moves elsewhere, then it is forgotten.

    Draining mark ──► workers move its copies ──► no record names it ──► every entry
    (it and the placement      (repair)                                  counted elsewhere
     see it: no new entries)                                                  │
                                    cookie and mark deleted in one transaction ◄┘

The mark is what makes it happen; this only waits and, at the end, decides. So it works
for a bookie that is gone for good too, and may be interrupted and begun again at will.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.operations.balance import shares_of
from ledger_client.operations.errors import (
    CopiesMissing,
    NoSuchBookie,
    NotDraining,
    TooFewBookies,
)
from ledger_client.operations.overview import registered
from ledger_client.repair.plan import fragment_ends, wanted
from ledger_client.repair.presence import look
from ledger_client.repair.records import ledger_records, list_draining, list_marks
from ledger_client.repair.runs import without
from ledger_client.statements import LedgerName
from metadata.errors import VersionConflict
from metadata.records import (
    DamagedRun,
    Draining,
    LedgerRecord,
    LedgerState,
    cookie_key,
    draining_key,
    encode_record,
)
from metadata.store import ABSENT, Delete, MetadataStore

POLL_S = 0.5
"""Between two looks at what is left."""
SETTLE_S = 30.0
"""How long ledgers that lack copies elsewhere may take to be repaired before it is refused."""
NAMED_MAX = 5


class DrainProgress(msgspec.Struct, frozen=True):
    """What is still to be done before a bookie can go. *size* is payload bytes."""

    step: Literal["moving", "checking"]
    ledgers: int
    size: int
    not_closed: int = 0
    """those of the ledgers that are still written, or in recovery"""
    waits_for: str = ""
    """what is in the way of a move, if something is"""


Tell = Callable[[DrainProgress], None]


async def drain(
    client: Client,
    store: MetadataStore,
    bookie_id: str,
    *,
    wait: bool = False,
    tell: Tell = lambda _progress: None,
) -> None:
    """Move everything off a bookie and forget it. Cancelled, the bookie goes on draining.

    Args:
        client: of the cluster.
        store: its metadata.
        bookie_id: the bookie to decommission; it may be dead.
        wait: go on also while too few bookies are there for some ledger, until more come.
        tell: is called at each look with what is left.

    Raises:
        NoSuchBookie: it is not known; perhaps it was decommissioned before.
        TooFewBookies: the others are too few for some ledger. Nothing was changed.
        CopiesMissing: entries have too few copies elsewhere, and repair does not mend
            that. The bookie stays and goes on draining.
        NotDraining: somebody took the mark back meanwhile.
        MetadataError, LedgerError: the metadata cannot be asked, or are damaged.
    """
    await _check_known(store, bookie_id)
    if not wait:
        await check_room(store, bookie_id)
    await begin(store, bookie_id)
    while True:
        await _wait_until_empty(store, bookie_id, tell)
        await _wait_until_copied(client, store, bookie_id, tell, wait=wait)
        if not (await remaining(store, bookie_id)).ledgers:
            break  # none came back while it was checked
    await _forget(store, bookie_id)


async def begin(store: MetadataStore, bookie_id: str) -> None:
    """Mark a bookie as draining, unless it is marked already. Raises NoSuchBookie."""
    await _check_known(store, bookie_id)
    mark = Draining(bookie_id, time.time_ns() // 1_000_000)
    try:
        await store.put(draining_key(bookie_id), encode_record(mark), expected=ABSENT)
    except VersionConflict:
        return


async def cancel(store: MetadataStore, bookie_id: str) -> None:
    """Take the mark back: the bookie gets new entries again. What has moved stays moved.

    Raises:
        NotDraining: there is no mark.
    """
    found = await store.get(draining_key(bookie_id))
    if found is None:
        raise NotDraining(bookie_id)
    await store.delete(draining_key(bookie_id))


async def check_room(store: MetadataStore, bookie_id: str) -> None:
    """Raise TooFewBookies when an ensemble of some ledger does not fit on the other bookies."""
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
        raise TooFewBookies(
            bookie_id, left=len(takers), needed=min(cramped.values()), ledgers=[*cramped]
        )


async def remaining(store: MetadataStore, bookie_id: str) -> DrainProgress:
    """Return how many ledgers name the bookie, and how much of them is on it."""
    failures = {mark.ledger_id: mark.last_failure for mark in await list_marks(store)}
    ledgers = size = not_closed = 0
    waits_for = ""
    async for record in ledger_records(store):
        if not any(bookie_id in fragment.bookies for fragment in record.fragments):
            continue
        ledgers += 1
        if record.state is LedgerState.CLOSED:
            size += shares_of(record).sizes[bookie_id]
        else:
            not_closed += 1
        if not waits_for and failures.get(record.ledger_id):
            waits_for = f"ledger {record.ledger_id}: {failures[record.ledger_id]}"
    return DrainProgress("moving", ledgers, size, not_closed, waits_for)


async def shortages(client: Client, store: MetadataStore, bookie_id: str) -> tuple[list[str], int]:
    """Look whether every closed ledger has all its copies, none of them on *bookie_id*.

    Bookies are asked what they hold; that a record is sound is not checked, but what is
    known to be damaged does not count.

    Returns:
        What is missing, in words, for at most five ledgers, and how many ledgers lack
        something.
    """
    damaged = {mark.ledger_id: mark.damaged for mark in await list_marks(store)}
    named: list[str] = []
    count = 0
    async for record in ledger_records(store):
        if record.state is not LedgerState.CLOSED:
            continue
        problem = await _shortage(client, record, bookie_id, damaged.get(record.ledger_id, []))
        count += bool(problem)
        if problem and len(named) < NAMED_MAX:
            named.append(f"ledger {record.ledger_id} lacks {problem}")
    return named, count


async def _shortage(
    client: Client, record: LedgerRecord, bookie_id: str, damaged: list[DamagedRun]
) -> str:
    names = {name for fragment in record.fragments for name in fragment.bookies}
    presence, reasons = await look(
        client, names, LedgerName(record.ledger_id, record.incarnation), damaged
    )
    for fragment, end in fragment_ends(record):
        for index, name in enumerate(fragment.bookies):
            share = wanted(record, fragment, end, index)
            held = presence[name]
            if share and name == bookie_id:
                return f"another place for entries {share[0][0]} to {share[-1][1]}"
            if share and held is None:
                return f"the word of {name} ({reasons[name]})"
            missing = without(share, held or [])
            if missing:
                return f"entries {missing[0][0]} to {missing[0][1]} on {name}"
    return ""


async def _wait_until_empty(store: MetadataStore, bookie_id: str, tell: Tell) -> None:
    while True:
        left = await remaining(store, bookie_id)
        tell(left)
        if not left.ledgers:
            return
        await trio.sleep(POLL_S)


async def _wait_until_copied(
    client: Client, store: MetadataStore, bookie_id: str, tell: Tell, *, wait: bool
) -> None:
    until = trio.current_time() + (float("inf") if wait else SETTLE_S)
    while True:
        missing, ledgers = await shortages(client, store, bookie_id)
        tell(DrainProgress("checking", ledgers, 0, waits_for="; ".join(missing)))
        if not ledgers:
            return
        if trio.current_time() >= until:
            raise CopiesMissing(bookie_id, missing, ledgers=ledgers)
        await trio.sleep(POLL_S)


async def _check_known(store: MetadataStore, bookie_id: str) -> None:
    if await store.get(cookie_key(bookie_id)) is None:
        raise NoSuchBookie(bookie_id)


async def _forget(store: MetadataStore, bookie_id: str) -> None:
    """Delete cookie and mark together, so that the bookie is never half forgotten."""
    cookie, mark = await store.get(cookie_key(bookie_id)), await store.get(draining_key(bookie_id))
    if cookie is None:
        raise NoSuchBookie(bookie_id)
    if mark is None:
        raise NotDraining(bookie_id)
    try:
        await store.transact(
            [
                Delete(cookie_key(bookie_id), cookie.version),
                Delete(draining_key(bookie_id), mark.version),
            ]
        )
    except VersionConflict as changed:
        raise NotDraining(bookie_id) from changed
