"""Ends what waits for a connection to ZooKeeper on behalf of somebody who can ask elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import trio

from metadata.store import send_within_s
from metadata.zookeeper.znodes import Connection

LOOK_S = 0.25


class _Waiting:
    """A block that is under way, and when it is to end without a connection."""

    def __init__(self, scope: trio.CancelScope, until: float, is_sent: Callable[[], bool]) -> None:
        self.scope = scope
        self.until = until
        self.is_sent = is_sent


class Patience:
    """Bounds how long calls wait for a connection, as send_within_s says. run() ends them.

    A ZooKeeper that is only slow is waited for: the call is no quicker elsewhere.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[int, _Waiting] = {}
        self._news = trio.Event()

    async def run(self) -> NoReturn:
        """Look from time to time, until cancelled, while somebody waits."""
        while True:
            if not self._waiting:
                self._news = trio.Event()
                await self._news.wait()
            await trio.sleep(LOOK_S)
            if not self._connection.is_connected:
                now = trio.current_time()
                for each in self._waiting.values():
                    if each.until <= now and not each.is_sent():
                        each.scope.cancel()

    @contextmanager
    def scope(
        self, until: float, is_sent: Callable[[], bool] = lambda: False
    ) -> Iterator[trio.CancelScope]:
        """Cancel the block at *until*, by trio's clock, or without a connection before.

        *is_sent*: says whether it is too late to ask elsewhere.
        """
        limit_s = send_within_s.get()
        with trio.CancelScope(deadline=until) as scope:
            if limit_s == math.inf:
                yield scope
                return
            self._waiting[id(scope)] = _Waiting(scope, trio.current_time() + limit_s, is_sent)
            self._news.set()
            try:
                yield scope
            finally:
                del self._waiting[id(scope)]
