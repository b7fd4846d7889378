"""Promises to a sender: each message is stored once, at the acknowledged id, in send order."""

from __future__ import annotations

from collections.abc import Iterator

from message_events import Message, MessagesRead, Place, is_nowhere
from message_facts import Ack, Broken, Cut, Promises, TopicFacts

from ledger_client.message_id import MessageId

# --- 15: what was acknowledged ----------------------------------------------------------


def _changed(facts: TopicFacts) -> Broken:
    """An id has one message, for who sent it, for every reader, and in the ledger."""
    told = [(ack.id, ack.mark) for ack in facts.acks if not is_nowhere(ack.id)]
    for run in facts.runs.values():
        for _, event in run.events:
            if isinstance(event, MessagesRead):
                marks = (message.mark for message in event.messages)
                told += zip(event.ids, marks, strict=True)
    told += [(message_id, message.mark) for message_id, message in facts.kept.items()]
    for message_id, mark in told:
        if facts.content.get(message_id, mark) != mark:
            other = facts.content[message_id]
            yield message_id, f"{message_id} is {other:x} at one time, {mark:x} at another"


def _lost(facts: TopicFacts) -> Broken:
    """An acknowledged message is at its acknowledged id, unless it was removed since."""
    places = (facts.place(ledger) for ledger in facts.removed)
    removed = {found[0].partition for found in places if found}
    removed |= {place.partition for place in facts.cut_lanes}
    for ack in facts.acks if facts.held else ():
        if is_nowhere(ack.id):
            if ack.mark not in facts.copies and ack.id.partition not in removed:
                yield None, f"{ack.mark:x} was said to be kept, and nothing has it"
        elif ack.id not in facts.kept and facts.gone_at(ack.id) is None:
            yield ack.id, f"{ack.id} was acknowledged to {ack.told.session} and is not there"


def _cut_wrongly(facts: TopicFacts) -> Broken:
    """Nothing but what was asked for is deleted out of ledgers: not before, not what came after."""
    for ack in facts.acks:
        gone_at = facts.gone_at(ack.id) if ack.id.ledger_id not in facts.removed else None
        if gone_at is None:
            continue
        asked = [cut for cut in facts.cuts if _asks_for(facts, cut, ack.id)]
        if not asked:
            yield ack.id, f"{ack.id} was deleted, and nobody had asked for it"
        elif all(cut.done and cut.done[0] < ack.order for cut in asked):
            yield ack.id, f"{ack.id} was acknowledged after the deletion that took it"


def _asks_for(facts: TopicFacts, cut: Cut, message_id: MessageId) -> bool:
    start, located = facts.where(cut.start), facts.where(message_id)
    return bool(start and located and start[0] == located[0] and start[1] <= located[1])


def _too_often(facts: TopicFacts) -> Broken:
    """A message is there once with a name, as often as it was sent without."""
    for mark, ids in facts.copies.items():
        sent = len(facts.sent.get(mark, ()))
        most = min(1, sent) if mark in facts.named else sent
        most = min(most, sent - facts.refused[mark])
        if sent and len(ids) > most and not any(map(facts.is_cut, ids)):
            places = ", ".join(map(str, sorted(ids)))
            yield min(ids), f"{mark:x} is there as {places}; at most {most} times it may be"


# --- 16: one order ----------------------------------------------------------------------


def _never_sent(facts: TopicFacts) -> Broken:
    """Each message stored or read was sent like this, before it was read."""
    for message_id, message in facts.kept.items():
        if not _is_sent(facts, message):
            yield message_id, f"{message_id} holds {message}, which nobody sent so"
    for name, run in facts.runs.items():
        for order, event in run.events:
            if not isinstance(event, MessagesRead):
                continue
            for message_id, message in zip(event.ids, event.messages, strict=True):
                sent = facts.sent.get(message.mark, [order])[0] < order
                if not sent or not _is_sent(facts, message):
                    yield message_id, f"{name} read {message} at {message_id}; nobody sent it so"


def _is_sent(facts: TopicFacts, message: Message) -> bool:
    """True if it was sent like this. Arrow batches have no sequence numbers."""
    sent = facts.messages.get(message.mark)
    if sent is None or message.sequence < 0:
        return sent is not None and (sent.key, sent.event_time) == (message.key, message.event_time)
    return sent == message


def _reordered(facts: TopicFacts) -> Broken:
    """Each lane keeps the order of a writer's successive sends."""
    last: dict[tuple[str, str, Place], tuple[tuple[int, int], Ack]] = {}
    for ack, turn in sorted(_turns(facts), key=lambda each: each[1]):
        located = facts.where(ack.id)
        if located is None:
            continue
        key = (ack.told.session, ack.told.writer, located[0])
        before = last.get(key)
        if before is not None and facts.where(before[1].id) >= located:  # type: ignore[operator]
            told = f"{before[1].id} and then {ack.id} are the order of its sends"
            yield ack.id, f"{ack.told.session}, {ack.told.writer}: {told}"
        last[key] = turn, ack


def _turns(facts: TopicFacts) -> Iterator[tuple[Ack, tuple[int, int]]]:
    """Yield each acknowledgement with when the writer sent that: the last time before."""
    turns: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for order, event in facts.sends:
        for index, message in enumerate(event.messages):
            key = (event.session, event.writer, message.mark)
            turns.setdefault(key, []).append((order, index))
    for ack in facts.acks:
        sent = turns.get((ack.told.session, ack.told.writer, ack.mark), [])
        before = [turn for turn in sent if turn[0] < ack.order]
        if before and not is_nowhere(ack.id):
            yield ack, before[-1]


SEND_PROMISES: Promises = [
    (15, _changed),
    (15, _lost),
    (15, _cut_wrongly),
    (15, _too_often),
    (16, _never_sent),
    (16, _reordered),
]
