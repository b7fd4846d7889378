"""Did shared groups keep their promises? As group_checker.py, which includes these.

24  What was acknowledged comes to no later session, and soon to no other. No delivery is forgotten
    when they are counted, and each member that is gone adds one at most.
25  Dead letters are exactly the messages that were delivered as often as the group delivers any.
26  In a key-shared group, the messages of a key are with one member at a time, and in order.

A member that was cut off, or stood still, until its time to give up a slot was over may still hand
out what it had. Nothing can keep it from that, and 26 does not forbid it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from event import mark_of
from group_events import (
    Acked,
    Buried,
    Burying,
    Delivered,
    GroupHappening,
    LetGo,
    LetterRead,
    LettersRead,
    MemberLeft,
    MemberRemoved,
    MemberStored,
    Opened,
    PutOff,
    Spot,
)
from group_facts import GroupFacts, Lane, unit

from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId

HANDED_OVER = 0.59
"""Of the time to give up a slot: for so long members wait for the messages in hand."""
NO_KEY = mark_of(b"")
Known = tuple[str, MessageId]
"""A message, by its topic and its id."""


# --- 24: acknowledged one by one -----------------------------------------------------------


def _came_again(facts: GroupFacts) -> Iterator[str]:
    """After an acknowledgement was durable, its session and later ones get the message no more.

    Others may have it in hand, if the acknowledging member had it for too long or gave it up. So
    they get it no more once the time for that is over, counted from the last change of members.
    """
    grace_s = facts.options.ack_s + facts.options.revoke_s if facts.options.revoke_s else inf
    changed_at = -inf
    opened: dict[str, int] = {}
    acked: dict[Known, tuple[int, Acked]] = {}
    for order, event in enumerate(facts.events):
        if isinstance(event, Opened):
            opened[event.session] = order
        elif _passes_on(event):
            changed_at = event.at
        elif isinstance(event, Acked):
            for each in event.ids:
                acked.setdefault((event.topic, each), (order, event))
        elif isinstance(event, Delivered):
            begun = opened.get(event.session, 0)
            for each in event.ids:
                at, ack = acked.get((event.topic, each), (order, None))
                if ack is None:
                    continue
                is_late = event.at > max(ack.at, changed_at) + grace_s
                if at < begun or ack.session == event.session or is_late:
                    yield f"{event.session} got {each}, which had been acknowledged before"


def _passes_on(event: GroupHappening) -> bool:
    """True if what a member has, or a part of it, goes to others."""
    gives_up = isinstance(event, MemberStored) and event.revoked
    return isinstance(event, MemberRemoved | MemberLeft) or bool(gives_up)


class Losses:
    """Counts the runs of members that are over."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: dict[str, str] = {}

    def note(self, event: MemberStored | MemberRemoved) -> bool:
        """Note a change of a row; return True if a run is over by it."""
        before = self._runs.pop(event.member, "")
        if isinstance(event, MemberStored):
            self._runs[event.member] = event.run
        is_over = before not in ("", self._runs.get(event.member))
        self.count += is_over
        return is_over


def _not_counted(facts: GroupFacts) -> Iterator[str]:
    """What members are told is between the deliveries so far, and those with one for each loss."""
    told: Counter[Known] = Counter()
    times: Counter[Known] = Counter()
    losses, limit, is_exact = Losses(), facts.options.deliveries_max, facts.options.revoke_s > 0
    for event in facts.events:
        if isinstance(event, MemberStored | MemberRemoved):
            losses.note(event)
        elif isinstance(event, Delivered):
            for each, count in zip(event.ids, event.counts, strict=False):
                key = (event.topic, each)
                times[key] += 1
                told[key] = max(told[key], count)
                if told[key] < times[key]:
                    yield f"{event.session} got {each}, the {times[key]}th time, told {told[key]}"
                if is_exact and count > times[key] + losses.count:
                    yield (
                        f"{event.session} got {each}, the {times[key]}th time after "
                        f"{losses.count} members were gone, told {count}"
                    )
                if limit and count > limit:
                    yield f"{event.session} got {each}, told {count} of {limit} times at most"


# --- 26: keys --------------------------------------------------------------------------------


class Keyed(NamedTuple):
    """A message with a key."""

    id: MessageId
    slot: TopicPartition
    line: tuple[Lane, int]
    """its lane, and the mark of its key: what must stay in order"""


