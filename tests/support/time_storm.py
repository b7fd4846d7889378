"""A storm over a topic with timestamps: leaders are hit, and clocks are set by an hour.

It is the storm over a topic (topic_storm.py) without purges, with readers by timestamp and takers
of timestamps. Every bookie has a wall clock of its own, and so has one of the producers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import trio
from fleet import SETTINGS, Fleet
from history import History, HistoryFile
from time_witness import TickWitness, TimedAudience, TimeTaker, hold
from topic_crew import TOPIC, Crew
from topic_storm import PRODUCERS, TopicStorm
from wall_clocks import WallClocks

import ledger_client
from ledger_client import Client
from metadata.listings import leader
from metadata.topics import RollPolicy

WORKER = Path(__file__).with_name("time_worker.py")
ROLL = RollPolicy(size=300_000, entries=60)
MESSAGES_PER_S = 150
FOLLOWERS = ("follower-a", "follower-b")
TAKERS = ("taker-a", "taker-b")
A_DAY_AHEAD = "others"
"""the producer whose clock is 24 hours ahead"""
ON_S = 10.0
BUSY_S = 10.0
"""More, on a busy machine."""
HOUR = timedelta(hours=1)


class TimeFleet(Fleet):
    """Bookies with a wall clock each."""

    def __init__(self, folder: Path, count: int, clocks: WallClocks) -> None:
        self.clocks = clocks
        super().__init__(folder, count, SETTINGS)

    def start(self, number: int) -> None:
        self.environment: Mapping[str, str] | None = self.clocks.environment(self.name(number))
        super().start(number)


class TimeCrew(Crew):
    """Workers on one topic with timestamps."""

    def __init__(self, fleet: Fleet, folder: Path, clocks: WallClocks, *, partitions: int) -> None:
        self._clocks = clocks
        super().__init__(fleet, folder, partitions=partitions, prefix=self._clock_of)

    def _clock_of(self, name: str) -> Sequence[str]:
        return self._clocks.prefix(name) if name == A_DAY_AHEAD else ()

    async def _make(self, partitions: int) -> None:
        async with ledger_client.connect(self._fleet.metadata) as client:
            await client.topics.create(
                TOPIC, partitions, replication=2, ack_quorum=2, roll=ROLL, timesync=True
            )

    def script(self, role: str) -> Path:
        return super().script(role) if role == "produce" else WORKER

    async def _audit(self, history: HistoryFile) -> None:
        async with ledger_client.connect(self._fleet.metadata) as client:
            with trio.fail_after(ON_S + BUSY_S):
                await see_a_tick(history, client)
        await super()._audit(history)
        async with ledger_client.connect(self._fleet.metadata) as client:
            for arrow in (False, True):
                audience = TimedAudience(history, TOPIC, f"replay, as batches: {arrow}")
                audience.begun(follows=False)
                await audience.read(client, follow=False, arrow=arrow, size=1 << 20)
            await hold(history, client, TOPIC)


async def see_a_tick(history: HistoryFile, client: Client) -> None:
    """Return once there is a tick later than now."""
    record, _ = await client._context.catalogue.get(TOPIC)
    while True:
        try:
            after = await TimeTaker(history, "auditor").take(client)
            await TickWitness(history, client, record, "auditor").see_newest(after)
        except ledger_client.MetadataUnavailable:
            await trio.sleep(0.1)
        else:
            return


class TimeStorm(TopicStorm):
    """Hits leaders and clocks, too."""

    def __init__(self, fleet: TimeFleet, crew: Crew, *, seed: int, seconds: float) -> None:
        super().__init__(fleet, crew, seed=seed, seconds=seconds)
        self._clocks = fleet.clocks

    def run(self) -> History:
        """Storm, heal, audit, and return what everybody saw."""
        self._clocks.set(A_DAY_AHEAD, 24 * HOUR)
        for name in PRODUCERS:
            self._produce(name, int(self._seconds * MESSAGES_PER_S))
        for name in FOLLOWERS:
            self._crew.start("follow", name)
        for name in TAKERS:
            self._crew.start("take", name)
        self._storm()
        self._calm()
        return self._crew.finish()

    def _has_all_happened(self) -> bool:
        took = ("TimeTaken", "TickSeen")
        return self._crew.has_told("follower-*", "TimedRead") and all(
            self._crew.has_told("taker-*", event) for event in took
        )

    def _strike(self) -> None:
        self._later(self._chance.expovariate(1.5), self._strike)
        strikes = [self._kill_leader] * 2 + [self._pause_leader] * 2 + [self._set_a_clock] * 3
        strikes += [self._kill_bookie, self._pause_bookie]
        strikes += [self._kill_producer] * 2 + [self._pause_producer] * 2
        strikes += [partial(self._kill_worker, (*FOLLOWERS[1:], *TAKERS))]
        self._chance.choice(strikes)()

    def _leader(self) -> int | None:
        async def look() -> int | None:
            async with ledger_client.connect(self._fleet.metadata) as client:
                found = await leader(client._context.store)
            return None if found is None else self._fleet.number(found.bookie_id)

        return trio.run(look)

    def _kill_leader(self) -> None:
        if (number := self._leader()) is not None:
            self.counts["leaders killed"] += 1
            self._kill(number)

    def _pause_leader(self) -> None:
        number = self._leader()
        if number is not None and number not in self._hit:
            self._fleet.pause(number)
            self._come_back("leaders paused", number, lambda: self._fleet.resume(number))

    def _set_a_clock(self) -> None:
        name = self._fleet.name(self._chance.choice(self._fleet.numbers))
        self._clocks.set(name, self._chance.choice([-HOUR, 0 * HOUR, HOUR]))
        self.counts["clocks set"] += 1

    def _kill_worker(self, names: Sequence[str]) -> None:
        self._crew.restart(self._chance.choice(names))
        self.counts["readers and takers killed"] += 1
