"""Registration: the lease ``bookies/<id>``, where clients find a bookie's address.

It lives as long as the bookie's session. Its value is updated when it has changed. While the
metadata store is down, the bookie still serves clients that know its address, and retries. Once
another process has the lease, the bookie ends: that one serves with a copy of its folders, or with
the folders themselves on another host.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from bookie.disk import DiskGuard
from bookie.drain import DrainState
from bookie.status import Status
from metadata.errors import LeaseHeld, LeaseLost, MetadataError
from metadata.records import bookie_lease, encode_record
from metadata.sessions import HeldLease, ProcessSession

_log = logging.getLogger(__name__)


class Registration:
    """The lease of one bookie.

    Args:
        session: of the bookie; the lease belongs to it.
        status: the lease's value.
        disk: its signal *changed* requests an update at once.
        drain: read before each update.
        owner: names the folders on this boot of the host, which only one process holds at a
            time, so that a killed bookie can register again at once.
        check_alone: raises BookieError if another process serves as this bookie.
        update_s: interval at which the value is looked at.
    """

    def __init__(
        self,
        session: ProcessSession,
        status: Status,
        disk: DiskGuard,
        drain: DrainState,
        *,
        owner: str,
        check_alone: Callable[[], Awaitable[None]],
        update_s: float,
    ) -> None:
        self._session = session
        self._status = status
        self._disk = disk
        self._drain = drain
        self._owner = owner
        self._check_alone = check_alone
        self._update_s = update_s
        self._held: HeldLease | None = None
        self._value = b""

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Register, then keep the lease until cancelled.

        Raises:
            MetadataError: the store refused the first registration.
            BookieError: another process serves as this bookie.
        """
        await self._drain.look()
        await self._grant()
        task_status.started()
        while True:
            with trio.move_on_after(self._update_s):
                await self._disk.changed.wait()
            self._status.sample_load()
            await self._drain.look()
            await self._update()

    async def _update(self) -> None:
        try:
            if self._held is None:
                await self._grant()
            elif self._value != (value := encode_record(self._status.record())):
                await self._held.update(value)
                self._value = value
        except LeaseLost:
            self._over()
        except MetadataError as error:
            _log.warning("the registration is not updated: %s", error)

    def _over(self) -> None:
        if self._held is not None:
            _log.warning("the registration was lost; registering again")
        self._held = None
        self._disk.changed.set()

    async def _grant(self) -> None:
        name = bookie_lease(self._status.bookie_id)
        while self._held is None:
            value = encode_record(self._status.record())
            try:
                self._held = await self._session.grant(
                    name, owner=self._owner, value=value, on_over=self._over
                )
            except LeaseHeld:
                await self._check_alone()  # it names who has it, unless that one is gone by now
            else:
                self._value = value
