"""Stores over an ensemble in memory, whose connections a test breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from memory_zookeeper import Loss, MemoryConnection, MemoryEnsemble

from metadata.zookeeper import paths
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.store import ZooKeeperStore, serving
from metadata.zookeeper.znodes import Op


class Sponsor:
    """A store, and the connection that a test may break."""

    def __init__(self, store: ZooKeeperStore, connection: MemoryConnection) -> None:
        self.store = store
        self.connection = connection


@asynccontextmanager
async def opened(ensemble: MemoryEnsemble) -> AsyncGenerator[Sponsor]:
    """Open a store of its own connection."""
    connection = MemoryConnection(ensemble)
    raised = RaisedConnection(connection)
    store = ZooKeeperStore(raised, await find_cluster(raised, create=True))
    async with serving(store):
        yield Sponsor(store, connection)


def losing(connection: MemoryConnection, *losses: Loss, of: str = paths.KEYS) -> None:
    """Break the connection at the next multis: first one that touches *of*, then all that follow.

    Each time it connects again at once.
    """
    waiting = [*losses]

    def lose(ops: Sequence[Op]) -> Loss | None:
        is_first = len(waiting) == len(losses)
        if not waiting or (is_first and not any(op.path.startswith(of) for op in ops)):
            return None
        reconnect_soon(connection)
        return waiting.pop(0)

    connection.before_multi = lose


def reconnect_soon(connection: MemoryConnection) -> None:
    """Connect again in the next turn of the loop."""
    token = trio.lowlevel.current_trio_token()
    token.run_sync_soon(connection.connect)


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that does *work* when it is called first, and nothing later."""
    left = [work]

    def run() -> None:
        if left:
            left.pop()()

    return run
