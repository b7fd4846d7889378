"""The lease that tells others that a lane is written.

A lease outlives a writer that was killed by LEASE_S. It only tells others: a writer that
loses it, as when the store was away, writes on until another raised the lane's epoch.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from ledger_client.errors import MetadataUnavailable
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.translation import translated
from metadata.errors import LeaseHeld, LeaseLost, MetadataError
from metadata.store import Lease, MetadataStore
from metadata.topics import last_number

LEASE_S = 10.0
RELEASE_S = 1.0


class LaneLease:
    """A lane that others see is written; *lease* None: somebody whom we took it from has it."""

    def __init__(self, store: MetadataStore, name: str, owner: str, value: bytes) -> None:
        self.lane = last_number(name)
        self.owner = owner
        self._store = store
        self._name = name
        self._value = value
        self._lease: Lease | None = None
        self._has_lapsed = False

    async def take(self, timeout_s: float) -> Lease | None:
        """Ask for the lease; None: another has it."""
        self._lease = None
        with translated(timeout_s), suppress(LeaseHeld):
            self._lease = await self._store.grant(
                self._name, self.owner, ttl_s=LEASE_S, value=self._value
            )
        return self._lease

    async def take_over(self, timeout_s: float) -> None:
        """End the lease of whoever has it and take it, so that no third one finds the lane free.

        Another may be faster; then it is asked for again by and by.
        """
        with translated(timeout_s):
            for lease in await self._store.leases(self._name):
                await self._store.release(lease)
        await self.take(timeout_s)

    async def keep(self, rows: LaneRows) -> None:
        """Renew the lease until cancelled, and see each time that the lane is still ours.

        Raises:
            ProducerFenced, NoSuchTopic: it is not.
            MetadataBroken: a person must look.
        """
        while True:
            await trio.sleep(LEASE_S / 3)
            with suppress(MetadataUnavailable):
                await rows.verify()
                await self._renew()
                await rows.refresh_clock()

    async def _renew(self) -> None:
        if self._lease is None:
            await self.take(LEASE_S / 3)
            return
        try:
            with translated(LEASE_S / 3):
                self._lease = await self._store.renew(self._lease)
        except LeaseLost:
            self._has_lapsed = True
            await self.take(LEASE_S / 3)

    async def check_kept(self) -> None:
        """Raise MetadataUnavailable if the lease has run out since it was taken.

        Then somebody may have taken the partition for free, and seen no lane to close yet.
        """
        if not self._has_lapsed:
            await self._renew()
        if self._has_lapsed:
            raise MetadataUnavailable("the lane's lease ran out while the lane was opened")

    async def release(self) -> None:
        """Let others know at once that nobody writes the lane."""
        lease, self._lease = self._lease, None
        if lease is not None:
            until = trio.current_time() + RELEASE_S
            with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
                await self._store.release(lease)
