"""Connections of strangers: they ask and read no answer, begin a frame and never end it.

They are no client of the cluster. All that a bookie may do with them is to bound what they
cost, and to serve the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio
from machines import MACHINE, Machine
from network import Network
from wire import be, framed, header

ASKED = 30
"""Reads that one connection asks for."""
_READ_SIZE = 5 << 20


class Strangers:
    """A machine with many connections."""

    def __init__(self, network: Network, chance: random.Random) -> None:
        self.machine = Machine("stranger", chance)
        self.machine.alive = True
        self._network = network

    async def besiege(self, bookie: str, count: int, ledgers: Sequence[int]) -> None:
        """Hold so many connections to a bookie until cancelled; some ask for *ledgers*."""
        MACHINE.set(self.machine)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self._hold, bookie, self._words(ledgers))

    def _words(self, ledgers: Sequence[int]) -> bytes:
        chance = self.machine.chance
        way = chance.choice(["silent", "half a frame", "reads", "reads"])
        if way == "silent" or not ledgers:
            return b""
        if way == "half a frame":
            return be(_READ_SIZE, 4) + header(1)
        return b"".join(
            framed(
                header(7) + be(chance.choice(ledgers)) + be(0) + be(9) + be(100, 4) + be(_READ_SIZE)
            )
            for _ in range(ASKED)
        )

    async def _hold(self, bookie: str, words: bytes) -> None:
        while True:
            try:
                async with await self._network.open_stream(bookie, 1) as stream:
                    await stream.send_all(words)
                    await trio.sleep(5.0 * self.machine.chance.random() + 1.0)
            except (OSError, trio.BrokenResourceError):
                await trio.sleep(0.5)
