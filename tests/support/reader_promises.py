"""Promises to readers of a topic: one order, and nothing skipped silently.

A reader that follows nothing and comes to its end has got everything that was acknowledged
before it began. What a reader got is there for all later ones. Between two messages of a lane that
a reader got one after the other, there is nothing that was not removed; where something was
removed, the reader was told of it. No reader is told that something is lost that is there.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import NamedTuple

from message_events import GapTold, MessagesRead, Place, is_nowhere
from message_facts import Broken, Promises, Run, TopicFacts, Where

from ledger_client.message_id import MessageId


class Met(NamedTuple):
    """A message or a gap that a reader met in a lane. *where*: of the last before the gap."""

    order: int
    where: Where
    id: MessageId
    gap: GapTold | None = None


def _unread(facts: TopicFacts) -> Broken:
    """A reader that came to its end got what was acknowledged before, at the id that was told."""
    for name, run in facts.runs.items():
        if not run.ended or run.begun[1].latest:
            continue
        got = {
            message_id
            for _, event in run.events
            if isinstance(event, MessagesRead)
            for message_id in event.ids
        }
        for ack in facts.acks:
            if ack.order < run.begun[0] and ack.id not in got and _is_due(facts, run, ack.id):
                yield ack.id, f"{name} did not get {ack.id}, which was acknowledged before"


def _is_due(facts: TopicFacts, run: Run, message_id: MessageId) -> bool:
    """True if a reader that reached its end must have got the message at *message_id*.

    A bounded read of a lane that is being written may end before a message if all bookies that
    have it are away (docs/limits.md). Only who knows that they were not asks for a whole read.
    """
    begun_at, begun = run.begun
    if not begun.whole and facts.closed.get(message_id.ledger_id, begun_at) >= begun_at:
        return False
    removed_at = facts.gone_at(message_id)
    if is_nowhere(message_id) or (removed_at is not None and removed_at < run.ended[0]):
        return False
    if begun.partitions is not None and message_id.partition not in begun.partitions:
        return False
    return begun.first is None or _is_ahead(facts, run, message_id)


def _is_ahead(facts: TopicFacts, run: Run, message_id: MessageId) -> bool:
    """True if a reader that begins at an id must pass the message."""
    begun = run.begun[1]
    assert begun.first is not None
    start, at = facts.where(begun.first), facts.where(message_id)
    if start is None or at is None or start[0] != at[0]:
        return False
    if at[1] == start[1]:
        return begun.inclusive
    return (at[1] < start[1]) is begun.reverse


def _denied(facts: TopicFacts) -> Broken:
    """What a reader got is there at the end, unless it was removed since."""
    for name, run in facts.runs.items() if facts.held else ():
        for _, event in run.events:
            for message_id in event.ids if isinstance(event, MessagesRead) else ():
                if message_id not in facts.kept and facts.gone_at(message_id) is None:
                    yield message_id, f"{name} got {message_id}, which is not there"


def _unordered(facts: TopicFacts) -> Broken:
    """A reader gets the messages of a lane in their order, each once."""
    for name, run in facts.runs.items():
        for place, met in _by_lane(facts, run).items():
            got = [each for each in met if each.gap is None]
            for before, after in itertools.pairwise(got):
                rises = before.where < after.where
                if before.where == after.where or rises is run.begun[1].reverse:
                    yield after.id, f"{name} in {place}: {before.id}, then {after.id}"


def _left_out(facts: TopicFacts) -> Broken:
    """Nothing lies between two messages that a reader got but what it was told is gone."""
    for name, run in facts.runs.items():
        for place, met in _by_lane(facts, run).items():
            for before, after in itertools.pairwise([None, *met]):
                if after is not None and after.gap is None:
                    yield from _between(facts, run, name, place, before, after)


def _between(
    facts: TopicFacts, run: Run, name: str, place: Place, before: Met | None, after: Met
) -> Broken:
    begun, told_of_gap = run.begun[1], before is not None and before.gap is not None
    start = before.where if before is not None else None
    if before is None:
        if begun.latest or (begun.reverse and begun.first is None):
            return  # what came after it began lies there too
        if begun.first is not None:
            located = facts.where(begun.first)
            if located is None or located[0] != place:
                return
            start = located[1]
    for message_id in _ids_between(facts, place, start, after.where, reverse=begun.reverse):
        removed_at = facts.gone_at(message_id)
        is_gone = removed_at is not None and removed_at < after.order
        if not is_gone:
            yield message_id, f"{name} got {after.id} and not {message_id}, which is before it"
        elif facts.is_cut(message_id):
            continue  # who deletes tells readers of no gap
        elif before is not None and not told_of_gap:
            yield message_id, f"{name} was not told that {message_id} is gone before {after.id}"


def _ids_between(
    facts: TopicFacts, place: Place, start: Where | None, stop: Where | None, *, reverse: bool
) -> list[MessageId]:
    """Return the known messages between two, excluded; None is the lane's beginning or end."""
    ids = facts.lanes.get(place, [])
    low, high = (stop, start) if reverse else (start, stop)
    first = 0 if low is None else bisect_right(ids, low, key=itemgetter(0))
    last = len(ids) if high is None else bisect_left(ids, high, key=itemgetter(0))
    return [message_id for _, message_id in ids[first:last]]


