"""The host of the oracle: a role of the leader, with a lease of its own, behind all calls.

    clients ──► bookie ──► Timekeeper ──► Office ──► Oracle ──► first timestamp, valid for so long
                              │             └─ every 50 ms: clock, and at times one transaction
                              │ does not lead: NotLeader, with the leader's address

The window is stored in one transaction with a check of the lease ``time``, so a former leader
stores none. It may still have a part of its last window, though: so it looks at its lease after it
made each timestamp, and answers only while no other bookie can lead. Its clients look, too, because
the process may be paused between the look and the answer: the answer says how long it is valid.
With metadata in ZooKeeper that "no other bookie can lead" means: no ensemble ends a session that it
heard of within the session's life. An administrator who ends a bookie's by hand may see timestamps
that go back, for the rest of a lease (2.6 s).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import trio

from metadata.clock import host_wall_ms
from metadata.errors import (
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    NotLeader,
    TimeRefused,
    VersionConflict,
)
from metadata.leadership import TTL_S, Leadership, Term
from metadata.listings import not_leader
from metadata.office import answer_of
from metadata.store import ABSENT, MetadataStore, Put
from metadata.time.calls import (
    AllotTimestamps,
    ResetTime,
    TickRequest,
    TimeReply,
    TimeRequest,
    TimeReset,
    TimestampsAllotted,
)
from metadata.time.oracle import LOOK_MS, WINDOW_MS, Oracle
from metadata.time.rows import TIME, WINDOW, WindowRecord, decode_window
from metadata.time.tick_desk import TickDesk

LOOK_S = LOOK_MS / 1000
ATTEMPTS_MAX = 10
"""How often a request for more than is left of a millisecond waits for the next look."""
RETRY_S = 1.0
BEHIND_MS = 60_000
"""A clock that is further behind when a term begins is named in the log."""
_log = logging.getLogger(__name__)

assert WINDOW_MS >= TTL_S * 1000, "a window lasts at least as long as the lease"


class TimeFigures(msgspec.Struct):
    """What the oracle of this bookie did, for the metrics."""

    serves: bool = False
    """whether it hands out timestamps now"""
    allotted: int = 0
    """timestamps handed out"""
    requests: int = 0
    """requests that got them"""
    saves: int = 0
    """windows stored"""
    jumps: int = 0
    """looks at which the clock was ahead by more than 150 ms"""
    lag_ms: int = 0
    """how far the clock was ahead at the last look; negative if it is behind"""


class Timekeeper:
    """Answers requests for timestamps while its bookie leads."""

    def __init__(self, store: MetadataStore, *, wall_ms: Callable[[], int] = host_wall_ms) -> None:
        """*wall_ms*: this host's clock, in Unix milliseconds. It may be wrong."""
        self.figures = TimeFigures()
        self.desk = TickDesk()
        self._store = store
        self._wall_ms = wall_ms
        self._office: Office | None = None

    async def lead(self, term: Term) -> None:
        """Hand out timestamps whenever the lease is had, until cancelled.

        *term* is that of the leader: it names the owner of the lease, and its value.

        Raises:
            MetadataError: the store refuses a request; outages are waited out.
        """
        campaign = Leadership(
            self._store, TIME, term.lease.owner, value=lambda: term.lease.value, ttl_s=TTL_S
        )
        await campaign.run(self._serve)

    async def _serve(self, term: Term) -> None:
        office = Office(self._store, term, self.figures, self._wall_ms)
        await office.begin()
        self._office, self.figures.serves = office, True
        try:
            await office.work()
        finally:
            self._office, self.figures.serves = None, False

    async def answer(self, request: TimeRequest) -> TimeReply:
        """Return the reply to *request*.

        Raises:
            NotLeader: another bookie leads, or nobody, or the lease is not had yet.
            TimeRefused: time cannot be reset so.
            MetadataUnavailable: the store did not answer, or too many timestamps are wanted, or
                there is no tick yet.
        """
        if isinstance(request, TickRequest):
            try:
                return self.desk.answer(request)
            except NotLeader:
                raise await not_leader(self._store) from None
        return await answer_of(self._office, request, self._store)


