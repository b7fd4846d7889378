"""Requests to the bookie that leads, wherever it is: about groups, and for timestamps."""

from __future__ import annotations

from typing import TypeVar

import trio

from ledger_client.errors import BookieUnavailable, MetadataUnavailable
from ledger_client.ledgers.catalogue import translated
from ledger_client.wire.bookies import Bookies
from ledger_client.wire.inflight import move_on_after
from metadata.clock import asleep_s
from metadata.errors import BadRecord, MetadataBroken, NotLeader
from metadata.groups.calls import GroupRequest
from metadata.listings import leader
from metadata.store import MetadataStore
from metadata.time.calls import TimeRequest

T = TypeVar("T")
LeaderRequest = GroupRequest | TimeRequest
ATTEMPT_S = 3.0
"""After so long without an answer, the leader is looked up again."""
PAUSE_S = 0.1
PAUSE_S_MAX = 1.0


class LeaderCalls:
    """Asks the bookie that leads. Each request may be repeated: that does no harm."""

    def __init__(self, store: MetadataStore, bookies: Bookies) -> None:
        self._store = store
        self._bookies = bookies
        self._leader = ""

    async def ask(self, request: LeaderRequest, kind: type[T], *, timeout_s: float) -> T:
        """Return the reply to *request*, which is a *kind*; wait for a leader if there is none.

        Raises:
            BadGroup, TimeRefused: the leader refuses the request.
            MetadataBroken: the leader is of a version that knows no such request.
            MetadataUnavailable: no leader answered within *timeout_s*.
        """
        reply, _ = await self.ask_timed(request, kind, timeout_s=timeout_s)
        return reply

    async def ask_timed(
        self, request: LeaderRequest, kind: type[T], *, timeout_s: float
    ) -> tuple[T, float]:
        """As ask(); return the reply, and the seconds since the request was sent.

        They count while the host sleeps, too.
        """
        reason = "no bookie leads"
        pause_s = PAUSE_S
        with move_on_after(timeout_s):
            while True:
                sent_at = _now()
                try:
                    reply = await self._attempt(request)
                except (BookieUnavailable, NotLeader, MetadataUnavailable) as failure:
                    _check_known(failure, request)
                    reason = str(failure)
                    self._leader = failure.bookie_id if isinstance(failure, NotLeader) else ""
                except trio.Cancelled:  # the caller has less patience than an attempt takes
                    self._leader = ""
                    raise
                else:
                    if isinstance(reply, kind):
                        return reply, _now() - sent_at
                    reason = f"the leader answered {type(reply).__name__}, not {kind.__name__}"
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        raise MetadataUnavailable(f"the leader gave no answer in {timeout_s:g} s: {reason}")

    async def _attempt(self, request: LeaderRequest) -> object:
        if not self._leader:
            with translated(ATTEMPT_S):
                found = await leader(self._store)
            if found is None:
                raise NotLeader
            self._leader = found.bookie_id
        connection = self._bookies.connections[self._leader]
        return await connection.call(request, timeout_s=ATTEMPT_S)


def _now() -> float:
    return trio.current_time() + asleep_s()  # trio's clock stops while the host sleeps


def _check_known(failure: Exception, request: LeaderRequest) -> None:
    """Raise MetadataBroken if the leader and this client do not know each other's messages."""
    if isinstance(failure, BookieUnavailable) and isinstance(failure.__cause__, BadRecord):
        raise MetadataBroken(
            f"bookie {failure.bookie_id}, which leads, does not know "
            f"{type(request).__name__}: update the cluster's bookies, or this client"
        ) from failure
