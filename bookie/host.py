"""What a bookie lends to the roles that it hosts.

A role is work for the whole cluster that any bookie can do, such as leading repair or
taking part in it. It belongs to the ledger client, which knows many nodes; the bookie gives
it a process to run in, and this view of itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio
from prometheus_client import CollectorRegistry

from bookie.bell import Bell
from bookie.drain import Drain
from bookie.storage import Storage


class Figures(msgspec.Struct):
    """What the roles of one bookie did and see; they set it, the metrics tell it.

    Attributes:
        leads: whether this bookie leads.
        marks: ledgers that want repair, as the worker last saw.
        repaired: ledgers made whole by this bookie.
        failed: repairs that ended without success.
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
        figures: what the roles tell.
        registry: of the metrics that the bookie's page tells, for those of the roles.
    """

    def __init__(
        self,
        bookie_id: str,
        address: str,
        storage: Storage,
        drain: Drain,
        changed: Bell,
        registry: CollectorRegistry,
    ) -> None:
        self.bookie_id = bookie_id
        self.address = address
        self.figures = Figures()
        self.registry = registry
        self._storage = storage
        self._drain = drain
        self._changed = changed

    @property
    def limbo(self) -> bool:
        """Whether it may have lost records, and so does not deny that an entry exists."""
        return self._storage.limbo.is_on

    @property
    def draining(self) -> bool:
        """Whether it is being decommissioned."""
        return self._drain.is_on

    @property
    def doubts(self) -> int:
        """How often since the start there was a reason to be in limbo."""
        return self._storage.limbo.entered

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        """End limbo, durably; call it once every ledger here is known to be whole.

        Args:
            doubts: what the property said before the ledgers were looked at. When there
                was another reason since, the bookie stays in limbo.

        Returns:
            Whether limbo is over.

        Raises:
            OSError: the disk failed; the bookie is still in limbo.
        """
        leave = partial(self._storage.limbo.leave, doubts=doubts)
        is_over = await trio.to_thread.run_sync(leave)
        self._changed.ring()
        return is_over


Roles = Callable[[Host], Awaitable[None]]
