"""Promises of a lane: its takeovers by producers, and its event times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from message_events import LaneTaken, MessagesSent, Place
from message_facts import Ack, Broken, Promises, TopicFacts

from ledger_client.message_id import MessageId

# --- 17: taking over --------------------------------------------------------------------


def _foreign_epoch(facts: TopicFacts) -> Broken:
    """Acknowledgements under an epoch are for entries in ledgers of that epoch.

    A named producer may be told where an earlier session of it put a message.
    """
    epochs = _epochs(facts)
    for ack in facts.acks:
        found, row = facts.place(ack.id.ledger_id), facts.row(ack.id.ledger_id)
        own = epochs.get((ack.told.session, found[0])) if found else None
        if row is None or own is None or row.epoch in own:
            continue
        if row.epoch > max(own) or ack.mark not in facts.named:
            yield ack.id, f"told to {ack.told.session} of epochs {own}, in one of {row.epoch}"


def _acknowledged_late(facts: TopicFacts) -> Broken:
    """The previous owner of a lane gets no acknowledgement for messages sent after the takeover."""
    epochs = _epochs(facts)
    for ack in facts.acks:
        found = facts.place(ack.id.ledger_id)
        own = epochs.get((ack.told.session, found[0])) if found else None
        if found is None or own is None:
            continue
        for order, event in facts.taken:
            is_later = (event.partition, event.lane) == found[0] and event.epoch > max(own)
            if is_later and order < facts.sent.get(ack.mark, [0])[0]:
                yield ack.id, f"{ack.told.session} sent it after {event.session} had the lane"
                break


def _epochs(facts: TopicFacts) -> dict[tuple[str, Place], list[int]]:
    """Return the epochs by which each session had each lane."""
    found: dict[tuple[str, Place], list[int]] = {}
    for _, event in facts.taken:
        key = event.session, Place(event.partition, event.lane)
        found.setdefault(key, []).append(event.epoch)
    return found


def _two_owners(facts: TopicFacts) -> Broken:
    """An epoch of a lane is one session's; who has it later has a greater one."""
    last: dict[Place, tuple[int, str]] = {}
    for _, event in facts.taken:
        place = Place(event.partition, event.lane)
        epoch, session = last.get(place, (-1, ""))
        if event.epoch == epoch and event.session != session:
            yield None, f"{session} and {event.session} both have {place} by epoch {epoch}"
        last[place] = max(last.get(place, (-1, "")), (event.epoch, event.session))


def _sequences(facts: TopicFacts) -> Broken:
    """Sequence numbers of a producer rise along a lane."""
    for place, ids in facts.lanes.items():
        last: dict[str, tuple[int, MessageId]] = {}
        for _, message_id in ids:
            message = facts.kept.get(message_id)
            producer = facts.named.get(message.mark) if message else None
            if message is None or producer is None:
                continue
            sequence, before = last.get(producer, (-1, None))
            if message.sequence <= sequence:
                told = f"{sequence} at {before}, then {message.sequence} at {message_id}"
                yield message_id, f"{producer} in {place}: sequence {told}"
            last[producer] = message.sequence, message_id


def _sequences_continue(facts: TopicFacts) -> Broken:
    """A takeover restores the last sequence number acknowledged to the producer."""
    sent: dict[str, int] = {}
    kept: dict[tuple[str, Place], int] = {}
    for _, event in sorted(_steps(facts), key=lambda step: step[0]):
        if isinstance(event, MessagesSent):
            last = max(message.sequence for message in event.messages)
            sent[event.producer] = max(last, sent.get(event.producer, -1))
        elif isinstance(event, Ack):
            if (found := facts.place(event.id.ledger_id)) is not None:
                key, sequence = (facts.named[event.mark], found[0]), _sequence(facts, event)
                kept[key] = max(sequence, kept.get(key, -1))
        else:
            place = Place(event.partition, event.lane)
            least, most = kept.get((event.producer, place), -1), sent.get(event.producer, -1)
            if place not in facts.cut_lanes and not least <= event.last_sequence <= most:
                told = f"{event.last_sequence}; acknowledged {least}, sent {most}"
                yield None, f"{event.session} takes {place} with {event.producer}'s sequence {told}"


def _steps(facts: TopicFacts) -> Iterator[tuple[int, MessagesSent | Ack | LaneTaken]]:
    """Yield what is told of producers with names, and when."""
    yield from ((order, event) for order, event in facts.taken if event.producer)
    yield from ((order, event) for order, event in facts.sends if event.producer)
    yield from ((ack.order, ack) for ack in facts.acks if ack.mark in facts.named)


def _sequence(facts: TopicFacts, ack: Ack) -> int:
    return facts.messages[ack.mark].sequence


# --- 18: event times --------------------------------------------------------------------


def _time_back(facts: TopicFacts) -> Broken:
    """In a lane of an ordered topic event times do not fall."""
    for place, ids in facts.lanes.items() if facts.ordered else ():
        there = [message_id for _, message_id in ids if facts.gone_at(message_id) is None]
        timed = [(_event_time(facts, message_id), message_id) for message_id in there]
        known = [(time, message_id) for time, message_id in timed if time is not None]
        for (before, _), (after, message_id) in itertools.pairwise(known):
            if after < before:
                yield message_id, f"{place}: event time {after} follows {before}"


def _event_time(facts: TopicFacts, message_id: MessageId) -> int | None:
    kept = facts.kept.get(message_id)
    if kept is None:
        kept = facts.messages.get(facts.content.get(message_id, -1))
    return None if kept is None else kept.event_time


def _refused_wrongly(facts: TopicFacts) -> Broken:
    """An event time is refused only where the lane is further, by a time that was sent."""
    times = {message.event_time for message in facts.messages.values()}
    for event in facts.refusals:
        if event.event_time is None or event.last_event_time is None:
            continue
        if event.event_time >= event.last_event_time or event.last_event_time not in times:
            told = f"event time {event.event_time}, naming {event.last_event_time}"
            yield None, f"{event.session} was refused {told}"


LANE_PROMISES: Promises = [
    (17, _foreign_epoch),
    (17, _acknowledged_late),
    (17, _two_owners),
    (17, _sequences),
    (17, _sequences_continue),
    (18, _time_back),
    (18, _refused_wrongly),
]
