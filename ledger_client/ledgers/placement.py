"""Choosing bookies for a ledger at random, weighted by free space and load.

Always taking the best bookie would send every new ledger of every client to the
same few. So bookies are drawn without replacement, each with a weight: its free
bytes, divided by its load relative to the average. In the order of this draw they are spread
over racks (racks.py): the copies of an entry are on as many as possible.

A bookie that failed recently is in quarantine and is chosen only if no other is left. So is one in
limbo, and for new ledgers alone: of an older one it may have forgotten that it is fenced.
A dead bookie stays registered until its lease runs out, so every chosen bookie must
accept a connection before it counts.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import trio

from ledger_client.errors import BookieUnavailable, NotEnoughBookies
from ledger_client.ledgers.racks import best_for, spread_at, spread_of, spread_out
from ledger_client.wire.bookies import Bookies
from metadata.records import BookieRecord

NAMED_MAX = 3


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
    """Chooses bookies that answer, for new ledgers and for lost bookies.

    Args:
        bookies: the connections to them.
        quarantine: those to pass over.
        chance: the source of randomness.
        racks_min: copies of an entry must be on so many racks, or on one each.
    """

    def __init__(
        self, bookies: Bookies, quarantine: Quarantine, chance: random.Random, *, racks_min: int = 1
    ) -> None:
        self._bookies = bookies
        self._quarantine = quarantine
        self._chance = chance
        self._racks_min = racks_min

    def failed(self, bookie_id: str) -> None:
        """Record a failure: for a while this bookie is chosen only after all others."""
        self._quarantine.failed(bookie_id)

    async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> list[str]:
        """Return *size* bookies for a new ledger, all of them connected.

        Fewer than *ack_quorum* are in limbo: the others can tell what a dead writer's end is.

        Raises:
            NotEnoughBookies: fewer take writes and can be reached, or they are on too few racks.
            MetadataUnavailable: the store did not answer in time.
        """
        live = await self._bookies.live()
        unreachable: dict[str, BookieUnavailable] = {}
        while True:
            try:
                limbo_max = ack_quorum - 1
                chosen = self._choose(live, size, write_quorum, unreachable, limbo_max)
            except NotEnoughBookies as few:
                for failure in [*unreachable.values()][:NAMED_MAX]:
                    few.add_note(f"not counted: {failure}")
                raise
            failed = await self._bookies.unreachable(chosen)
            if not failed:
                return chosen
            self._note(failed)
            unreachable.update(failed)

    async def substitutes(
        self, ensemble: Sequence[str], lost: Collection[int], *, write_quorum: int, urgent: bool
    ) -> dict[int, str]:
        """Return bookies that answer for some of the *lost* places of *ensemble*, by index.

        Each is on the rack that spreads the copies best. A lost bookie may be chosen again, for
        its own place. Bookies in quarantine are chosen only if it is *urgent*, and after all
        others.

        Raises:
            NotEnoughBookies: there is none for any place, or only on racks that are used.
            LedgerError: the list of live bookies is not available.
        """
        live = await self._bookies.lately_live()
        vacant = Seats(ensemble, lost, {b.bookie_id: b.rack for b in live}, write_quorum)
        tried, healthy = vacant.staying(), len(ensemble) - len(lost)
        while len(vacant.filled) < len(lost):
            spares = self._spares(live, tried, urgent=urgent)
            chosen = vacant.choose(spares, racks_min=self._racks_min)
            if not chosen:
                healthy += len(spares)
                break
            failed = await self._bookies.silent([*chosen.values()])
            self._note(failed)
            tried.update(chosen.values())
            vacant.fill({i: bookie for i, bookie in chosen.items() if bookie not in failed})
        if not vacant.filled:
            needed = min(self._racks_min, write_quorum)
            short = needed - 1 if needed > 1 and healthy >= len(ensemble) else None
            raise NotEnoughBookies(
                healthy=healthy, needed=len(ensemble), racks=short, racks_needed=needed
            )
        return vacant.filled

    def _choose(
        self,
        live: Sequence[BookieRecord],
        size: int,
        write_quorum: int,
        exclude: Collection[str],
        limbo_max: int,
    ) -> list[str]:
        sound = [bookie for bookie in live if not bookie.limbo]
        calm = [bookie for bookie in sound if bookie.bookie_id not in self._quarantine]
        choose = partial(
            choose_ensemble,
            ensemble_size=size,
            write_quorum=write_quorum,
            racks_min=self._racks_min,
            chance=self._chance,
            exclude=exclude,
        )
        with suppress(NotEnoughBookies):
            return choose(calm)
        lacking = size - sum(_takes_writes(bookie, exclude) for bookie in sound)
        if not 0 < lacking <= limbo_max:
            return choose(sound)
        others = [b for b in live if b.limbo and _takes_writes(b, exclude)]
        drawn = _drawn(others, self._chance)[:lacking]
        return choose([b for b in live if not b.limbo or b.bookie_id in drawn])

    def _spares(
        self, live: Sequence[BookieRecord], tried: Collection[str], *, urgent: bool
    ) -> list[list[str]]:
        """Return the bookies to choose from, in groups: the second one only after the first."""
        able = [b for b in live if not b.limbo and _takes_writes(b, tried)]
        drawn = _drawn(able, self._chance)
        calm = [bookie for bookie in drawn if bookie not in self._quarantine]
        return [calm, [b for b in drawn if b in self._quarantine]] if urgent else [calm]

    def _note(self, failed: Iterable[str]) -> None:
        for bookie_id in failed:
            self._quarantine.failed(bookie_id)


def choose_ensemble(
    bookies: Sequence[BookieRecord],
    ensemble_size: int,
    *,
    chance: random.Random,
    write_quorum: int | None = None,
    racks_min: int = 1,
    exclude: Collection[str] = (),
) -> list[str]:
    """Return the ids of *ensemble_size* different bookies that take writes, in ensemble order.

    Args:
        bookies: the live ones; those that are read-only or draining are skipped.
        ensemble_size: how many to choose.
        write_quorum: how many of them in a row hold an entry; `None`: all.
        racks_min: how many racks each entry must be on, at most as many as it has copies.
        chance: the source of randomness.
        exclude: ids that must not be chosen.

    Raises:
        NotEnoughBookies: fewer than *ensemble_size* can be chosen, or on too few racks.
    """
    drawn = _drawn([bookie for bookie in bookies if _takes_writes(bookie, exclude)], chance)
    if len(drawn) < ensemble_size:
        read_only = sum(bookie.read_only for bookie in bookies)
        raise NotEnoughBookies(healthy=len(drawn), needed=ensemble_size, read_only=read_only)
    copies = ensemble_size if write_quorum is None else write_quorum
    rack_of = {bookie.bookie_id: bookie.rack for bookie in bookies}
    ensemble = spread_out(drawn, rack_of, ensemble_size, copies)
    racks = spread_of([rack_of[bookie] for bookie in ensemble], copies).least
    if racks < min(racks_min, copies):
        raise NotEnoughBookies(
            healthy=len(drawn),
            needed=ensemble_size,
            racks=racks,
            racks_needed=min(racks_min, copies),
        )
    return ensemble


class Seats:
    """The places of an ensemble that were lost, and who takes them.

    Args:
        ensemble: all bookies, lost ones included.
        lost: the places to fill.
        rack_of: racks of the bookies that are alive.
        write_quorum: of the ledger.

    Attributes:
        filled: places that have a bookie now.
    """

    def __init__(
        self,
        ensemble: Sequence[str],
        lost: Collection[int],
        rack_of: Mapping[str, str],
        write_quorum: int,
    ) -> None:
        self._ensemble = ensemble
        self._lost = sorted(lost)
        self._rack_of = rack_of
        self._write_quorum = write_quorum
        self.filled: dict[int, str] = {}

    def staying(self) -> set[str]:
        """Return the bookies that were not lost."""
        return {b for index, b in enumerate(self._ensemble) if index not in self._lost}

    def fill(self, chosen: Mapping[int, str]) -> None:
        """Give places to bookies."""
        self.filled.update(chosen)

    def choose(self, spares: Sequence[Sequence[str]], *, racks_min: int) -> dict[int, str]:
        """Propose bookies for vacant places, the first of *spares* among equals.

        A bookie of the ensemble is proposed for its own place only, so none is listed twice. So
        places that cannot have theirs back come first.
        """
        racks = [self._rack_at(index) for index in range(len(self._ensemble))]
        back = {bookie for group in spares for bookie in group}
        chosen: dict[int, str] = {}
        for index in sorted(self._lost, key=lambda index: self._ensemble[index] in back):
            if index not in self.filled:
                able = [[b for b in group if self._fits(b, index, chosen)] for group in spares]
                bookie = self._best([*racks], index, able, racks_min)
                if bookie is not None:
                    chosen[index], racks[index] = bookie, self._rack_of[bookie]
        return chosen

    def _best(
        self, racks: list[str | None], index: int, able: list[list[str]], racks_min: int
    ) -> str | None:
        needed = min(racks_min, self._write_quorum)
        for group in able:
            rack = best_for(racks, index, [self._rack_of[b] for b in group], self._write_quorum)
            if rack is None or spread_at(racks, index, rack, self._write_quorum).least < needed:
                continue
            return next(bookie for bookie in group if self._rack_of[bookie] == rack)
        return None

    def _fits(self, bookie: str, index: int, chosen: Mapping[int, str]) -> bool:
        if bookie in chosen.values():
            return False
        return bookie not in self._ensemble or self._ensemble[index] == bookie

    def _rack_at(self, index: int) -> str | None:
        if index in self._lost and index not in self.filled:
            return None
        return self._rack_of.get(self.filled.get(index, self._ensemble[index]))


def _takes_writes(bookie: BookieRecord, exclude: Collection[str]) -> bool:
    closed = bookie.read_only or bookie.draining
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
