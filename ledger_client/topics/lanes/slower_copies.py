"""Copies of a ledger that the lane has left, which slower bookies may not have yet."""

from __future__ import annotations

import trio

from ledger_client.catalogue import RETRY_S, Catalogue
from ledger_client.errors import MetadataBroken, MetadataUnavailable
from ledger_client.marks import Reason
from ledger_client.topics.lanes.written_ledger import WrittenLedger

MARK_S = 5.0
"""For asking that somebody looks after copies; after it, the next audit finds them."""


class SlowerCopies:
    """Of one ledger at a time, in the background.

    When this process is killed first, who takes the lane over has its copies looked after.
    """

    def __init__(self, catalogue: Catalogue, nursery: trio.Nursery) -> None:
        self._catalogue = catalogue
        self._nursery = nursery
        self._known = trio.Event()
        self._known.set()

    def watch(self, ended: WrittenLedger) -> None:
        """Have copies looked after that slower bookies do not acknowledge soon."""
        self._known = trio.Event()
        self._nursery.start_soon(self._watch, ended)

    async def wait(self) -> None:
        """Wait until this is known of the ledger that is watched, if any."""
        await self._known.wait()

    async def _watch(self, ended: WrittenLedger) -> None:
        reason: Reason | None = "check"
        try:
            reason = await ended.wait_slower()
        finally:
            ended.give_up()
            if reason is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + MARK_S):
                    await self._mark(ended.id, reason)
            self._known.set()

    async def _mark(self, ledger_id: int, reason: Reason) -> None:
        while True:
            try:
                await self._catalogue.mark(ledger_id, reason)
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)
            except MetadataBroken:
                return  # the audit tells; it is no reason to end the lane
            else:
                return