@dataclass
class Hands:
    """What members have in hand. *over*: messages that need not come again."""

    held: dict[Known, str] = field(default_factory=dict)
    """by message, the member"""
    over: set[Known] = field(default_factory=set)
    seen: set[Known] = field(default_factory=set)

    def take(self, topic: str, message_id: MessageId, member: str) -> None:
        """Note that a member has a message."""
        self.held[topic, message_id] = member
        self.seen.add((topic, message_id))

    def settle(self, event: LetGo | PutOff | Burying) -> None:
        """Note what members have no longer."""
        ids = [event.id] if isinstance(event, Burying) else event.ids
        for each in ids:
            self.held.pop((event.topic, each), None)
            if not isinstance(event, PutOff):
                self.over.add((event.topic, each))

    def forget(self, member: str) -> None:
        """Note that a member has nothing any more."""
        self.held = {known: holder for known, holder in self.held.items() if holder != member}


def _keyed(event: Delivered) -> Iterator[Keyed]:
    for each, lane, key, slot in zip(event.ids, event.lanes, event.keys, event.slots, strict=True):
        if key != NO_KEY:
            part = TopicPartition(event.topic, each.partition)
            yield Keyed(each, unit(part, slot), ((part, lane), key))


class Slots:
    """Who has the slots, by the rows of members, and what they have in hand of them."""

    def __init__(self, facts: GroupFacts) -> None:
        self._facts = facts
        self._hands = Hands()
        self._losses = Losses()
        self._rows: dict[str, MemberStored] = {}
        self._asked: dict[tuple[str, TopicPartition], float] = {}
        """when a member was asked to give up a slot"""
        self._forced: set[TopicPartition] = set()
        """slots that were taken from members, who may have messages of them still"""
        self._slots: dict[Known, TopicPartition] = {}
        self._lines = _lines(facts)
        self._spots = {
            (line[0][0].topic, each): spot
            for line, found in self._lines.items()
            for spot, each in found
        }

    def row(self, event: MemberStored | MemberRemoved) -> Iterator[str]:
        """A slot that a member gives up in time is given up with nothing in hand."""
        before = self._rows.pop(event.member, None)
        if self._losses.note(event) or before is None:
            self._hands.forget(event.member)
        if isinstance(event, MemberRemoved):
            return
        self._rows[event.member] = event
        for slot in event.revoked:
            self._asked.setdefault((event.member, slot), event.at)
        for slot in sorted(set(before.parts if before else ()) - set(event.parts)):
            span_s = event.at - self._asked.pop((event.member, slot), event.at)
            if span_s >= self._facts.options.revoke_s:
                self._forced.add(slot)
            held = [
                known[1]
                for known, holder in self._hands.held.items()
                if holder == event.member and self._slots.get(known) == slot
            ]
            if held and span_s < self._facts.options.revoke_s * HANDED_OVER:
                yield (
                    f"{event.member} gave up slot {slot.partition} after {span_s:.1f} s with "
                    f"{held[0]} in hand"
                )

    def delivered(self, event: Delivered) -> Iterator[str]:
        """Messages come to the member that has their slot, in order."""
        for each in _keyed(event):
            self._slots[event.topic, each.id] = each.slot
            if self._was_given_up(event, each.slot):
                yield (
                    f"{event.session} got {each.id} of slot {each.slot.partition}, which it had "
                    f"given up by epoch {event.epoch}"
                )
            yield from self._out_of_turn(event, each)
            self._hands.take(event.topic, each.id, event.member)

    def settled(self, event: LetGo | PutOff | Burying) -> None:
        """Note what members have no longer."""
        self._hands.settle(event)

    def _was_given_up(self, event: Delivered, slot: TopicPartition) -> bool:
        """Return True if the row that the member has applied has no such slot, nor a later one."""
        row, stored = self._rows.get(event.member), self._facts.stored[event.member]
        if row is None or not 0 < event.epoch <= row.epoch:
            return False
        applied = [
            each
            for each in stored
            if event.epoch <= each.epoch <= row.epoch and each.run == row.run
        ]
        return bool(applied) and all(
            slot not in each.parts or slot in each.revoked for each in applied
        )

    def _out_of_turn(self, event: Delivered, each: Keyed) -> Iterator[str]:
        """A message comes first once those before it are done, or in hand of the same member."""
        known, row = (event.topic, each.id), self._rows.get(event.member)
        if row is None or each.slot not in row.parts or each.slot in self._forced:
            return
        if known in self._hands.seen or known not in self._spots:
            return
        line = self._lines[each.line]
        for _, other in line[: bisect_left(line, (self._spots[known], each.id))]:
            holder = self._hands.held.get((event.topic, other), "")
            if (event.topic, other) not in self._hands.over and holder != event.member:
                who = f"with {holder}" if holder else "to come"
                yield f"{event.session} got {each.id}, and {other} of its key is {who}"
                return


