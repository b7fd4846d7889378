"""The host of roles: a bookie's process, and the view of itself that it gives to them.

A role is work for the whole cluster that any bookie can do, such as leading repair or taking part
in it. Its code belongs to the ledger client, which knows many nodes. A failure of the roles never
ends the bookie.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import msgspec
import trio
from prometheus_client import CollectorRegistry

from bookie.drain import DrainState
from bookie.events import Wakeup
from bookie.storage import Storage
from metadata.groups.coordinator import Coordinator
from metadata.time.timekeeper import Timekeeper

RESTART_S = 5.0

_log = logging.getLogger(__name__)


class RoleFigures(msgspec.Struct):
    """Figures of one bookie's roles; the roles set them, the metrics publish them.

    Attributes:
        leads: whether this bookie leads.
        marks: ledgers that need repair, at the worker's last look.
        repaired: ledgers repaired by this bookie.
        failed: repairs that failed.
        copied_size: payload bytes copied from bookie to bookie.
        restarts: times that the roles failed and were started again.
    """

    leads: bool = False
    marks: int = 0
    repaired: int = 0
    failed: int = 0
    copied_size: int = 0
    restarts: int = 0


class Host:
    """One bookie that serves, for its roles.

    Attributes:
        bookie_id: its name.
        address: host:port for clients.
        figures: figures of the roles, for the metrics.
        registry: registry of the bookie's metrics page, for further metrics of the roles.
        coordinator: answers calls about groups while the bookie leads.
        timekeeper: hands out timestamps while the bookie leads.
    """

    def __init__(
        self,
        bookie_id: str,
        address: str,
        storage: Storage,
        drain: DrainState,
        changed: Wakeup,
        registry: CollectorRegistry,
        coordinator: Coordinator,
        timekeeper: Timekeeper,
    ) -> None:
        self.bookie_id = bookie_id
        self.address = address
        self.figures = RoleFigures()
        self.registry = registry
        self.coordinator = coordinator
        self.timekeeper = timekeeper
        self._storage = storage
        self._drain = drain
        self._changed = changed

    @property
    def limbo(self) -> bool:
        """True if it may have lost records, and so never answers that an entry is absent."""
        return self._storage.limbo.is_on

    @property
    def draining(self) -> bool:
        """True while it is being decommissioned."""
        return self._drain.is_on

    @property
    def doubts(self) -> int:
        """Reasons to be in limbo, counted since the start."""
        return self._storage.limbo.entered

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        """End limbo, durably; call it once every ledger here is complete.

        Args:
            doubts: the property before the ledgers were compared. If there was another reason
                since, the bookie stays in limbo.

        Returns:
            True if limbo is over.

        Raises:
            OSError: the disk failed; the bookie is still in limbo.
        """
        leave = partial(self._storage.limbo.leave, doubts=doubts)
        is_over = await trio.to_thread.run_sync(leave)
        self._changed.set()
        return is_over


Roles = Callable[[Host], Awaitable[None]]


async def keep_roles(host: Host, roles: Roles) -> NoReturn:
    """Run *roles* until cancelled; start them again RESTART_S after they ended."""
    while True:
        try:
            await roles(host)
        except* Exception:  # noqa: BLE001 - a bug in a role must not end the bookie
            _log.exception("the roles of this bookie failed; they start again in %g s", RESTART_S)
        host.figures.restarts += 1
        await trio.sleep(RESTART_S)
