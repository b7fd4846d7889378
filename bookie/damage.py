"""Damage found while a bookie serves: logged once, and marked for repair.

Reads, compaction and scrubbing record damaged places in the core. Here they are fetched:

    ledger and entry known ──► the ledger's mark for repair names the entries
    only the ledger known ──► the mark names this bookie: repair checks all of it
    a log's record of unknown content ──► limbo: an entry may be missing
    a page of an index ──► the mark, too; a restart builds the index anew (store.h)

A place is logged once, however often it is read; damaged entries in a row are one place. An entry
that is found again is marked again after a while, because repair may have read it successfully and
dropped its mark. Scrubbing (scrub.py) reports everything that is still damaged. An entry that was
stored again has a sound place, and the old one is never reported. Marks that metadata cannot take
now are retried.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NoReturn

import msgspec
import trio

from bookie.limbo import Limbo
from metadata.calls import DamagedPlace
from metadata.errors import BadRecord, MetadataError, MetadataUnavailable, VersionConflict
from metadata.records import (
    DamagedRun,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import ABSENT, MetadataStore
from native.store import Damage, Store

LOOK_S = 1.0
AGAIN_S = 60.0
"""An entry is marked at most once in this time."""
PLACES_MAX = 1000
# A mark is one small value; with more runs than this, one run spans them all.
RUNS_MAX = 1000

_MESSAGE = "damaged: %s at offset %d (ledger %d, entry %s)"

_log = logging.getLogger(__name__)


class DamageLog:
    """The damaged places of one bookie, each logged once.

    Attributes:
        count: places found since the start, including repetitions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: dict[DamagedPlace, float] = {}
        self._latest: deque[DamagedPlace] = deque(maxlen=PLACES_MAX)
        self.count = 0

    def fetch(self, now: float = -math.inf) -> list[DamagedPlace]:
        """Return the places found since the last call that need handling at the time *now*."""
        fresh: list[DamagedPlace] = []
        for place in map(place_of, self._store.take_damage()):
            self._latest.append(place)
            self.count += 1
            reported_at = self._reported.get(place)
            if reported_at is None or (place.entry_id >= 0 and now >= reported_at + AGAIN_S):
                self._reported[place] = now
                fresh.append(place)
            if reported_at is None:
                more = f" to {place.last_entry}" if place.last_entry >= 0 else ""
                entries = f"{place.entry_id}{more}"
                _log.warning(_MESSAGE, place.file, place.offset, place.ledger_id, entries)
        return fresh

    def forget(self) -> None:
        """Handle places again that are found from now on."""
        self._reported.clear()

    def met_since(self, count: int) -> list[DamagedPlace]:
        """Return the distinct places found after *count*, at most the last PLACES_MAX."""
        since = min(self.count - count, len(self._latest))
        return list(dict.fromkeys(list(self._latest)[len(self._latest) - since :]))


