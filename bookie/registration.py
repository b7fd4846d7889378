"""Registration: the lease ``bookies/<id>``, where clients find a bookie's address.

It is renewed three times in its lifetime. While the metadata store is down, the bookie still
serves clients that know its address, and retries.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import trio

from bookie.disk import DiskGuard
from bookie.drain import DrainState
from bookie.status import Status
from metadata.errors import LeaseLost, MetadataError
from metadata.records import bookie_lease, encode_record
from metadata.store import Lease, MetadataStore

_log = logging.getLogger(__name__)

_RELEASE_S = 2.0


class Registration:
    """The lease of one bookie.

    Args:
        store: the store that keeps the lease.
        status: the lease's value.
        disk: its signal *changed* requests an update at once.
        drain: read before each renewal.
        owner: the cookie's id. It identifies the folders, which only one process holds at a
            time, so that a killed bookie can register again at once.
        ttl_s: how long the lease outlives the bookie.
    """

    def __init__(
        self,
        store: MetadataStore,
        status: Status,
        disk: DiskGuard,
        drain: DrainState,
        *,
        owner: str,
        ttl_s: float,
    ) -> None:
        self._store = store
        self._status = status
        self._disk = disk
        self._drain = drain
        self._owner = owner
        self._ttl_s = ttl_s
        self._lease: Lease | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Register, then keep the lease until cancelled.

        Raises:
            MetadataError: the store refused the first registration.
        """
        await self._drain.look()
        self._lease = await self._grant()
        task_status.started()
        while True:
            with trio.move_on_after(self._ttl_s / 3):
                await self._disk.changed.wait()
            self._status.sample_load()
            await self._drain.look()
            await self._keep()

    async def release(self) -> None:
        """Release the lease, so that clients stop calling before it runs out."""
        if self._lease is None:
            return
        with trio.move_on_after(_RELEASE_S):
            try:
                await self._store.release(self._lease)
            except MetadataError as error:
                _log.warning("not deregistered, the lease will run out: %s", error)

    async def _keep(self) -> None:
        try:
            if self._lease is not None:
                self._lease = await self._store.renew(self._lease, value=self._value())
            else:
                self._lease = await self._grant()
        except LeaseLost:
            _log.warning("the registration was lost; registering again")
            self._lease = None
            self._disk.changed.set()
        except MetadataError as error:
            _log.warning("the registration is not renewed: %s", error)

    async def _grant(self) -> Lease:
        name = bookie_lease(self._status.bookie_id)
        return await self._store.grant(name, self._owner, ttl_s=self._ttl_s, value=self._value())

    def _value(self) -> bytes:
        return encode_record(self._status.record())
