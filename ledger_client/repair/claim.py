"""The right to repair or move one ledger: the lease repairs/<ledger>.

It is renewed beside the work, with how far the work is. When it is lost the work
is cancelled; a change made too late fails by ``claim.check`` in its transaction.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from ledger_client.background import Background
from metadata.errors import LeaseLost, MetadataError, MetadataUnavailable
from metadata.records import RepairProgress, encode_record, repair_lease
from metadata.store import CheckLease, Lease, MetadataStore

TTL_S = 10.0
PART_USED = 0.9
"""Of the lease's lifetime: after it, without a renewal, the work ends."""
PROGRESS_S = 1.0
"""Between two updates of the progress, if there was any."""
RELEASE_S = 1.0


class Claim:
    """A ledger that nobody else repairs, moves or deletes copies of."""

    def __init__(self, lease: Lease, progress: RepairProgress) -> None:
        self._lease = lease
        self._progress = progress
        self._told = progress

    @property
    def check(self) -> CheckLease:
        """Put it into each transaction that changes the ledger's record or mark."""
        return CheckLease.of(self._lease)

    def expect(self, size: int) -> None:
        """*size* more bytes are to be copied."""
        self._progress = msgspec.structs.replace(self._progress, size=self._progress.size + size)

    def copied(self, size: int) -> None:
        """*size* bytes were copied."""
        done = self._progress.copied_size + size
        self._progress = msgspec.structs.replace(self._progress, copied_size=done)

    async def keep(self, store: MetadataStore, scope: trio.CancelScope) -> None:
        """Renew, moving the end of *scope*, until the lease is lost; then cancel it."""
        renewed_at = trio.current_time()
        while True:
            await trio.sleep(PROGRESS_S)
            asked_at = trio.current_time()
            if self._told == self._progress and asked_at < renewed_at + TTL_S / 3:
                continue
            progress = self._progress
            try:
                await store.renew(self._lease, value=encode_record(progress))
            except MetadataUnavailable:
                continue
            except LeaseLost:
                scope.cancel()
                return
            self._told, renewed_at = progress, asked_at
            scope.deadline = asked_at + TTL_S * PART_USED


@asynccontextmanager
async def claim_ledger(store: MetadataStore, ledger_id: int, owner: str) -> AsyncIterator[Claim]:
    """Hold the claim for the block, which is cancelled when it is lost.

    Args:
        store: where the lease lives.
        ledger_id: the ledger.
        owner: names this run of this process: who holds the claim already gets it anew,
            and its first block is cancelled.

    Raises:
        LeaseHeld: somebody else repairs the ledger.
        LeaseLost: the claim was lost, and the block cancelled before its end.
        MetadataError: the store refuses or is away.
    """
    progress = RepairProgress(ledger_id, owner, time.time_ns() // 1_000_000)
    asked_at = trio.current_time()
    name = repair_lease(ledger_id)
    lease = await store.grant(name, owner, ttl_s=TTL_S, value=encode_record(progress))
    try:
        with trio.CancelScope(deadline=asked_at + TTL_S * PART_USED) as scope:
            async with Background() as nursery:
                claim = Claim(lease, progress)
                nursery.start_soon(claim.keep, store, scope)
                yield claim
        if scope.cancelled_caught:
            raise LeaseLost(name=name, owner=owner, epoch=lease.epoch)
    finally:
        await _release(store, lease)


async def _release(store: MetadataStore, lease: Lease) -> None:
    until = trio.current_time() + RELEASE_S
    with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
        await store.release(lease)
