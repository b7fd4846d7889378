"""Acknowledgements on their way to the store: those that wait together travel together.

One transaction is under way at a time; what is acknowledged meanwhile goes with the next one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Set

import trio

from ledger_client.errors import LedgerError
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share
from ledger_client.groups.share_rows import ShareRows
from metadata.groups.assignment import Part

RETRY_S = 0.5
GONE = "their messages are another member's by now, or were acknowledged before"
_log = logging.getLogger(__name__)


class Round:
    """The shares that are stored next, together.

    Attributes:
        shares: those that changed.
        done: set once its outcome is known.
        after: the one that has its shares, as this one was cancelled.
        lost: the shares that others have by now.
        failure: why nothing may be stored yet.
    """

    def __init__(self, shares: Iterable[Share] = ()) -> None:
        self.shares = dict.fromkeys(shares)
        self.done = trio.Event()
        self.after: Round | None = None
        self.lost: set[Share] = set()
        self.failure: LedgerError | None = None


class Saver:
    """Stores shares that changed. While run() does not run, those who wait for it store them.

    Args:
        group: name of the group.
        rows: of this member.
        holdings: what it has; shares that others have by now are dropped.
    """

    def __init__(self, group: str, rows: ShareRows, holdings: Holdings) -> None:
        self._group = group
        self._rows = rows
        self._holdings = holdings
        self._next = Round()
        self._now: Round | None = None
        self._wake = trio.Event()
        self._is_running = False
        self._refused: set[Part] = set()

    def change(self, share: Share) -> None:
        """Store a share soon: it changed."""
        self._next.shares[share] = None
        self._wake.set()

    async def saved(self, shares: Set[Share]) -> set[Share]:
        """Return once changes of *shares* are durable: those that others have by now.

        Raises:
            MetadataUnavailable: the store did not answer in time; they are stored later.
        """
        lost: set[Share] = set()
        waiting = deque(
            each for each in (self._now, self._next) if each and each.shares.keys() & shares
        )
        while waiting:
            coming = waiting.popleft()
            while not coming.done.is_set():
                if self._is_running:
                    await coming.done.wait()
                elif self._now is not None:
                    await self._now.done.wait()
                else:
                    await self.save_now()
            if coming.failure is not None:
                raise coming.failure
            lost |= coming.lost & shares
            if coming.after is not None and coming.after not in waiting:
                waiting.append(coming.after)
        return lost

    async def flush(self) -> set[Part]:
        """Return once everything is durable.

        Returns:
            Partitions in which some acknowledgements since the last call came too late.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        await self.settle()
        refused, self._refused = self._refused, set()
        return refused

    async def settle(self) -> None:
        """As flush(), which is still to tell of those that came too late."""
        await self.saved({*self._next.shares, *(self._now.shares if self._now else ())})

    async def run(self) -> None:
        """Store changes until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                await self.save_now()
        finally:
            self._is_running = False
            self._cut(self._begin())  # who waits for it stores it

    async def save_now(self) -> None:
        """Store what changed so far. A failure is kept for those who wait; run() tries again."""
        while self._now is not None:
            await self._now.done.wait()
        now = self._now = self._begin()
        try:
            now.lost = await self._rows.save(now.shares)
        except LedgerError as failure:
            now.failure = failure
            self._put_back(now)
            _log.warning("group %s: acknowledgements not stored yet: %s", self._group, failure)
        except BaseException:
            self._cut(now)
            raise
        finally:
            self._now = None
            now.done.set()
        if now.failure is not None:
            await trio.sleep(RETRY_S)
            self._wake.set()
            return
        for share in now.shares:
            if share in now.lost:
                self._refused.add(share.part)
            # One of which everything is done since it was stored is stored once more.
            if share in now.lost or share.is_stored:
                self._holdings.drop(share)

    def _begin(self) -> Round:
        """Return the round of all that changed so far."""
        begun, self._next = self._next, Round()
        return begun

    def _cut(self, round_: Round) -> None:
        self._put_back(round_)
        round_.after = self._next
        round_.done.set()

    def _put_back(self, round_: Round) -> None:
        self._next.shares = {**round_.shares, **self._next.shares}
