"""The events of one group in a history, indexed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from group_events import (
    Done,
    GroupHappening,
    GroupSettled,
    LetterRead,
    MemberRemoved,
    MemberStored,
    Opened,
    ProgressStored,
    Spot,
)
from history import History
from message_events import Message, is_nowhere
from message_facts import TopicFacts, gather_topics

from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId
from metadata.groups.rows import SLOTS

Lane = tuple[TopicPartition, int]


class Due(NamedTuple):
    """An acknowledged message of a lane, in lane order."""

    spot: Spot
    id: MessageId


class Topics:
    """What groups may consume, from all topics of a *history*."""

    def __init__(self, history: History) -> None:
        self.due: dict[Lane, list[Due]] = {}
        """the acknowledged messages"""
        self.contents: dict[tuple[str, str], Message] = {}
        """by topic and id, all messages that are known"""
        for facts in gather_topics(history):
            self.due |= _due(facts)
            known = {each: facts.messages[mark] for each, mark in facts.content.items()}
            self.contents |= {
                (facts.topic, str(each)): message for each, message in (facts.kept | known).items()
            }


class GroupFacts:
    """The events of one group; an event's index in *events* stands for its time."""

    def __init__(self, group: str, events: list[GroupHappening], topics: Topics) -> None:
        self.group = group
        self.events = events
        self.due = topics.due
        self.contents = topics.contents
        self.done: dict[tuple[str, MessageId], int] = {}
        """by topic and id, when an application was done with a message first"""
        self.rows: dict[tuple[str, int], MemberStored] = {}
        """by member and epoch"""
        self.stored: defaultdict[str, list[MemberStored]] = defaultdict(list)
        self.removed: defaultdict[str, list[MemberRemoved]] = defaultdict(list)
        for order, event in enumerate(events):
            if isinstance(event, Done):
                for each in event.ids:
                    self.done.setdefault((event.topic, each), order)
            elif isinstance(event, MemberStored):
                self.rows[event.member, event.epoch] = event
                self.stored[event.member].append(event)
            elif isinstance(event, MemberRemoved):
                self.removed[event.member].append(event)
        self.letters = [each for each in events if isinstance(each, LetterRead)]
        self.dead = {(each.topic, each.id) for each in self.letters}
        """by topic and id, the messages of which there are dead letters"""
        opened = [each for each in events if isinstance(each, Opened)]
        self.options = opened[0] if opened else Opened(group=group, session="")
        """the options that all members have"""
        self.commits = sorted(
            (
                (event, order)
                for order, event in enumerate(events)
                if isinstance(event, ProgressStored)
            ),
            key=lambda found: found[0].version,
        )

    @property
    def is_shared(self) -> bool:
        return self.options.shared

    @property
    def by_key(self) -> bool:
        return self.options.by_key

    def spots(self) -> dict[tuple[str, MessageId], Spot]:
        """Return the places of acknowledged messages, by topic and id."""
        return {
            (lane.topic, each.id): each.spot for (lane, _), due in self.due.items() for each in due
        }

    def settled(self) -> GroupSettled | None:
        return next((each for each in self.events if isinstance(each, GroupSettled)), None)

    def units(self, parts: list[TopicPartition]) -> set[TopicPartition]:
        """Return what is assigned of partitions: themselves, or their slots."""
        if not self.by_key:
            return set(parts)
        return {unit(part, slot) for part in parts for slot in range(SLOTS)}


def unit(part: TopicPartition, slot: int) -> TopicPartition:
    """Return a slot of a partition as the rows of a key-shared group name it."""
    return TopicPartition(part.topic, max(part.partition, 0) * SLOTS + slot)


def _due(facts: TopicFacts) -> Iterator[tuple[Lane, list[Due]]]:
    found: defaultdict[Lane, set[Due]] = defaultdict(set)
    for ack in facts.acks:
        place = None if is_nowhere(ack.id) else facts.place(ack.id.ledger_id)
        if place is not None:
            (partition, lane), number = place
            spot = (number, ack.id.entry_id, max(ack.id.batch_index, 0))
            found[TopicPartition(facts.topic, partition), lane].add(Due(spot, ack.id))
    for each, messages in found.items():
        yield each, sorted(messages)
