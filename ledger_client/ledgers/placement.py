"""Choosing bookies for a ledger at random, weighted by free space and load.

Always taking the best bookie would send every new ledger of every client to the
same few. So bookies are drawn without replacement, each with a weight: its free
bytes, divided by its load relative to the average.

A bookie that failed recently is in quarantine and is chosen only if no other is left.
A dead bookie stays registered until its lease runs out, so every chosen bookie must
accept a connection before it counts.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

import msgspec
import trio

from ledger_client.errors import NotEnoughBookies
from ledger_client.wire.bookies import Bookies
from metadata.records import BookieRecord


class _Stay(msgspec.Struct):
    ends_at: float
    length_s: float


class Quarantine:
    """Bookies that failed recently and are not chosen for a while, by trio's clock.

    A bookie that comes and goes every second would be chosen each time, because it is
    registered and idle. So it is skipped for a while after a failure, and for twice as
    long each time it fails soon after that.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        """*first_s* doubles up to *longest_s*; failures are forgotten after as long, too."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._stays: dict[str, _Stay] = {}

    def failed(self, bookie_id: str) -> None:
        """Record a failure. One during the quarantine does not prolong it.

        So a broken connection counts once, although every writer reports it.
        """
        now = trio.current_time()
        stay = self._stays.get(bookie_id)
        if stay is not None and now < stay.ends_at:
            return
        length_s = self._first_s
        if stay is not None and now < stay.ends_at + self._longest_s:
            length_s = min(2 * stay.length_s, self._longest_s)
        self._stays[bookie_id] = _Stay(now + length_s, length_s)

    def __contains__(self, bookie_id: str) -> bool:
        stay = self._stays.get(bookie_id)
        return stay is not None and trio.current_time() < stay.ends_at


class Placement:
    """Chooses bookies that answer, for new ledgers and for lost bookies."""

    def __init__(self, bookies: Bookies, quarantine: Quarantine, chance: random.Random) -> None:
        self._bookies = bookies
        self._quarantine = quarantine
        self._chance = chance

    def failed(self, bookie_id: str) -> None:
        """Record a failure: for a while this bookie is chosen only after all others."""
        self._quarantine.failed(bookie_id)

    async def new_ensemble(self, size: int) -> list[str]:
        """Return *size* bookies for a new ledger, all of them connected.

        Raises:
            NotEnoughBookies: fewer take writes and can be reached.
            MetadataUnavailable: the store did not answer in time.
        """
        live = await self._bookies.live()
        unreachable: set[str] = set()
        while True:
            chosen = self._choose(live, size, unreachable)
            failed = await self._bookies.unreachable(chosen)
            if not failed:
                return chosen
            self._note(failed)
            unreachable.update(failed)

    async def substitutes(
        self, ensemble: Sequence[str], lost: Collection[int], *, urgent: bool
    ) -> dict[int, str]:
        """Return bookies that answer for some of the *lost* places of *ensemble*, by index.

        A lost bookie may be chosen again, for its own place. Bookies in quarantine are
        chosen only if it is *urgent*, and after all others.

        Raises:
            NotEnoughBookies: there is none for any place.
            LedgerError: the list of live bookies is not available.
        """
        staying = {b for index, b in enumerate(ensemble) if index not in lost}
        tried, found = set(staying), list[str]()
        live = await self._bookies.lately_live()
        while len(found) < len(lost):
            spares = self._spares(live, tried, urgent=urgent)[: len(lost) - len(found)]
            if not spares:
                break
            failed = await self._bookies.silent(spares)
            self._note(failed)
            tried.update(spares)
            found += [bookie for bookie in spares if bookie not in failed]
        if not found:
            raise NotEnoughBookies(healthy=len(staying), needed=len(ensemble))
        return _seated(found, ensemble, sorted(lost))

    def _choose(
        self, live: Sequence[BookieRecord], size: int, exclude: Collection[str]
    ) -> list[str]:
        calm = [bookie for bookie in live if bookie.bookie_id not in self._quarantine]
        try:
            return choose_ensemble(calm, size, chance=self._chance, exclude=exclude)
        except NotEnoughBookies:
            return choose_ensemble(live, size, chance=self._chance, exclude=exclude)

    def _spares(
        self, live: Sequence[BookieRecord], tried: Collection[str], *, urgent: bool
    ) -> list[str]:
        drawn = _drawn([b for b in live if _takes_writes(b, tried)], self._chance)
        calm = [bookie for bookie in drawn if bookie not in self._quarantine]
        return [*calm, *(b for b in drawn if b in self._quarantine)] if urgent else calm

    def _note(self, failed: Iterable[str]) -> None:
        for bookie_id in failed:
            self._quarantine.failed(bookie_id)


def choose_ensemble(
    bookies: Sequence[BookieRecord],
    ensemble_size: int,
    *,
    chance: random.Random,
    exclude: Collection[str] = (),
) -> list[str]:
    """Return the ids of *ensemble_size* different bookies that take writes.

    Args:
        bookies: the live ones; those that are read-only, in limbo or draining are skipped.
        ensemble_size: how many to choose.
        chance: the source of randomness.
        exclude: ids that must not be chosen.

    Raises:
        NotEnoughBookies: fewer than *ensemble_size* can be chosen.
    """
    drawn = _drawn([bookie for bookie in bookies if _takes_writes(bookie, exclude)], chance)
    if len(drawn) < ensemble_size:
        raise NotEnoughBookies(healthy=len(drawn), needed=ensemble_size)
    return drawn[:ensemble_size]


def _takes_writes(bookie: BookieRecord, exclude: Collection[str]) -> bool:
    closed = bookie.read_only or bookie.limbo or bookie.draining
    return not closed and bookie.bookie_id not in exclude


def _drawn(bookies: Sequence[BookieRecord], chance: random.Random) -> list[str]:
    """Return the ids of all *bookies* in the order of a weighted draw."""
    load_average = sum(b.load for b in bookies) / max(len(bookies), 1)
    # Efraimidis and Spirakis: the greatest of u ** (1 / weight) are a weighted draw.
    ranked = sorted(
        {bookie.bookie_id: bookie for bookie in bookies}.values(),
        key=lambda bookie: chance.random() ** (1.0 / _weight(bookie, load_average)),
        reverse=True,
    )
    return [bookie.bookie_id for bookie in ranked]


def _weight(bookie: BookieRecord, load_average: float) -> float:
    """Return free GiB divided by relative load; a full bookie still has some weight."""
    free_gib = bookie.free / (1 << 30)
    relative_load = bookie.load / load_average if load_average > 0 else 0.0
    return max(free_gib, 0.01) / (1.0 + relative_load)


def _seated(found: Sequence[str], ensemble: Sequence[str], lost: Sequence[int]) -> dict[int, str]:
    """Assign each of *found* a lost place, its own if it had one: no bookie is listed twice."""
    seats = {ensemble.index(bookie): bookie for bookie in found if bookie in ensemble}
    empty = (index for index in lost if index not in seats)
    others = (bookie for bookie in found if bookie not in ensemble)
    return seats | dict(zip(empty, others, strict=False))
