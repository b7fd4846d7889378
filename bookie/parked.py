"""Reads that wait until the last confirmed entry of a ledger moves on.

A read with wait is a task. A client that follows many idle ledgers has one call for all of them
instead (AwaitLedgers): FollowedLedgers holds some hundred bytes for each, and no task.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio

from bookie.errors import CallRefused
from metadata.calls import FollowedLedger
from native.engine import Engine
from native.errors import Absent

_PARKED_MAX = 4096
"""Of all connections; a parked read is a task of some kilobytes."""
FOLLOWED_MAX = 100_000
"""Ledgers that one connection follows."""
ALL_FOLLOWED_MAX = 500_000
MOVED_MAX = 4096
"""Ledgers in one answer, which so is a small one."""


class _LedgerWatch:
    """The parked reads of one ledger."""

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.readers = 0


class ParkedReads:
    """The reads of all connections that wait until a ledger's last confirmed entry moves on.

    Attributes:
        parked: number of these reads.
        followed: number of ledgers that connections follow, counted for each connection.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watches: dict[int, _LedgerWatch] = {}
        self._followers: dict[int, tuple[FollowedLedgers, ...]] = {}
        self.followed = 0
        self.parked = 0

    @property
    def is_full(self) -> bool:
        """True while no further read can be parked."""
        return self.parked >= _PARKED_MAX

    def is_over(self, ledger_id: int, known_lac: int) -> bool:
        """True if a read of the ledger has nothing to wait for."""
        try:
            return not self._engine.watch(ledger_id, known_lac)
        except Absent:
            return True

    async def park(self, ledger_id: int, known_lac: int, wait_s: float) -> None:
        """Wait until the LAC is above *known_lac*, the ledger has ended, or *wait_s* passed."""
        watch = self._watches.setdefault(ledger_id, _LedgerWatch())
        watch.readers += 1
        self.parked += 1
        try:
            with trio.move_on_after(wait_s):
                while not self.is_over(ledger_id, known_lac):
                    await watch.woken.wait()
        finally:
            self.parked -= 1
            watch.readers -= 1
            if watch.readers == 0:
                del self._watches[ledger_id]

    def wake(self, ledger_id: int) -> None:
        """Let the parked reads of a ledger check again, because its watch came true."""
        watch = self._watches.get(ledger_id)
        if watch is not None:
            watch.woken.set()
            watch.woken = trio.Event()
        for follower in self._followers.get(ledger_id, ()):
            follower.look(ledger_id)

    def follow(self, ledger_id: int, follower: FollowedLedgers) -> None:
        """Let *follower* look at the ledger when its watch came true."""
        self._followers[ledger_id] = (*self._followers.get(ledger_id, ()), follower)
        self.followed += 1

    def leave(self, ledger_id: int, follower: FollowedLedgers) -> None:
        """Undo follow()."""
        left = tuple(each for each in self._followers[ledger_id] if each is not follower)
        if left:
            self._followers[ledger_id] = left
        else:
            del self._followers[ledger_id]
        self.followed -= 1


class FollowedLedgers:
    """The ledgers that one connection follows, and those of them with news."""

    def __init__(self, engine: Engine, parked: ParkedReads) -> None:
        self._engine = engine
        self._parked = parked
        self._known: dict[int, int] = {}
        """the last confirmed entry that the client knows, by ledger"""
        self._moved: dict[int, None] = {}
        self._news = trio.Event()
        self._turn: object = None

    def change(self, add: Sequence[FollowedLedger], drop: Sequence[int]) -> None:
        """Follow ledgers, and others no longer.

        Raises:
            CallRefused: too many are followed; none of *add* is.
        """
        for ledger_id in drop:
            self._leave(ledger_id)
            self._moved.pop(ledger_id, None)
        if (
            len(self._known) + len(add) > FOLLOWED_MAX
            or self._parked.followed + len(add) > ALL_FOLLOWED_MAX
        ):
            raise CallRefused(f"{len(self._known)} ledgers are followed, which is near the limit")
        for ledger_id, known_lac in map(msgspec.structs.astuple, add):
            if ledger_id not in self._known:
                self._parked.follow(ledger_id, self)
            self._known[ledger_id] = known_lac
            self._moved.pop(ledger_id, None)
            self.look(ledger_id)

    def look(self, ledger_id: int) -> None:
        """Note whether the ledger has news; one that is not here has none, ever."""
        try:
            if self._engine.watch(ledger_id, self._known[ledger_id]):
                return
        except Absent:
            self._leave(ledger_id)
            return
        self._leave(ledger_id)
        self._moved[ledger_id] = None
        self._news.set()

    async def wait(self, wait_s: float) -> bool:
        """Wait for news, up to *wait_s*; False if another task has begun to wait since."""
        mine = self._turn = object()
        self._news.set()  # for the call before
        with trio.move_on_after(wait_s):
            while not self._moved and self._turn is mine:
                self._news = trio.Event()
                await self._news.wait()
        return self._turn is mine

    def take(self) -> list[int]:
        """Return the ledgers with news, at most MOVED_MAX, and forget them."""
        moved = list(self._moved)[:MOVED_MAX]
        for ledger_id in moved:
            del self._moved[ledger_id]
        return moved

    def close(self) -> None:
        """Follow nothing any more."""
        for ledger_id in list(self._known):
            self._leave(ledger_id)

    def _leave(self, ledger_id: int) -> None:
        if ledger_id in self._known:
            del self._known[ledger_id]
            self._parked.leave(ledger_id, self)
