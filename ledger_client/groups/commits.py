"""Commits as the application asks for them: waited for, or only started.

    commit_nowait() ──► one place for each lane ──► run(): all that has gathered, at once
    commit()        ──► what was started before it, then its own ──► durable

What was started takes no more memory than the lanes of the member's partitions do. What becomes of
it is told by the next call that can raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import NamedTuple, TypeAlias

import trio

from ledger_client.errors import CommitRefused, LedgerError, MetadataUnavailable
from ledger_client.groups.lapses import Lapses
from ledger_client.groups.progress import Progress, all_lanes
from ledger_client.topics.positions import Place, Places
from metadata.groups.assignment import Part

PartPlaces: TypeAlias = Mapping[Part, Places]


class Started(NamedTuple):
    """A place of a lane that is to be committed."""

    place: Place
    explicit: bool
    """the application named it, so it may lie before what was committed"""


class Commits:
    """The commits of one member.

    Args:
        progress: stores them.
        check: raises BadTopic for places that are not in their lanes.
        lapses: has the partitions of which the application is to be told as they went.
        on_failure: called when a commit that nobody waits for has failed.
    """

    def __init__(
        self,
        progress: Progress,
        check: Callable[[PartPlaces], Awaitable[None]],
        lapses: Lapses,
        on_failure: Callable[[], None],
    ) -> None:
        self._progress = progress
        self._check = check
        self._lapses = lapses
        self._on_failure = on_failure
        self._started: dict[Part, dict[int, Started]] = {}
        self._storing: dict[Part, dict[int, Started]] = {}
        """what was started and is being stored"""
        self._news = trio.Event()
        self._turn = trio.Lock()
        self._failure: LedgerError | None = None
        self._refused: set[Part] = set()
        """partitions in which what was started was refused, which nobody was told of"""
        self._told: set[Part] = set()
        """partitions that refused something, of which it was told while more was under way there"""
        self._owed: set[Part] = set()
        """partitions of which it is told, once nothing is under way there, if they lapsed"""
        self._unsure: set[Part] = set()
        """partitions of which end() has told that what was started there is not over"""

    async def run(self) -> None:
        """Store what was started, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await self._store_started()

    def whole(self, places: PartPlaces) -> PartPlaces:
        """Return *places* with every lane that has progress: those left out begin at EARLIEST."""
        found: dict[Part, Places] = {}
        for part, lanes in places.items():
            started = self._storing.get(part, {}).keys() | self._started.get(part, {}).keys()
            found[part] = all_lanes(self._progress.lanes(part) | started, lanes)
        return found

    def start(self, places: PartPlaces, *, explicit: bool = False) -> None:
        """Commit these places soon. *explicit*: they may go back, and are checked."""
        self._told -= places.keys()
        for part, lanes in places.items():
            _add(self._started, part, {n: Started(place, explicit) for n, place in lanes.items()})
        self._news.set()

    async def commit(self, places: PartPlaces, *, explicit: bool = False) -> None:
        """Commit what was started, then these places; return when both are durable.

        What was started may have failed: see take_refused() and take_failure().

        Raises:
            BadTopic: an explicit place is not in its lane. None of *places* was committed.
            CommitRefused, MetadataUnavailable: as Progress.commit().
        """
        await self._store_started()
        await self._commit(places, explicit=explicit)

    @property
    def under_way(self) -> Set[Part]:
        """The partitions in which started commits are not over."""
        return self._started.keys() | self._storing.keys()

    async def finish(self) -> None:
        """Wait until everything that was started is stored, or has failed."""
        await self._store_started()

    def owe(self, parts: Set[Part]) -> None:
        """Count those of *parts* as refused that lapsed, once nothing is under way there."""
        self._owed |= parts

    def take_refused(self) -> set[Part]:
        """Return, once, the partitions in which commits that nobody waited for were refused.

        What is under way there by now is not counted if it is refused, too.
        """
        refused, self._refused = self._refused, set()
        self._told |= refused & self.under_way
        return refused

    def take_failure(self) -> LedgerError | None:
        """Return, once, why else a commit that nobody waited for has failed, if one has."""
        failure, self._failure = self._failure, None
        return failure

    def end(self) -> LedgerError | None:
        """Return what take_failure() would, or else, once, that what was started is not over."""
        if self._failure is None and self.under_way - self._unsure:
            self._unsure |= self.under_way
            return MetadataUnavailable("a commit that was started may have been made, or not")
        return self.take_failure()

    @property
    def refused(self) -> Set[Part]:
        """What take_refused() would return."""
        return self._refused

    @property
    def has_failed(self) -> bool:
        """True if take_refused() or take_failure() has something."""
        return bool(self._refused) or self._failure is not None

    async def _store_started(self) -> None:
        if not self._started and not self._turn.locked():
            return  # a turn would make many commits wait for each other
        async with self._turn:
            self._storing, self._started = self._started, {}
            try:
                for explicit in (False, True):
                    await self._store(_places(self._storing, explicit), explicit=explicit)
                    self._storing = _without(self._storing, explicit)
                self._pay()
            except BaseException:
                # Who waited here does so no longer; what others have started is not forgotten.
                left, self._storing = self._storing, {}
                for part, lanes in self._started.items():
                    _add(left, part, lanes)
                self._started = left
                self._news.set()
                raise

    def _pay(self) -> None:
        over = self._owed - self.under_way
        self._owed -= over
        if late := over & self._lapses.untold:
            self._refused |= late
            self._on_failure()

    async def _store(self, places: PartPlaces, *, explicit: bool) -> None:
        try:
            await self._commit(places, explicit=explicit)
        except CommitRefused as refused:
            if late := {Part(*part) for part in refused.parts} - self._told:
                self._refused |= late
                self._on_failure()
        except LedgerError as failure:
            self._failure = self._failure or failure
            self._on_failure()

    async def _commit(self, places: PartPlaces, *, explicit: bool) -> None:
        if not places:
            return
        if explicit:
            await self._check(places)
        try:
            await self._progress.commit(places, goes_back=explicit)
        except CommitRefused as refused:
            self._lapses.note_stored(
                {p: lanes for p, lanes in places.items() if p not in refused.parts}
            )
            raise
        self._lapses.note_stored(places)


def _add(started: dict[Part, dict[int, Started]], part: Part, later: Mapping[int, Started]) -> None:
    """Add what was started later. Of a lane, the last explicit place and what follows it count."""
    lanes = started.setdefault(part, {})
    for lane, each in later.items():
        before = lanes.get(lane)
        if each.explicit or before is None:
            lanes[lane] = each
        elif before.place.at < each.place.at:
            lanes[lane] = before._replace(place=each.place)


def _without(
    started: Mapping[Part, Mapping[int, Started]], explicit: bool
) -> dict[Part, dict[int, Started]]:
    left: dict[Part, dict[int, Started]] = {}
    for part, lanes in started.items():
        if others := {lane: each for lane, each in lanes.items() if each.explicit != explicit}:
            left[part] = others
    return left


def _places(started: Mapping[Part, Mapping[int, Started]], explicit: bool) -> PartPlaces:
    chosen: dict[Part, Places] = {}
    for part, lanes in started.items():
        places = {lane: each.place for lane, each in lanes.items() if each.explicit == explicit}
        if places:
            chosen[part] = places
    return chosen