class Office:
    """The oracle during one term of the lease ``time``."""

    def __init__(
        self,
        store: MetadataStore,
        term: Term,
        figures: TimeFigures,
        wall_ms: Callable[[], int],
    ) -> None:
        self.term = term
        self._store = store
        self._figures = figures
        self._wall_ms = wall_ms
        self._oracle = Oracle(0, 0)
        self._turn = trio.Lock()
        """one change of the window at a time"""
        self._version = ABSENT
        self._asked = trio.Event()
        self._in_doubt = False
        """the last change of the row may have been made, or may be made later"""

    async def begin(self) -> None:
        """Store the first window, above the one that is there. Raises LeaseLost."""
        while True:
            try:
                self._oracle = Oracle(await self._read(), self._wall_ms())
                await self._follow(is_wanted=True)
            except LeaseLost:
                raise
            except MetadataError as failure:
                _log.warning("no timestamps yet: %s", failure)
                await trio.sleep(RETRY_S)
            else:
                self._warn_if_behind()
                return

    def _warn_if_behind(self) -> None:
        """Say so if a former leader's clock was ahead, or this one's is behind."""
        if self._oracle.lag_ms < -BEHIND_MS:
            _log.warning(
                "this host's clock is %d s behind timestamps, which never go back: its clock, or "
                "that of a leader before, is wrong",
                -self._oracle.lag_ms // 1000,
            )

    async def work(self) -> None:
        """Follow the clock until cancelled; at rest, wait for somebody to ask. Raises LeaseLost."""
        while True:
            if self._oracle.rests:
                await self._asked.wait()
            await trio.sleep(LOOK_S)
            try:
                await self._follow()
            except LeaseLost:
                raise
            except MetadataError as failure:
                _log.warning("the window of timestamps is not renewed yet: %s", failure)

    async def answer(self, request: AllotTimestamps | ResetTime) -> TimeReply:
        """Return the reply to *request*; raises as Timekeeper.answer(), and LeaseLost."""
        self._asked.set()
        self._asked = trio.Event()
        if isinstance(request, AllotTimestamps):
            return await self._allot(request.count)
        return await self._reset(request)

    async def _allot(self, count: int) -> TimestampsAllotted:
        for _ in range(ATTEMPTS_MAX):
            if self._oracle.is_late(self._wall_ms()):
                await self._follow(is_wanted=True)
            last = self._oracle.allocate(count, self._wall_ms())
            if last is not None:
                self._figures.allotted += count
                self._figures.requests += 1
                return TimestampsAllotted(last - count + 1, count, self.term.left_s)
            await trio.sleep(LOOK_S)
        raise MetadataUnavailable(f"{count} timestamps are more than are left; ask for fewer")

    async def _reset(self, request: ResetTime) -> TimeReset:
        await self._follow(is_wanted=True)
        async with self._turn:
            before_ms = self._oracle.physical_ms
            try:
                window_ms = self._oracle.reset_window(request.to_ms)
            except ValueError as wrong:
                raise TimeRefused(str(wrong)) from wrong
            await self._save(window_ms)
            self._oracle.reset(request.to_ms)
        _log.warning("time was reset by hand, %d ms forward", request.to_ms - before_ms)
        return TimeReset(self._oracle.physical_ms)

    async def _follow(self, *, is_wanted: bool = False) -> None:
        """Look at the clock, and move on; store the next window before if it is time to."""
        async with self._turn:
            if (window_ms := self._look(is_wanted=is_wanted)) is not None:
                await self._save(window_ms)
                self._look(is_wanted=is_wanted)

    def _look(self, *, is_wanted: bool) -> int | None:
        oracle, jumps = self._oracle, self._oracle.jumps
        window_ms = oracle.look(self._wall_ms(), is_wanted=is_wanted)
        self._figures.lag_ms = oracle.lag_ms
        if oracle.jumps > jumps:
            self._figures.jumps += 1
            _log.warning(
                "this host's clock is %d ms ahead of timestamps: it was set, or the process "
                "was held up; timestamps go on from it",
                oracle.lag_ms,
            )
        return window_ms

    async def _save(self, end_ms: int) -> None:
        """Store the window up to *end_ms*, which counts from now on.

        After a failure the row is read again first: the change may have been made. It may even be
        made later, but then the next one fails, because both expect the same version.
        """
        if self._in_doubt:
            end_ms = max(end_ms, await self._read())
        self._in_doubt = True
        put = Put(WINDOW, msgspec.json.encode(WindowRecord(end_ms)), self._version)
        try:
            _, self._version = await self._store.transact([self.term.check, put])
        except VersionConflict as conflict:
            raise MetadataUnavailable("the window of timestamps changed meanwhile") from conflict
        self._in_doubt = False
        self._oracle.stored(end_ms)
        self._figures.saves += 1

    async def _read(self) -> int:
        """Return the end of the stored window; 0 without one."""
        found = await self._store.get(WINDOW)
        self._version = ABSENT if found is None else found.version
        return 0 if found is None else decode_window(found.value).saved_ms
