"""Did a shared group keep its promises? Dead letters, and the order and the owner of keys.

25  Dead letters are the messages that were refused each time, and those whose members were lost.
26  Two members that live never have messages of one key in hand, and a key's come in order.

Rules of 26 leave out what happened around the moment at which a member was killed or paused, or
was removed: the one that comes back believes that it has its slots. They leave out, too, what
happened when the coordinator moved slots whose member did not give them up in time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from group_events import (
    DeadLetter,
    Delivered,
    Done,
    GroupHappening,
    GroupSettled,
    MemberRemoved,
    MemberStored,
    Opened,
    PutOff,
    Spot,
    Struck,
)

from ledger_client.message_id import MessageId

BEFORE_S = 8.0
"""So long after a member was hit, it may have messages that others have, too."""
FORCED_S = 3.0
"""A member that has not given up slots for so long may not be waited for."""
AFTER_S = 3.0
"""So late may it be seen that a member was removed."""
FORGOTTEN_S = 20.0
"""So long after a move by force, what the former member left may be found."""
LOST_S = 20.0
"""So long before and after the deliveries of a message, losses of members may be counted.

Those that its first delivery tells of may be older: it waited for that with members that were lost.
"""

Ident = tuple[str, MessageId]
"""Topic and id of a message."""
Key = tuple[str, int, int]
"""Topic, partition, and mark of a key."""


class Hand(NamedTuple):
    """A member with messages in hand."""

    session: str
    member: str

    @property
    def process(self) -> str:
        """The name of the process: a session's is NAME-RUN #NUMBER."""
        return self.session.rpartition("-")[0]


class SharedFacts:
    """The events of one group, and where in its lane each message is."""

    def __init__(self, events: list[GroupHappening], spots: Mapping[Ident, Spot]) -> None:
        self.events = events
        self.spots = spots
        self.delivered: defaultdict[Ident, list[Delivered]] = defaultdict(list)
        self.dead: dict[Ident, DeadLetter] = {}
        self.always: set[Ident] = set()
        """messages that are refused each time"""
        self.done: set[Ident] = set()
        self.limit = 0
        self.hits, self.forced = hits_of(events)
        for event in events:
            if isinstance(event, Delivered):
                for each in event.ids:
                    self.delivered[event.topic, each].append(event)
            elif isinstance(event, DeadLetter):
                self.dead[event.topic, event.id] = event
            elif isinstance(event, PutOff) and event.always:
                self.always |= {(event.topic, each) for each in event.ids}
            elif isinstance(event, Done):
                self.done |= {(event.topic, each) for each in event.ids}
            elif isinstance(event, Opened):
                self.limit = event.deliveries_max

    def was_hit(self, hand: Hand, at: float) -> bool:
        """True if something befell the member around this time."""
        if any(at - FORGOTTEN_S <= when <= at + AFTER_S for when in self.forced):
            return True
        return any(
            name in (hand.process, hand.member) and at - BEFORE_S <= when <= at + AFTER_S
            for when, name in self.hits
        )


def hits_of(events: list[GroupHappening]) -> tuple[list[tuple[float, str]], list[float]]:
    """Return when something befell a process or a member, and when slots were moved by force."""
    hits: list[tuple[float, str]] = []
    forced: list[float] = []
    asked: dict[str, float] = {}
    for event in events:
        if isinstance(event, Struck):
            hits.append((event.at, event.name))
        elif isinstance(event, MemberRemoved):
            hits.append((event.at, event.member))
        elif isinstance(event, MemberStored) and event.revoked:
            asked.setdefault(event.member, event.at)
        elif isinstance(event, MemberStored):
            is_late = event.at - asked.pop(event.member, event.at) > FORCED_S
            forced += [event.at] * is_late
    return hits, forced


# --- 25: dead letters ---------------------------------------------------------------------


def _not_buried(facts: SharedFacts) -> Iterator[str]:
    """In the end, what was refused each time is a dead letter."""
    if any(isinstance(event, GroupSettled) for event in facts.events) and facts.limit:
        for topic, each in sorted(facts.always - facts.dead.keys()):
            yield f"{each} of {topic} was refused each time, and is no dead letter"


