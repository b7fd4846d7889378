"""A storm over a group: its consumers, its leader and all bookies are hit while messages come.

    rounds of: SIGKILL, SIGSTOP, SIGCONT, start again ─► all back ─► calm, lags are looked at
    then: producers finish ─► the group has everything ─► audit ─► one merged history

A consumer that is paused for longer than its session loses its partitions, and comes back believing
that it has them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet import Fleet
from group_crew import GROUP, GroupCrew
from group_events import Struck
from history import History, HistoryFile
from storm import Action
from topic_storm import PRODUCERS, TopicStorm

STORM_S = 16.0
CALM_S = 14.0
"""Longer than a ready member may lag."""
MESSAGES_PER_S = 30
SHORT_S = 8.0
"""Of a storm with one round and no calm."""
REST_S = 0.8
CONSUMERS = {
    "ann": ("poll",),
    "bob": ("iterate",),
    "cat": ("iterate", "cat"),
    "dan": ("poll",),
}


class GroupStorm(TopicStorm):
    """Hits the *fleet*'s bookies and the *crew*, in rounds, for *seconds* in all."""

    consumers: Mapping[str, Sequence[str]] = CONSUMERS
    """the words of each"""
    messages_per_s = MESSAGES_PER_S
    """of each producer"""

    def __init__(
        self,
        fleet: Fleet,
        crew: GroupCrew,
        *,
        seed: int,
        seconds: float,
        storm_s: float = STORM_S,
        calm_s: float = CALM_S,
    ) -> None:
        """*storm_s*, *calm_s*: of each round."""
        super().__init__(fleet, crew, seed=seed, seconds=storm_s)
        self._groups = crew
        self._all_s = seconds
        self._calm_s = calm_s

    def run(self) -> History:
        for name in PRODUCERS:
            self.send(name, int(self._all_s * self.messages_per_s))
        for name in self.consumers:
            self._consume(name)
        self._groups.watch()
        end = time.monotonic() + self._all_s
        while time.monotonic() < end:
            self._storm()
            self._calm()
            self._due.clear()
            self._hit.clear()
            self._groups.note_calm(is_calm=True)
            time.sleep(self._calm_s)
            self._groups.note_calm(is_calm=False)
        self._groups.wait_until_sent()
        self._groups.note_calm(is_calm=True)
        self._groups.settle()
        return self._groups.finish()

    def send(self, name: str, messages: int) -> None:
        """Have a producer send so many, at its leisure."""
        self._crew.start("produce", name, str(messages), "shared", str(REST_S))
        self.messages += messages

    def _consume(self, name: str) -> None:
        self._groups.start("consume", name, GROUP, *self.consumers[name])

    def _has_all_happened(self) -> bool:
        """Somebody consumed, in the first round; what else shall happen the crew waits for."""
        return any(self._crew.has_told(f"{name}-*", "Delivered") for name in self.consumers)

    def _strike(self) -> None:
        self._later(self._chance.expovariate(1.5), self._strike)
        strikes = [self._kill_bookie, self._pause_bookie, self._kill_all_bookies]
        strikes += [self._kill_leader] * 2 + [self._pause_leader] * 2
        strikes += [self._kill_consumer] * 3 + [self._pause_consumer] * 4
        strikes += [self._kill_producer]
        self._chance.choice(strikes)()

    def _kill_consumer(self) -> None:
        name = self._chance.choice(sorted(self.consumers))
        if name not in self._hit:
            self._crew.kill(name)
            self._come_back("consumers killed", name, lambda: self._consume(name))

    def _pause_consumer(self) -> None:
        name = self._chance.choice(sorted(self.consumers))
        if name not in self._hit:
            self._crew.pause(name)
            self._come_back("consumers paused", name, lambda: self._crew.resume(name))

    def _kill_leader(self) -> None:
        number = self._leader()
        if number is not None:
            self.counts["leaders killed"] += 1
            self._kill(number)

    def _pause_leader(self) -> None:
        number = self._leader()
        if number is not None:
            self._fleet.pause(number)
            self._come_back("leaders paused", number, lambda: self._fleet.resume(number))

    def _leader(self) -> int | None:
        """Return the bookie that leads, unless it is hit already."""
        name = self._groups.leader()
        number = self._fleet.number(name) if name else None
        return None if number in self._hit else number


class SharedStorm(GroupStorm):
    """A storm over a group in *mode*; who was hit is told, too."""

    messages_per_s = 10  # each key waits for the messages that are refused
    _struck = frozenset({"consumers killed", "consumers paused"})

    def __init__(
        self, fleet: Fleet, crew: GroupCrew, folder: Path, *, mode: str, seed: int, seconds: float
    ) -> None:
        """*folder*: of histories."""
        storm_s, calm_s = (SHORT_S, 0.0) if seconds < STORM_S else (STORM_S, CALM_S)
        super().__init__(fleet, crew, seed=seed, seconds=seconds, storm_s=storm_s, calm_s=calm_s)
        self.consumers = {name: (mode, *words[1:]) for name, words in CONSUMERS.items()}
        self._history = HistoryFile(folder / "strikes.jsonl")

    def _storm(self) -> None:
        super()._storm()
        if not self._struck & set(self.counts):  # so few strikes on a busy machine
            self._kill_consumer()

    def _consume(self, name: str) -> None:
        self._tell(name)
        super()._consume(name)

    def _kill_consumer(self) -> None:
        super()._kill_consumer()
        self._tell_hit()

    def _pause_consumer(self) -> None:
        super()._pause_consumer()
        self._tell_hit()

    def _return(self, who: object, back: Action) -> None:
        super()._return(who, back)
        self._tell(who)

    def _tell_hit(self) -> None:
        for who in self._hit:
            self._tell(who)

    def _tell(self, who: object) -> None:
        if isinstance(who, str):
            self._history.add(Struck(group=GROUP, name=who))
