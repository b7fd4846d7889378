"""Events of the C core, brought into the event loop.

The journal thread writes an eventfd after each sync. Here the loop wakes, polls the engine, and
wakes the tasks that wait:

    journal thread ─► eventfd ─► Events.run ─┬─► on_ready(token)      responses to send
                                             ├─► on_woken(ledger id)  parked reads
                                             ├─► space                feeding may continue
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

from native.engine import Engine, Event


class Wakeup:
    """Wakes the one task that waits; set() before wait() is remembered, once."""

    def __init__(self) -> None:
        self._set = trio.Event()

    def set(self) -> None:
        """Wake the task that waits, or the next one to wait."""
        self._set.set()

    async def wait(self) -> None:
        """Wait for a set() since the last wait returned."""
        await self._set.wait()
        self._set = trio.Event()


class Events:
    """The engine's events, as events and callbacks of the loop.

    Attributes:
        space: set when a half is next given back. Take it before feeding, wait on it after.
        sealed: set when a half of the memtable is sealed.
        on_ready: called with the token of a connection that has responses.
        on_woken: called with the id of a ledger whose watch came true.
        on_failed: called when the journal failed, before run() raises; may raise instead.
    """

    def __init__(self, engine: Engine, fd: int) -> None:
        self._engine = engine
        self._fd = fd
        self.space = trio.Event()
        self._tickets: list[tuple[int, int, trio.Event]] = []
        self._order = itertools.count()
        self.sealed = Wakeup()
        self.on_ready: Callable[[int], None] = _nobody
        self.on_woken: Callable[[int], None] = _nobody
        self.on_failed: Callable[[OSError], None] = _nobody

    async def synced(self, ticket: int) -> None:
        """Wait until everything up to *ticket* is durable."""
        if self._engine.synced() >= ticket:
            return
        durable = trio.Event()
        heapq.heappush(self._tickets, (ticket, next(self._order), durable))
        self._engine.notify(self._tickets[0][0])
        await durable.wait()

    async def run(self) -> NoReturn:
        """Publish events until cancelled.

        Raises:
            OSError: the journal failed; nothing will be acknowledged any more.
        """
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            os.eventfd_read(self._fd)
            try:
                self._publish(self._engine.poll())
            except OSError as cause:
                self.on_failed(cause)
                raise

    def _publish(self, events: Event) -> None:
        if events & Event.READY:
            for token in self._engine.ready():
                self.on_ready(token)
        if events & Event.FLUSH:
            self.sealed.set()
        if events & Event.SPACE:
            self.space.set()
            self.space = trio.Event()
        if events & Event.WOKEN:
            for ledger_id in self._engine.woken():
                self.on_woken(ledger_id)
        if events & Event.SYNCED:
            self._publish_synced()

    def _publish_synced(self) -> None:
        synced = self._engine.synced()
        while self._tickets and self._tickets[0][0] <= synced:
            heapq.heappop(self._tickets)[2].set()
        if self._tickets:
            self._engine.notify(self._tickets[0][0])


def _nobody(_: object) -> None:
    """Do nothing: no callback was set."""
