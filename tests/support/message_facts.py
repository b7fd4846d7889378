"""The events of one topic in a history, indexed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from history import History
from message_events import (
    GapTold,
    HeldEntry,
    LaneTaken,
    LedgerHeld,
    LossTold,
    Message,
    MessagesAcknowledged,
    MessagesRead,
    MessagesRefused,
    MessagesSent,
    Place,
    ReadBegun,
    ReadEnded,
    RowListed,
    RowRemoved,
    TopicCut,
    TopicHappening,
    TopicMade,
    is_nowhere,
)

from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.ledger_rows import kept_messages
from metadata.topics import LaneLedger, Removed


class Where(NamedTuple):
    """The place of a message in its lane; compares in lane order."""

    number: int
    entry: int
    slot: int
    """in the batch"""


class Ack(NamedTuple):
    """One message that was acknowledged. *order*: of the event among all of the topic."""

    order: int
    told: MessagesAcknowledged
    mark: int
    id: MessageId


class Run(NamedTuple):
    """One reader's events, in order; *order* counts over all events of the topic."""

    begun: tuple[int, ReadBegun]
    events: list[tuple[int, MessagesRead | GapTold]]
    ended: list[int]


class Cut(NamedTuple):
    """A part of a lane that was to be deleted, from a place on.

    *begun*, *done*: orders of the events; *done* is empty while nobody knows whether it was.
    """

    start: MessageId
    begun: int
    done: list[int]


