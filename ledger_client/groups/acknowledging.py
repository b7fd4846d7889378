"""Acknowledgements on their way to the store: those that wait together travel together.

One transaction is under way at a time; what is acknowledged meanwhile goes with the next one.
"""

from __future__ import annotations

import logging

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
    """The changes that are stored next, together."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.lost: set[Share] = set()
        self.failure: LedgerError | None = None


class Saver:
    """Stores shares that changed. run() must run meanwhile.

    Args:
        group: name of the group.
        rows: of this member.
        holdings: what it has; shares that others have by now are dropped.
    """

    def __init__(self, group: str, rows: ShareRows, holdings: Holdings) -> None:
        self._group = group
        self._rows = rows
        self._holdings = holdings
        self._changed: dict[Share, None] = {}
        self._next = Round()
        self._wake = trio.Event()
        self._now: Round | None = None
        self._refused: set[Part] = set()

    def change(self, share: Share) -> None:
        """Store a share soon: it changed."""
        self._changed[share] = None
        self._wake.set()

    async def saved(self, shares: set[Share]) -> set[Share]:
        """Return once changes of *shares* are durable: those that others have by now.

        Raises:
            MetadataUnavailable: the store did not answer in time; they are stored later.
        """
        coming = self._next if shares & self._changed.keys() else self._now
        if coming is None:
            return set()
        await coming.done.wait()
        if coming.failure is not None:
            raise coming.failure
        return coming.lost & shares

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
        await self.saved(set(self._changed))

    async def run(self) -> None:
        """Store changes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self.save_now()

    async def save_now(self) -> None:
        """Store what changed so far. A failure is kept for those who wait; run() tries again."""
        now, self._next = self._next, Round()
        changed, self._changed = self._changed, {}
        self._now = now
        try:
            now.lost = await self._rows.save(changed)
        except LedgerError as failure:
            now.failure = failure
            self._changed = {**changed, **self._changed}
            _log.warning("group %s: acknowledgements not stored yet: %s", self._group, failure)
        except BaseException:
            self._changed = {**changed, **self._changed}
            raise
        finally:
            self._now = None
            now.done.set()
        if now.failure is not None:
            await trio.sleep(RETRY_S)
            self._wake.set()
            return
        for share in changed:
            if share in now.lost:
                self._refused.add(share.part)
            # One of which everything is done since it was stored is stored once more.
            if share in now.lost or share.is_stored:
                self._holdings.drop(share)
