"""Readers by timestamp and takers of timestamps in a simulation, session by session."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from history import History
from message_events import MessagesAcknowledged, MessagesSent, is_nowhere
from time_plan import Reading, Taking
from time_witness import TickWitness, TimedAudience, TimeTaker

from ledger_client import Client
from ledger_client.errors import LedgerError

if TYPE_CHECKING:
    from client_host import ClientHost

PAUSE_S_MAX = 0.5
TICK_S_MAX = 3.0
"""A taker waits for the newest tick so long at most."""


class Follower:
    """One reader of the plan, in whatever process it goes on."""

    def __init__(self, topic: str, reading: Reading, seed: int, history: History) -> None:
        self.reading = reading
        self.audience = TimedAudience(history, topic, reading.name)
        self.start: int | None = None
        """the timestamp from which on it reads, None until it has begun"""
        self._history = history
        self._sent_before: set[int] = set()
        """marks of messages that were sent before it began, of one that reads from then on"""
        self._session_s = reading.session_s
        self._taker = TimeTaker(history, f"{reading.name} start")
        self._chance = random.Random(f"{reading.name} {seed}")

    def stay(self) -> None:
        """Read on without end from now on, and begin no session anew."""
        self._session_s = math.inf

    def begin(self, start: int) -> None:
        """Read from the timestamp *start* on, 0 for the beginning. No later message is before."""
        self.audience.begun(start=start, follows=True)
        self.start = start
        for event in self._history.events if start else ():
            if isinstance(event, MessagesSent):
                self._sent_before |= {message.mark for message in event.messages}

    def misses_some(self) -> bool:
        """True if it has not got all acknowledged messages that it must get."""
        return self.start is None or any(
            mark not in self._sent_before and each not in self.audience.got and not is_nowhere(each)
            for event in self._history.events
            if isinstance(event, MessagesAcknowledged)
            for mark, each in zip(event.marks, event.ids, strict=True)
        )

    async def run(self, client: Client) -> None:
        """Read, in one session after the other, until cancelled."""
        reading = self.reading
        await trio.sleep_until(reading.start_s)
        while True:
            try:
                if self.start is None:
                    start = await self._taker.take(client) if reading.from_now else 0
                    self.begin(start)
                with trio.move_on_after(self._session_s):
                    await self.audience.read(
                        client, follow=True, arrow=reading.arrow, size=reading.size
                    )
            except LedgerError:
                pass
            await trio.sleep(PAUSE_S_MAX * self._chance.random())


class Taker:
    """One taker of timestamps of the plan; it looks at ticks, too."""

    def __init__(self, topic: str, taking: Taking, seed: int, history: History) -> None:
        self.taking = taking
        self._topic = topic
        self._history = history
        self._sessions = 0
        self._chance = random.Random(f"{taking.name} {seed}")

    async def run(self, host: ClientHost, client: Client) -> None:
        """Take timestamps, and see ticks, until cancelled."""
        self._sessions += 1
        who = f"{self.taking.name} #{self._sessions} on {host.machine.name}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take, client, who)
            if self.taking.sees_ticks:
                nursery.start_soon(self._see_stored_ticks, client, who)
                nursery.start_soon(self._see_newest_ticks, client, who)

    async def _take(self, client: Client, who: str) -> None:
        number = 0
        while True:
            number += 1
            taker = TimeTaker(self._history, f"{who}/{number}")
            try:
                await taker.take(client, self._chance.randint(1, self.taking.count_max))
            except LedgerError:
                await trio.sleep(PAUSE_S_MAX * self._chance.random())
            await trio.sleep(self.taking.think_s_max * self._chance.random())

    async def _witness(self, client: Client, who: str) -> TickWitness:
        while True:
            try:
                record, _ = await client._context.catalogue.get(self._topic)
            except LedgerError:
                await trio.sleep(PAUSE_S_MAX)
            else:
                return TickWitness(self._history, client, record, who)

    async def _see_stored_ticks(self, client: Client, who: str) -> None:
        witness = await self._witness(client, f"{who}, stored")
        await self._repeat(witness.see_stored)

    async def _see_newest_ticks(self, client: Client, who: str) -> None:
        witness = await self._witness(client, f"{who}, newest")

        async def see() -> None:
            with trio.move_on_after(TICK_S_MAX):
                await witness.see_newest()
            await trio.sleep(PAUSE_S_MAX * self._chance.random())

        await self._repeat(see)

    async def _repeat(self, see: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await see()
            except LedgerError:
                await trio.sleep(PAUSE_S_MAX * self._chance.random())
