"""Which bookies hold a ledger: chance, weighted by room and by load.

Always taking the best bookie would send every new ledger of every client to the
same few. So bookies are drawn without replacement, each with a weight: its free
bytes, divided by how much busier than the average it is.

Those that failed lately are chosen when no others are left. A bookie that died is
registered until its lease runs out, so whoever is chosen is reached before it counts.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

from ledger_client.bookies import Bookies
from ledger_client.errors import NotEnoughBookies
from ledger_client.quarantine import Quarantine
from metadata.records import BookieRecord


class Placement:
    """Chooses bookies of one cluster that can be reached now."""

    def __init__(self, bookies: Bookies, quarantine: Quarantine, chance: random.Random) -> None:
        self._bookies = bookies
        self._quarantine = quarantine
        self._chance = chance

    def failed(self, bookie_id: str) -> None:
        """Choose this bookie after all others for some time."""
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
        """Return bookies for some of the *lost* places of *ensemble*, each of them answering.

        A lost bookie may be chosen again, for its own place. Those in quarantine are
        chosen only when it is *urgent*, and after all others.

        Raises:
            NotEnoughBookies: there is none for any place.
            LedgerError: nobody can tell which bookies are alive.
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
        bookies: those that are alive; those that are read-only, in limbo or being
            decommissioned are left out.
        ensemble_size: how many to choose.
        chance: where randomness comes from.
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
    """Return the ids of all *bookies*, in the order in which a weighted draw takes them."""
    load_average = sum(b.load for b in bookies) / max(len(bookies), 1)
    # Efraimidis and Spirakis: the greatest of u ** (1 / weight) are a weighted draw.
    ranked = sorted(
        {bookie.bookie_id: bookie for bookie in bookies}.values(),
        key=lambda bookie: chance.random() ** (1.0 / _weight(bookie, load_average)),
        reverse=True,
    )
    return [bookie.bookie_id for bookie in ranked]


def _weight(bookie: BookieRecord, load_average: float) -> float:
    """Return free GiB over relative load; a bookie without room still has some weight."""
    free_gib = bookie.free / (1 << 30)
    relative_load = bookie.load / load_average if load_average > 0 else 0.0
    return max(free_gib, 0.01) / (1.0 + relative_load)


def _seated(found: Sequence[str], ensemble: Sequence[str], lost: Sequence[int]) -> dict[int, str]:
    """Give each of *found* a lost place: its own, if it had one, for none may stand twice."""
    seats = {ensemble.index(bookie): bookie for bookie in found if bookie in ensemble}
    empty = (index for index in lost if index not in seats)
    others = (bookie for bookie in found if bookie not in ensemble)
    return seats | dict(zip(empty, others, strict=False))
