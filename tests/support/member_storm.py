"""Random trouble for a group on bookies in memory: members, leaders and the store come and go."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import trio
from memory_cluster import MemoryCluster

STORM_S = 120.0


class MemberStorm(ABC):
    """Trouble drawn from a seed. What is sent and how it is consumed is the test's."""

    MEMBERS = 3
    """so many consume at a time"""

    def __init__(self, cluster: MemoryCluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.is_over = False
        self.living: list[trio.CancelScope] = []
        self.leading = cluster.lead("b1")

    async def run(self, nursery: trio.Nursery) -> None:
        troubles: list[Callable[[], Awaitable[None]]] = [
            self.send,
            self.send,
            self.end_one,
            self.change_leader,
            self.lose_store,
        ]
        end = trio.current_time() + STORM_S
        while trio.current_time() < end:
            if len(self.living) < self.MEMBERS:
                nursery.start_soon(self.consume, self.chance.random() < 0.5)
            await self.chance.choice(troubles)()
            await trio.sleep(self.chance.uniform(0.1, 4))
        self.is_over = True

    @abstractmethod
    async def send(self) -> None:
        """Send some messages."""

    @abstractmethod
    async def consume(self, leaves: bool) -> None:
        """Consume until cancelled; without *leaves*, fall silent as a killed process does."""

    async def end_one(self) -> None:
        if self.living:
            self.chance.choice(self.living).cancel()

    async def change_leader(self) -> None:
        self.leading.cancel()
        await trio.sleep(self.chance.uniform(0, 5))
        self.leading = self.cluster.lead(self.chance.choice(["b1", "b2", "b3"]))

    async def lose_store(self) -> None:
        self.cluster.store.available = False
        await trio.sleep(self.chance.uniform(0, 3))
        self.cluster.store.available = True
