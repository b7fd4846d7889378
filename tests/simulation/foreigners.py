"""Clients of another kind: they declare no ledger, and pick their ids themselves.

    in front of the counter   with the key that our ledgers without a password have
    around the counter        with another key
    from FREE_FROM up         where they may create ledgers

They add, fence and read. Who has the key of a ledger that is there may write to it, as in
BookKeeper; so with our key they keep away from ids that are issued already.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import trio
import v2
from machines import MACHINE, Machine
from network import Network

from bookie.foreign import FREE_FROM

AHEAD = (4, 12)
NEAR = (-2, 3)
FREE_COUNT = 5
ENTRIES_MAX = 3
ANSWER_S = 3.0
_CODE_END = 12


class Attempt(NamedTuple):
    """A frame of a foreign client. *what*: add, fence or read."""

    ledger: int
    what: str
    key: bytes

    @property
    def is_keyed(self) -> bool:
        """True if it has the key that our ledgers without a password have."""
        return self.key == v2.KEY


class Foreigners:
    """A machine with such clients.

    *next_id*: returns the id that is issued next. *on_sent*, *on_answer*: called before an attempt
    is made, and with the code of its answer.
    """

    def __init__(
        self,
        network: Network,
        chance: random.Random,
        *,
        next_id: Callable[[], int],
        on_sent: Callable[[Attempt], None],
        on_answer: Callable[[Attempt, int], None],
    ) -> None:
        self.machine = Machine("foreigner", chance)
        self.machine.alive = True
        self._network = network
        self._next_id = next_id
        self._on_sent = on_sent
        self._on_answer = on_answer

    async def meddle(self, bookie: str) -> None:
        """Make one attempt after the other at a bookie, until cancelled."""
        MACHINE.set(self.machine)
        while True:
            try:
                async with await self._network.open_stream(bookie, 1) as stream:
                    await self._talk(stream)
            except (OSError, trio.BrokenResourceError, trio.TooSlowError):
                await trio.sleep(0.3)

    async def _talk(self, stream: trio.abc.Stream) -> None:
        chance = self.machine.chance
        while True:
            attempt = self._draw()
            self._on_sent(attempt)
            await stream.send_all(self._frame(attempt))
            with trio.fail_after(ANSWER_S):
                self._on_answer(attempt, await _code(stream))
            await trio.sleep(0.1 * chance.random())

    def _draw(self) -> Attempt:
        chance = self.machine.chance
        what = chance.choice(["add", "add", "fence", "fence", "read"])
        where = chance.random()
        if where < 0.2:
            return Attempt(FREE_FROM + chance.randrange(FREE_COUNT), what, v2.KEY)
        if where < 0.6:
            return Attempt(self._next_id() + chance.randint(*AHEAD), what, v2.KEY)
        ledger = max(self._next_id() + chance.randint(*NEAR), 0)
        return Attempt(ledger, what, v2.OTHER_KEY)

    def _frame(self, attempt: Attempt) -> bytes:
        entry = self.machine.chance.randrange(ENTRIES_MAX)
        if attempt.what == "add":
            return v2.add(attempt.ledger, entry, b"foreign", key=attempt.key)
        fence_key = attempt.key if attempt.what == "fence" else b""
        return v2.read(attempt.ledger, -1 if fence_key else entry, fence_key=fence_key)


async def _code(stream: trio.abc.Stream) -> int:
    """Return the code of the next response, which nothing follows."""
    data = b""
    while len(data) < _CODE_END or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = await stream.receive_some()
        if not more:
            raise trio.BrokenResourceError("closed")
        data += more
    return v2.parse(data).code
