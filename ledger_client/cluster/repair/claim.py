"""The right to repair or move one ledger: the lease repairs/<ledger>.

A background task renews it and stores the progress in it. Losing the lease cancels the
work; a change that comes too late anyway fails on ``claim.check`` in its transaction.
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
"""Work stops after this fraction of the lease's lifetime without a renewal."""
PROGRESS_S = 1.0
"""Pause between two updates of the progress."""
RELEASE_S = 1.0


class Claim:
    """Held: no other process repairs or moves this ledger, or deletes copies of it."""

    def __init__(self, lease: Lease, progress: RepairProgress) -> None:
        self._lease = lease
        self._progress = progress
        self._published = progress

    @property
    def check(self) -> CheckLease:
        """The op that every transaction on the ledger's record or mark must include."""
        return CheckLease.of(self._lease)

    def expect(self, size: int) -> None:
        """Add *size* to the bytes that will be copied, which the lease's row reports."""
        self._progress = msgspec.structs.replace(self._progress, size=self._progress.size + size)

    def copied(self, size: int) -> None:
        """Count *size* bytes as copied; published with the next renewal."""
        done = self._progress.copied_size + size
        self._progress = msgspec.structs.replace(self._progress, copied_size=done)

    async def keep(self, store: MetadataStore, scope: trio.CancelScope) -> None:
        """Renew the lease and push back the deadline of *scope*; cancel it once it is lost."""
        renewed_at = trio.current_time()
        while True:
            await trio.sleep(PROGRESS_S)
            asked_at = trio.current_time()
            if self._published == self._progress and asked_at < renewed_at + TTL_S / 3:
                continue
            progress = self._progress
            try:
                await store.renew(self._lease, value=encode_record(progress))
            except MetadataUnavailable:
                continue
            except LeaseLost:
                scope.cancel()
                return
            self._published, renewed_at = progress, asked_at
            scope.deadline = asked_at + TTL_S * PART_USED


@asynccontextmanager
async def claim_ledger(store: MetadataStore, ledger_id: int, owner: str) -> AsyncIterator[Claim]:
    """Hold the claim for the block; losing it cancels the block.

    Args:
        store: where the lease lives.
        ledger_id: the ledger.
        owner: names this run of this process. Claiming a ledger twice under one name
            succeeds, and cancels the first block.

    Raises:
        LeaseHeld: another process has the claim.
        LeaseLost: the claim was lost before the block ended.
        MetadataError: the store refused or is unavailable.
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