def _buried_alive(facts: SharedFacts) -> Iterator[str]:
    """Each dead letter was delivered as often as may be, losses of members counted."""
    for (topic, each), letter in sorted(facts.dead.items()):
        if letter.deliveries != facts.limit:
            yield f"{each} of {topic} is a dead letter after {letter.deliveries} deliveries"
        events = facts.delivered[topic, each]
        begin, end = (events[0].at, events[-1].at) if events else (0.0, 0.0)
        lost = sum(begin - LOST_S <= at <= end + LOST_S for at, _ in facts.hits)
        lost += min(_counted_before(events, each), sum(at < begin - LOST_S for at, _ in facts.hits))
        if not events or len(events) + lost < facts.limit:
            yield f"{each} of {topic} is a dead letter, and was delivered {len(events)} times"


def _counted_before(events: list[Delivered], message: MessageId) -> int:
    """Return how many deliveries the first member that got a message was told of.

    Each was one of a member that was lost, and may have been any time since the message was sent.
    """
    if not events or not events[0].counts:
        return 0
    return events[0].counts[events[0].ids.index(message)] - 1


def _delivered_too_often(facts: SharedFacts) -> Iterator[str]:
    for (topic, each), events in sorted(facts.delivered.items()):
        if facts.limit and len(events) > facts.limit:
            yield f"{each} of {topic} was delivered {len(events)} times, of {facts.limit}"


# --- 26: keys -----------------------------------------------------------------------------


class Hands:
    """Which members have messages of which keys in hand."""

    def __init__(self) -> None:
        self._held: defaultdict[Key, defaultdict[Hand, set[MessageId]]]
        self._held = defaultdict(lambda: defaultdict(set))
        self._keys: dict[Ident, Key] = {}

    def take(self, hand: Hand, event: Delivered) -> Iterator[tuple[MessageId, Hand, MessageId]]:
        """Yield each message with another hand that has one of its key, and which one."""
        for each, mark in zip(event.ids, event.keys, strict=False):
            key = self._keys[event.topic, each] = (event.topic, each.partition, mark)
            for other, held in self._held[key].items():
                if held and other.session != hand.session:
                    yield each, other, min(held)
            self._held[key][hand].add(each)

    def drop(self, event: Done | PutOff) -> None:
        """Have messages in hand no longer."""
        for each in event.ids:
            key = self._keys.get((event.topic, each))
            for hand, held in self._held[key].items() if key is not None else ():
                if hand.session == event.session:
                    held.discard(each)

    def drop_all(self, process: str) -> None:
        """Have nothing in the hands of a process."""
        for of_key in self._held.values():
            for hand in [each for each in of_key if each.process == process]:
                del of_key[hand]


def _key_in_two_hands(facts: SharedFacts) -> Iterator[str]:
    hands = Hands()
    for event in facts.events:
        if isinstance(event, Delivered):
            mine = Hand(event.session, event.member)
            for each, other, theirs in hands.take(mine, event):
                if not facts.was_hit(mine, event.at) and not facts.was_hit(other, event.at):
                    yield f"{mine} got {each}, while {other} had {theirs} of the same key"
        elif isinstance(event, Done | PutOff):
            hands.drop(event)
        elif isinstance(event, Struck):
            hands.drop_all(event.name)


def _key_out_of_order(facts: SharedFacts) -> Iterator[str]:
    """Messages of a key are delivered for the first time in the order of their lane."""
    last: dict[tuple[Key, int], tuple[Spot, Hand]] = {}
    seen: set[Ident] = set()
    for event in facts.events:
        if not isinstance(event, Delivered):
            continue
        mine = Hand(event.session, event.member)
        for each, mark, lane in zip(event.ids, event.keys, event.lanes, strict=False):
            spot = facts.spots.get((event.topic, each))
            if spot is None or (event.topic, each) in seen:
                continue
            seen.add((event.topic, each))
            where = (event.topic, each.partition, mark), lane
            before, other = last.get(where, ((-1, 0, 0), mine))
            if spot >= before:
                last[where] = spot, mine
            elif not facts.was_hit(mine, event.at) and not facts.was_hit(other, event.at):
                yield f"{mine} got {each} for the first time after {before}, which {other} got"


SHARED_PROMISES: list[tuple[int, Callable[[SharedFacts], Iterator[str]]]] = [
    (25, _not_buried),
    (25, _buried_alive),
    (25, _delivered_too_often),
    (26, _key_in_two_hands),
    (26, _key_out_of_order),
]


def counted(facts: SharedFacts) -> Counter[str]:
    """Return how often what happened, for people."""
    found = Counter(type(event).__name__ for event in facts.events)
    found["redelivered"] = sum(len(events) - 1 for events in facts.delivered.values())
    found["buried though not refused each time"] = len(facts.dead.keys() - facts.always)
    return found