class TopicFacts:
    """The events of one topic by kind; *order* stands for the time of an event.

    Attributes:
        named: the producers that have a name, by the marks of what they sent.
        content: of each id, what was first told of it, by whom ever.
        sent: by mark, the orders of the events that sent it.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.ordered = False
        self.taken: list[tuple[int, LaneTaken]] = []
        self.sends: list[tuple[int, MessagesSent]] = []
        self.acks: list[Ack] = []
        self.refusals: list[MessagesRefused] = []
        self.runs: dict[str, Run] = {}
        self.losses: list[tuple[int, LossTold]] = []
        self.rows: defaultdict[Place, dict[int, list[RowListed]]] = defaultdict(dict)
        self.removed: dict[int, int] = {}
        """by ledger, the order of its removal"""
        self.cuts: list[Cut] = []
        self.begun: dict[int, int] = {}
        """by ledger, the order in which its row was open, or closed, first"""
        self.closed: dict[int, int] = {}
        """by ledger, the order in which its row was closed"""
        self.holes: dict[int, list[tuple[int, Sequence[Removed]]]] = {}
        """by ledger, what was deleted out of it, and the order in which its row said so"""
        self.held: dict[int, LedgerHeld] = {}
        self.messages: dict[int, Message] = {}
        """by mark, as it was first sent"""
        self.named: dict[int, str] = {}
        self.sent: dict[int, list[int]] = {}
        self.refused: Counter[int] = Counter()
        """by mark, how often it was refused for certain"""
        self.content: dict[MessageId, int] = {}
        self._lanes: dict[int, tuple[Place, int]] = {}
        self._order = 0

    # --- gathering ----------------------------------------------------------------------

    def add(self, event: TopicHappening) -> None:  # noqa: C901, PLR0912 - a table
        self._order += 1
        match event:
            case TopicMade():
                self.ordered = event.ordered
            case LaneTaken():
                self.taken.append((self._order, event))
            case MessagesSent():
                self._add_sent(event)
            case MessagesAcknowledged():
                self._add_acknowledged(event)
            case MessagesRefused():
                self.refusals.append(event)
                if not event.unknown:
                    self.refused.update(event.marks)
            case ReadBegun():
                self.runs[event.reader] = Run((self._order, event), [], [])
            case MessagesRead() | GapTold():
                self._add_met(event)
            case LossTold():
                self.losses.append((self._order, event))
            case ReadEnded():
                self.runs[event.reader].ended.append(self._order)
            case RowListed():
                self._add_row(event)
            case RowRemoved():
                listed = self.rows[Place(event.partition, event.lane)].get(event.number, [])
                self.removed |= {each.row.ledger_id: self._order for each in listed}
            case TopicCut():
                self._add_cut(event)
            case LedgerHeld():
                self.held[event.ledger] = event

    def _add_sent(self, event: MessagesSent) -> None:
        self.sends.append((self._order, event))
        for message in event.messages:
            first = self.messages.setdefault(message.mark, message)
            assert (first.key, first.event_time) == (message.key, message.event_time), message
            self.sent.setdefault(message.mark, []).append(self._order)
            if event.producer:
                self.named[message.mark] = event.producer

    def _add_acknowledged(self, event: MessagesAcknowledged) -> None:
        for mark, message_id in zip(event.marks, event.ids, strict=True):
            self.acks.append(Ack(self._order, event, mark, message_id))
            if not is_nowhere(message_id):
                self.content.setdefault(message_id, mark)

    def _add_cut(self, event: TopicCut) -> None:
        if event.done:
            cut = next(cut for cut in reversed(self.cuts) if cut.start == event.start)
            cut.done.append(self._order)
        else:
            self.cuts.append(Cut(event.start, self._order, []))

    def _add_row(self, event: RowListed) -> None:
        place, ledger = Place(event.partition, event.lane), event.row.ledger_id
        self.rows[place].setdefault(event.number, []).append(event)
        self._lanes[ledger] = place, event.number
        if event.row.state != "prepared":  # before that it is no part of the lane
            self.begun.setdefault(ledger, self._order)
        if event.row.removed:
            self.holes.setdefault(ledger, []).append((self._order, event.row.removed))
        if event.row.state == "closed":
            self.closed.setdefault(ledger, self._order)

    def _add_met(self, event: MessagesRead | GapTold) -> None:
        self.runs[event.reader].events.append((self._order, event))
        if isinstance(event, MessagesRead):
            for message_id, message in zip(event.ids, event.messages, strict=True):
                self.content.setdefault(message_id, message.mark)

    # --- looking up, once all events are here ----------------------------------------------

    def place(self, ledger: int) -> tuple[Place, int] | None:
        """The lane of a ledger and its number there; None: no row names it."""
        return self._lanes.get(ledger)

    def where(self, message_id: MessageId) -> tuple[Place, Where] | None:
        """The place of a message; None if no row has its ledger."""
        found = self._lanes.get(message_id.ledger_id)
        if found is None:
            return None
        return found[0], Where(found[1], message_id.entry_id, message_id.batch_index)

    def row(self, ledger: int) -> LaneLedger | None:
        """The last that was listed of a ledger's row."""
        found = self._lanes.get(ledger)
        return None if found is None else self.last_row(*found)

    def last_row(self, place: Place, number: int) -> LaneLedger:
        """The last that was listed of a row."""
        return max(self.rows[place][number], key=lambda each: each.version).row

    def id_of(self, ledger: int, held: HeldEntry, index: int) -> MessageId:
        """The id of a message that is held."""
        found = self._lanes.get(ledger)
        partition = found[0].partition if found else -1
        return MessageId(ledger, held.entry, partition, index if held.batched else -1)

    def gone_at(self, message_id: MessageId) -> int | None:
        """The order of the event with which a message was deleted; None: it was not."""
        ledger = message_id.ledger_id
        orders = [self.removed[ledger]] if ledger in self.removed else []
        orders += [
            order
            for order, removed in self.holes.get(ledger, ())
            if is_in(removed, message_id.entry_id, max(message_id.batch_index, 0))
        ]
        return min(orders, default=None)

    def is_cut(self, message_id: MessageId) -> bool:
        """True if a message lies in a deleted range, for which readers get no gap."""
        located = self.where(message_id)
        return located is not None and any(
            cut[0] == located[0] and cut[1] <= located[1] for cut in self.cut_places
        )

    @cached_property
    def cut_places(self) -> list[tuple[Place, Where]]:
        """From where on something was deleted, in which lanes."""
        return [found for cut in self.cuts if (found := self.where(cut.start)) is not None]

    @cached_property
    def cut_lanes(self) -> set[Place]:
        """The lanes out of which something was deleted."""
        return {place for place, _ in self.cut_places}

    @cached_property
    def kept(self) -> dict[MessageId, Message]:
        """All messages that the audit found, but those that were deleted out of their ledgers."""
        found = {
            self.id_of(ledger, held, index): message
            for ledger, event in self.held.items()
            for held in event.entries
            for index, message in enumerate(held.messages)
        }
        return {each: message for each, message in found.items() if self.gone_at(each) is None}

    @cached_property
    def copies(self) -> dict[int, set[MessageId]]:
        """The ids of each mark, kept or told."""
        found: dict[int, set[MessageId]] = {}
        for message_id, mark in self.content.items():
            found.setdefault(mark, set()).add(message_id)
        for message_id, message in self.kept.items():
            found.setdefault(message.mark, set()).add(message_id)
        return found

    @cached_property
    def lanes(self) -> dict[Place, list[tuple[Where, MessageId]]]:
        """All ids that anybody was told or the audit found, lane by lane in order."""
        found: defaultdict[Place, list[tuple[Where, MessageId]]] = defaultdict(list)
        for message_id in self.content | self.kept:
            located = self.where(message_id)
            if located is not None:
                found[located[0]].append((located[1], message_id))
        return {place: sorted(ids) for place, ids in found.items()}

    def ledgers(self, place: Place) -> Iterator[tuple[int, LaneLedger]]:
        """Yield number and last row of each ledger of a lane that is not removed."""
        for number in sorted(self.rows[place]):
            row = self.last_row(place, number)
            if row.ledger_id not in self.removed:
                yield number, row


def is_in(removed: Sequence[Removed], entry: int, slot: int) -> bool:
    """True if the message was deleted from its ledger."""
    return not kept_messages(removed, entry, slot, slot + 1)


def gather_topics(history: History) -> list[TopicFacts]:
    """Return the facts of each topic in *history*, by name."""
    found: dict[str, TopicFacts] = {}
    for event in history.events:
        if isinstance(event, TopicHappening):
            found.setdefault(event.topic, TopicFacts(event.topic)).add(event)
    return [found[topic] for topic in sorted(found)]


Broken = Iterator[tuple[MessageId | None, str]]
"""where a promise is broken, None: of the whole topic; and how"""
Promises = list[tuple[int, Callable[[TopicFacts], Broken]]]
"""with the number of the invariant"""
