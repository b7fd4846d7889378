"""Copies of a lane's ledger that its slower bookies may lack when the lane leaves the ledger."""

from __future__ import annotations

import trio

from ledger_client.errors import LedgerClosed, MetadataBroken, MetadataUnavailable
from ledger_client.ledgers.catalogue import RETRY_S, Catalogue
from ledger_client.ledgers.records import Reason
from ledger_client.ledgers.writer import WriteDriver

SLOWER_S = 0.2
"""For bookies beyond the ack quorum, when a ledger ends."""
MARK_S = 5.0
"""For recording that copies may be missing; without the record the next audit finds them."""


class SlowerCopies:
    """Copies of a ledger that the lane has left, which slower bookies may not have yet.

    Of one ledger at a time, in the background. If this process is killed first, the lane's next
    writer has the copies checked.
    """

    def __init__(self, catalogue: Catalogue, nursery: trio.Nursery) -> None:
        self._catalogue = catalogue
        self._nursery = nursery
        self._known = trio.Event()
        self._known.set()

    def watch(self, ended: WriteDriver) -> None:
        """Have copies checked that slower bookies do not acknowledge soon."""
        self._known = trio.Event()
        self._nursery.start_soon(self._watch, ended)

    async def wait(self) -> None:
        """Wait until the watched copies are acknowledged or marked for a check."""
        await self._known.wait()

    async def _watch(self, ended: WriteDriver) -> None:
        reason: Reason | None = "check"
        try:
            await ended.settle(slower_s=SLOWER_S)
            reason = ended.doubt()
        finally:
            ended.fail(LedgerClosed(ended.id))
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
                return  # the audit finds it; it is no reason to end the lane
            else:
                return
