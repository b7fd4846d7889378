"""A storm over a topic: bookies, producers and readers are hit while ledgers roll and go.

    seed ─► what is hit, when, how long ─► SIGKILL, SIGSTOP, SIGCONT, start again
    then: all bookies up ─► producers finish ─► audit ─► one merged history

A producer that is paused for longer than its lease lasts loses its lane to another, and comes
back believing that it has it. Meanwhile somebody purges what is some seconds old. The storm goes
on until something was read and a ledger removed, on a slow machine for longer than it should.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from itertools import count

from fleet import Fleet
from history import History
from storm import Action, pass_time
from topic_crew import Crew

STRIKES_PER_S = 1.5
REST_S = 0.05
MESSAGES_PER_S = 500
PRODUCERS = ("named-a", "named-b", "others", "more")
LATECOMERS = 3


class TopicStorm:
    """Hits the *fleet*'s bookies and the *crew* for *seconds*.

    Afterwards *counts* tells how often what was done, and *messages* how many were sent.
    """

    def __init__(self, fleet: Fleet, crew: Crew, *, seed: int, seconds: float) -> None:
        self._fleet = fleet
        self._crew = crew
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._due: list[tuple[float, int, Action]] = []
        self._turns = count()
        self._hit: set[object] = set()
        self._late = 0
        self.counts: Counter[str] = Counter()
        self.messages = 0

    def run(self) -> History:
        """Storm, heal, audit, and return what everybody saw."""
        for name in PRODUCERS:
            self._produce(name, int(self._seconds * MESSAGES_PER_S))
        for name in ("reader-a", "reader-b"):
            self._crew.start("read", name)
        self._crew.start("purge", "purger")
        self._storm()
        self._calm()
        self._crew.stop("purger")
        return self._crew.finish()

    def _produce(self, name: str, messages: int) -> None:
        self._crew.start("produce", name, str(messages), "shared", str(REST_S))
        self.messages += messages

    def _storm(self) -> None:
        self._later(1.0, self._strike)
        pass_time(self._due, self._seconds, self._has_all_happened)

    def _has_all_happened(self) -> bool:
        return self._crew.has_told("reader-*", "MessagesRead") and self._crew.has_told(
            "purger-*", "RowRemoved"
        )

    def _later(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._turns), action))

    def _strike(self) -> None:
        self._later(self._chance.expovariate(STRIKES_PER_S), self._strike)
        strikes = [self._kill_bookie] * 3 + [self._pause_bookie] * 2 + [self._kill_all_bookies]
        strikes += [self._kill_producer] * 3 + [self._pause_producer] * 3
        strikes += [self._kill_reader, self._join]
        self._chance.choice(strikes)()

    def _kill_bookie(self) -> None:
        self._kill(self._chance.choice(self._fleet.numbers))

    def _kill_all_bookies(self) -> None:
        for number in self._fleet.numbers:
            self._kill(number)

    def _kill(self, number: int) -> None:
        if number not in self._hit:
            self._fleet.kill(number)
            self._come_back("bookies killed", number, lambda: self._fleet.start(number))

    def _pause_bookie(self) -> None:
        number = self._chance.choice(self._fleet.numbers)
        if number not in self._hit:
            self._fleet.pause(number)
            self._come_back("bookies paused", number, lambda: self._fleet.resume(number))

    def _kill_producer(self) -> None:
        name = self._chance.choice(PRODUCERS)
        if name not in self._hit:
            self._crew.restart(name)
            self.counts["producers killed"] += 1

    def _pause_producer(self) -> None:
        name = self._chance.choice(PRODUCERS)
        if name not in self._hit:
            self._crew.pause(name)
            self._come_back("producers paused", name, lambda: self._crew.resume(name))

    def _kill_reader(self) -> None:
        self._crew.restart("reader-b")
        self.counts["readers killed"] += 1

    def _join(self) -> None:
        """Another producer comes, and takes the lane of one that seems to be gone."""
        if self._late < LATECOMERS:
            self._late += 1
            self._produce(f"late-{self._late}", 400)
            self.counts["producers joined"] += 1

    def _come_back(self, what: str, who: object, back: Action) -> None:
        """Undo a hit after a while: often soon, sometimes when others have taken over."""
        self.counts[what] += 1
        self._hit.add(who)
        self._later(self._chance.choice((0.1, 0.5, 2.0, 12.0)), lambda: self._return(who, back))

    def _return(self, who: object, back: Action) -> None:
        self._hit.discard(who)
        back()

    def _calm(self) -> None:
        """Bring everything back; a bookie that nobody killed must have stayed."""
        for _, _, action in self._due:
            if action != self._strike:
                action()
        for number in self._fleet.numbers:
            assert self._fleet.runs(number), self._fleet.log(number)[-4000:]
            self._fleet.wait_until_served(number)
