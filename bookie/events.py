"""News of the C core, brought into the event loop.

The journal thread writes an eventfd after each sync. Here the loop wakes, asks the
engine what there is, and tells those who wait:

    journal thread ─► eventfd ─► Events.run ─┬─► on_ready(token)      responses to send
                                             ├─► on_woken(ledger id)  parked reads
                                             ├─► space                feeding may go on
                                             ├─► sealed               a half to flush
                                             └─► synced(ticket)       fences
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable
from typing import NoReturn

import trio

from bookie.bell import Bell
from native.engine import Engine, Event


class Events:
    """What the engine reports, as events of the loop.

    Attributes:
        sealed: rings when a half of the memtable is sealed.
        on_ready: called with the token of a connection that has responses.
        on_woken: called with the id of a ledger whose watch came true.
    """

    def __init__(self, engine: Engine, fd: int) -> None:
        self._engine = engine
        self._fd = fd
        self._space = trio.Event()
        self._tickets: list[tuple[int, int, trio.Event]] = []
        self._order = itertools.count()
        self.sealed = Bell()
        self.on_ready: Callable[[int], None] = _nobody
        self.on_woken: Callable[[int], None] = _nobody

    @property
    def space(self) -> trio.Event:
        """Set when a half is next given back. Take it before feeding, wait on it after."""
        return self._space

    async def synced(self, ticket: int) -> None:
        """Wait until everything up to *ticket* is durable."""
        if self._engine.synced() >= ticket:
            return
        durable = trio.Event()
        heapq.heappush(self._tickets, (ticket, next(self._order), durable))
        self._engine.notify(self._tickets[0][0])
        await durable.wait()

    async def run(self) -> NoReturn:
        """Tell news until cancelled.

        Raises:
            OSError: the journal failed; nothing will be acknowledged any more.
        """
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            os.eventfd_read(self._fd)
            self._tell(self._engine.poll())

    def _tell(self, events: Event) -> None:
        if events & Event.READY:
            for token in self._engine.ready():
                self.on_ready(token)
        if events & Event.FLUSH:
            self.sealed.ring()
        if events & Event.SPACE:
            self._space.set()
            self._space = trio.Event()
        if events & Event.WOKEN:
            for ledger_id in self._engine.woken():
                self.on_woken(ledger_id)
        if events & Event.SYNCED:
            self._tell_synced()

    def _tell_synced(self) -> None:
        synced = self._engine.synced()
        while self._tickets and self._tickets[0][0] <= synced:
            heapq.heappop(self._tickets)[2].set()
        if self._tickets:
            self._engine.notify(self._tickets[0][0])


def _nobody(_: int) -> None:
    """Nobody listens yet."""