class DamageWatch:
    """Marks damaged ledgers for repair while a bookie serves.

    Args:
        found: source of the damaged places.
        limbo: entered when an entry may be missing.
        store: the store in which ledgers are marked.
        bookie_id: this bookie's name, for the marks.

    Attributes:
        marked: number of entries named in marks since the start.
    """

    def __init__(
        self, found: DamageLog, limbo: Limbo, store: MetadataStore, bookie_id: str
    ) -> None:
        self._found = found
        self._limbo = limbo
        self._store = store
        self._bookie_id = bookie_id
        self._pending: dict[int, list[tuple[int, int]]] = {}
        self._one_at_a_time = trio.Lock()
        self._thread = trio.CapacityLimiter(1)  # its own, as Storage has one
        self.marked = 0

    async def run(self) -> NoReturn:
        """Check every second until cancelled.

        Raises:
            OSError: the limbo file cannot be written; the disk is failing.
        """
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Handle the places found since the last call.

        Raises:
            OSError: the limbo file cannot be written; the disk is failing.
        """
        async with self._one_at_a_time:
            fresh = self._found.fetch(trio.current_time())
            unknown = [place for place in fresh if may_hide_entries(place)]
            if unknown:
                await trio.to_thread.run_sync(self._limbo.enter, unknown, limiter=self._thread)
            for place in fresh:
                self._note(place)
            await self._mark_pending()

    def _note(self, place: DamagedPlace) -> None:
        if place.ledger_id >= 0:
            spans = self._pending.setdefault(place.ledger_id, [])
            if place.entry_id >= 0:
                spans.append(run_of(place))

    async def _mark_pending(self) -> None:
        for ledger_id, spans in list(self._pending.items()):
            joined = join(spans)
            runs = [DamagedRun(self._bookie_id, *run) for run in joined]
            try:
                await mark_for_repair(self._store, ledger_id, self._bookie_id, "damaged", runs)
            except MetadataError as error:
                _log.warning("damage of ledger %d is marked later: %s", ledger_id, error)
                if isinstance(error, MetadataUnavailable):
                    return  # the other marks would wait, too
                continue
            del self._pending[ledger_id]
            self.marked += sum(last - first + 1 for first, last in joined)


def place_of(damage: Damage) -> DamagedPlace:
    """Return *damage* as calls report it."""
    return DamagedPlace(
        str(damage.path), damage.offset, damage.ledger_id, damage.entry_id, damage.last_entry
    )


def run_of(place: DamagedPlace) -> tuple[int, int]:
    """Return the first and the last entry of a place."""
    return place.entry_id, max(place.entry_id, place.last_entry)


def may_hide_entries(place: DamagedPlace) -> bool:
    """Return True if an entry may be missing without any other trace."""
    return place.file.endswith(".log") and place.ledger_id < 0


async def mark_for_repair(
    store: MetadataStore,
    ledger_id: int,
    bookie_id: str,
    reason: Literal["damaged", "check"],
    runs: Sequence[DamagedRun] = (),
) -> None:
    """Make sure that the ledger's mark names the bookie and its *runs*, in one change.

    A mark that has them already is rewritten, so that a repair which checked the ledger before
    cannot remove it. A ledger without a record is not marked: there is no other copy.

    Raises:
        MetadataError: the store did not answer, or is damaged.
    """
    key = underreplicated_key(ledger_id)
    now_ms = time.time_ns() // 1_000_000
    fresh = UnderReplicated(ledger_id, reason, now_ms, [bookie_id], list(runs))
    while await store.get(ledger_key(ledger_id)) is not None:
        found = await store.get(key)
        known = None
        with suppress(BadRecord):  # a mark that nobody can read is overwritten, as by others
            known = decode_underreplicated(key, found.value) if found else None
        mark = _merged(known, fresh) if known else fresh
        try:
            version = found.version if found else ABSENT
            await store.put(key, encode_record(mark), expected=version)
        except VersionConflict:
            continue
        return


def _merged(known: UnderReplicated, fresh: UnderReplicated) -> UnderReplicated:
    # An empty list means any of them.
    bookies = sorted({*known.bookies, *fresh.bookies}) if known.bookies else []
    damaged = _all_runs([*known.damaged, *fresh.damaged])
    whole = [bookie for bookie in known.whole if bookie not in fresh.bookies]
    return msgspec.structs.replace(known, bookies=bookies, damaged=damaged, whole=whole)


def _all_runs(of_all: Iterable[DamagedRun]) -> list[DamagedRun]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for run in of_all:
        spans.setdefault(run.bookie_id, []).append((run.first_entry, run.last_entry))
    return list(_joined(spans))


def _joined(spans: Mapping[str, Iterable[tuple[int, int]]]) -> Iterator[DamagedRun]:
    for bookie_id, of_bookie in sorted(spans.items()):
        runs = join(of_bookie)
        if len(runs) > RUNS_MAX:
            runs = [(runs[0][0], runs[-1][1])]
        for first, last in runs:
            yield DamagedRun(bookie_id, first, last)


def join(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same ids as rising runs that neither touch nor overlap."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], last))
        else:
            runs.append((first, last))
    return runs