def _keys(facts: GroupFacts) -> Iterator[str]:
    """The messages of a key are with one member at a time, and in order."""
    slots = Slots(facts)
    for event in facts.events if facts.by_key and facts.options.revoke_s else ():
        if isinstance(event, MemberStored | MemberRemoved):
            yield from slots.row(event)
        elif isinstance(event, Delivered):
            yield from slots.delivered(event)
        elif isinstance(event, LetGo | PutOff | Burying):
            slots.settled(event)


def _lines(facts: GroupFacts) -> dict[tuple[Lane, int], list[tuple[Spot, MessageId]]]:
    """Return the acknowledged messages of each key in each lane, in order."""
    found: defaultdict[tuple[Lane, int], set[tuple[Spot, MessageId]]] = defaultdict(set)
    spots = {(lane[0].topic, each.id): each.spot for lane, due in facts.due.items() for each in due}
    for event in facts.events if facts.by_key else ():
        if isinstance(event, Delivered):
            for each in _keyed(event):
                if (spot := spots.get((event.topic, each.id))) is not None:
                    found[each.line].add((spot, each.id))
    return {line: sorted(each) for line, each in found.items()}


# --- 25: dead letters --------------------------------------------------------------------------


def _buried_alive(facts: GroupFacts) -> Iterator[str]:
    """Whoever sends a dead letter has counted all deliveries, of which lost members may add one."""
    times: Counter[Known] = Counter()
    acked: set[Known] = set()
    losses, limit = Losses(), facts.options.deliveries_max
    for event in facts.events:
        if isinstance(event, MemberStored | MemberRemoved):
            losses.note(event)
        elif isinstance(event, Delivered):
            times.update((event.topic, each) for each in event.ids)
        elif isinstance(event, Acked):
            acked.update((event.topic, each) for each in event.ids)
        elif isinstance(event, Burying):
            known = event.topic, event.id
            if known in acked:
                yield f"{event.member} buries {event.id}, which had been acknowledged before"
            if event.deliveries != limit:
                yield f"{event.member} buries {event.id}, told {event.deliveries} of {limit} times"
            if times[known] + losses.count < limit:
                yield (
                    f"{event.member} buries {event.id} after {times[known]} of {limit} deliveries, "
                    f"and {losses.count} members were gone"
                )


def _letters(facts: GroupFacts) -> Iterator[str]:
    """The topic of dead letters has what members sent there, and nothing else."""
    if not any(isinstance(each, LettersRead) for each in facts.events):
        return
    sent = {(e.topic, str(e.id)) for e in facts.events if isinstance(e, Burying)}
    durable = {(e.topic, str(e.id)) for e in facts.events if isinstance(e, Buried)}
    for _, missing in sorted(durable - facts.dead):
        yield f"the dead letter of {missing} is lost"
    for letter in facts.letters:
        if (letter.topic, letter.id) not in sent:
            yield f"nobody sent the dead letter of {letter.id}"
        yield from _wrong_headers(facts, letter)


def _wrong_headers(facts: GroupFacts, letter: LetterRead) -> Iterator[str]:
    message = facts.contents.get((letter.topic, letter.id))
    wrong = {
        "group": letter.of_group != facts.group,
        "member": letter.member not in facts.stored,
        "deliveries": letter.deliveries != facts.options.deliveries_max,
        "reason": not letter.reason,
        "partition": str(letter.partition) != letter.id.split(":")[2],
        "content": message is None or (message.mark, message.key) != (letter.mark, letter.key),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            yield f"the {name} of a dead letter is wrong: {letter}"


SLOT_PROMISES: list[tuple[int, Callable[[GroupFacts], Iterator[str]]]] = [
    (24, _came_again),
    (24, _not_counted),
    (25, _buried_alive),
    (25, _letters),
    (26, _keys),
]
