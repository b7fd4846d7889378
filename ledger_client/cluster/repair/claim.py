"""The right to repair or move one ledger: the lease repairs/<ledger>.

A background task stores the progress in it. Losing the lease cancels the work; a change that
comes too late anyway fails on ``claim.check`` in its transaction.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from ledger_client.background import Background
from metadata.errors import LeaseLost, MetadataUnavailable
from metadata.records import RepairProgress, encode_record, repair_lease
from metadata.sessions import HeldLease, ProcessSession
from metadata.store import CheckLease

PROGRESS_S = 1.0
"""Pause between two updates of the progress."""


class Claim:
    """Held: no other process repairs or moves this ledger, or deletes copies of it."""

    def __init__(self, held: HeldLease, progress: RepairProgress) -> None:
        self._held = held
        self._progress = progress
        self._published = progress

    @property
    def check(self) -> CheckLease:
        """The op that every transaction on the ledger's record or mark must include."""
        return self._held.check

    def expect(self, size: int) -> None:
        """Add *size* to the bytes that will be copied, which the lease's row reports."""
        self._progress = msgspec.structs.replace(self._progress, size=self._progress.size + size)

    def copied(self, size: int) -> None:
        """Count *size* bytes as copied; published within PROGRESS_S."""
        done = self._progress.copied_size + size
        self._progress = msgspec.structs.replace(self._progress, copied_size=done)

    async def publish(self) -> None:
        """Store the progress in the lease when it has changed, until cancelled."""
        while True:
            await trio.sleep(PROGRESS_S)
            progress = self._progress
            if self._published != progress:
                with suppress(MetadataUnavailable, LeaseLost):  # which ends the claim by itself
                    await self._held.update(encode_record(progress))
                    self._published = progress


@asynccontextmanager
async def claim_ledger(session: ProcessSession, ledger_id: int, owner: str) -> AsyncIterator[Claim]:
    """Hold the claim for the block; losing it cancels the block.

    Args:
        session: what the lease belongs to.
        ledger_id: the ledger.
        owner: names this run of this process. Claiming a ledger twice under one name
            succeeds, and cancels the first block.

    Raises:
        LeaseHeld: another process has the claim.
        LeaseLost: the claim was lost before the block ended.
        MetadataError: the store refused or is unavailable.
    """
    progress = RepairProgress(ledger_id, owner, time.time_ns() // 1_000_000)
    name = repair_lease(ledger_id)
    held = await session.grant(name, owner=owner, value=encode_record(progress))
    try:
        with trio.CancelScope() as scope:
            held.limit(scope)
            async with Background() as nursery:
                claim = Claim(held, progress)
                nursery.start_soon(claim.publish)
                yield claim
        if scope.cancelled_caught:
            raise LeaseLost(name=name, owner=owner, epoch=held.lease.epoch)
    finally:
        await held.release()