def _false_gap(facts: TopicFacts) -> Broken:
    """A reader is told of a gap only where ledgers were removed, and from there on."""
    for name, run in facts.runs.items():
        for place, met in _by_lane(facts, run).items():
            for each in met:
                if each.gap is None:
                    continue
                covered = _of_gap(facts, place, each, reverse=run.begun[1].reverse)
                left = [found for found in covered if not _was_gone(facts, found, each)]
                if left:
                    yield left[0], f"{name} was told of a gap at {each.gap.position}: there it is"


def _of_gap(facts: TopicFacts, place: Place, met: Met, *, reverse: bool) -> list[MessageId]:
    """Return the ids that a gap is said to cover, of ledgers that there were when it was told.

    Forward it begins with its position and ends before what is first; in reverse, it is all
    that lies before the position.
    """
    assert met.gap is not None
    first = facts.where(met.gap.first) if met.gap.first is not None else None
    stop = first[1] if first is not None else None
    between = _ids_between(facts, place, met.where, stop, reverse=reverse)
    covered = between if reverse else [met.gap.position, *between]
    return [each for each in covered if facts.begun.get(each.ledger_id, met.order) < met.order]


def _was_gone(facts: TopicFacts, message_id: MessageId, met: Met) -> bool:
    removed_at = facts.gone_at(message_id)
    return removed_at is not None and removed_at < met.order


def _false_loss(facts: TopicFacts) -> Broken:
    """A reader is told that an entry is lost only if it was removed, which it may hear of late."""
    for order, event in facts.losses:
        at = MessageId(event.ledger_id, event.entry)
        removed_at = facts.gone_at(at)
        if (removed_at is None or removed_at > order) and not facts.is_cut(at):
            yield at, f"{event.reader} was told that entry {event.entry} is lost"


def _by_lane(facts: TopicFacts, run: Run) -> dict[Place, list[Met]]:
    found: dict[Place, list[Met]] = {}
    for order, event in run.events:
        if isinstance(event, GapTold):
            place, position = Place(event.partition, event.lane), event.position
            located = facts.where(position)
            where = located[1] if located else Where(-1, -1, -1)
            found.setdefault(place, []).append(Met(order, where, position, event))
            continue
        for message_id in event.ids:
            if (at := facts.where(message_id)) is not None:
                found.setdefault(at[0], []).append(Met(order, at[1], message_id))
    return found


def _read_deleted(facts: TopicFacts) -> Broken:
    """A reader opened after a deletion gets no deleted message."""
    for name, run in facts.runs.items() if facts.cuts else ():
        for _, event in run.events:
            for message_id in event.ids if isinstance(event, MessagesRead) else ():
                gone_at = facts.gone_at(message_id)
                if gone_at is not None and gone_at < run.begun[0]:
                    yield message_id, f"{name} got {message_id}, which was deleted before"


READER_PROMISES: Promises = [
    (15, _read_deleted),
    (15, _unread),
    (19, _denied),
    (16, _unordered),
    (19, _left_out),
    (19, _false_gap),
    (19, _false_loss),
]
