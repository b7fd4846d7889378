"""Commits as the application asks for them: waited for, or only started.

    commit_nowait() ──► one place for each lane ──► run(): all that has gathered, at once
    commit()        ──► what was started before it, then its own ──► durable

What was started takes no more memory than the lanes of the member's partitions do. What becomes of
it is told by the next call that can raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

import trio

from ledger_client.errors import CommitRefused, LedgerError
from ledger_client.groups.progress import Progress
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
        on_stored: called with the places that are stored.
        on_failure: called when a commit that nobody waits for has failed.
    """

    def __init__(
        self,
        progress: Progress,
        check: Callable[[PartPlaces], Awaitable[None]],
        on_stored: Callable[[PartPlaces], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._progress = progress
        self._check = check
        self._on_stored = on_stored
        self._on_failure = on_failure
        self._started: dict[Part, dict[int, Started]] = {}
        self._news = trio.Event()
        self._turn = trio.Lock()
        self._failure: LedgerError | None = None
        self._refused: set[Part] = set()
        """partitions in which what was started was refused"""

    async def run(self) -> None:
        """Store what was started, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await self._store_started()

    def start(self, places: PartPlaces, *, explicit: bool = False) -> None:
        """Commit these places soon. *explicit*: they may go back, and are checked."""
        for part, lanes in places.items():
            _add(self._started, part, {n: Started(place, explicit) for n, place in lanes.items()})
        self._news.set()

    async def commit(self, places: PartPlaces, *, explicit: bool = False) -> None:
        """Commit what was started, then these places; return when both are durable.

        What was started may have failed: see take_refused() and raise_failure().

        Raises:
            BadTopic: an explicit place is not in its lane. None of *places* was committed.
            CommitRefused, MetadataUnavailable: as Progress.commit().
        """
        await self._store_started()
        await self._commit(places, explicit=explicit)

    async def finish(self) -> None:
        """Wait until everything that was started is stored, or has failed."""
        await self._store_started()

    def take_refused(self) -> set[Part]:
        """Return, once, the partitions in which commits that nobody waited for were refused."""
        refused, self._refused = self._refused, set()
        return refused

    def raise_failure(self) -> None:
        """Raise once why else a commit that nobody waited for has failed, if one has."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _store_started(self) -> None:
        if not self._started and not self._turn.locked():
            return  # a turn would make many commits wait for each other
        async with self._turn:
            started, self._started = self._started, {}
            try:
                for explicit in (False, True):
                    await self._store(_chosen(started, explicit), explicit=explicit)
            except BaseException:
                # Who waited here does so no longer; what others have started is not forgotten.
                for part, lanes in self._started.items():
                    _add(started, part, lanes)
                self._started = started
                self._news.set()
                raise

    async def _store(self, places: PartPlaces, *, explicit: bool) -> None:
        try:
            await self._commit(places, explicit=explicit)
        except CommitRefused as refused:
            self._refused.update(Part(*part) for part in refused.parts)
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
            self._on_stored({p: lanes for p, lanes in places.items() if p not in refused.parts})
            raise
        self._on_stored(places)


def _add(started: dict[Part, dict[int, Started]], part: Part, later: Mapping[int, Started]) -> None:
    """Add what was started later. Of a lane, the last explicit place and what follows it count."""
    lanes = started.setdefault(part, {})
    for lane, each in later.items():
        before = lanes.get(lane)
        if each.explicit or before is None:
            lanes[lane] = each
        elif before.place.at < each.place.at:
            lanes[lane] = before._replace(place=each.place)


def _chosen(started: Mapping[Part, Mapping[int, Started]], explicit: bool) -> PartPlaces:
    chosen: dict[Part, Places] = {}
    for part, lanes in started.items():
        places = {lane: each.place for lane, each in lanes.items() if each.explicit == explicit}
        if places:
            chosen[part] = places
    return chosen
