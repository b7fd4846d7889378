"""What a partition accepts: event times that do not fall, sequence numbers that rise."""

from __future__ import annotations

from typing import NoReturn

from ledger_client.topics.errors import BadTopic, EventTimeBack
from ledger_client.topics.producing.batching import Batch
from ledger_client.topics.producing.keeper import Lane
from ledger_client.topics.producing.numbering import Numbering
from ledger_client.topics.producing.routes import Route, Routes


class Admission:
    """The rules of one partition of a topic, for a producer with or without a name.

    Attributes:
        ordered: whether an event time lower than last_event_time is refused.
        last_event_time: the last that was accepted; known once the lane is open.
        numbering: of a producer with a name.
        found_routes: how its numbers are routed, as far as the lane knew when it was opened.
        strict: whether times or numbers count.
    """

    def __init__(
        self, topic: str, partition: int, *, ordered: bool, producer_name: str, routes: Routes
    ) -> None:
        self.ordered = ordered
        self.last_event_time: int | None = None
        self.numbering = Numbering(partition) if producer_name else None
        self.strict = ordered or self.numbering is not None
        self._topic = topic
        self._partition = partition
        self._producer_name = producer_name
        self._lane = -1
        self._routes = routes
        self.found_routes: list[Route] = []

    def begin(self, lane: Lane) -> None:
        """The lane is open; what it has decides, whatever was accepted before."""
        self._lane = lane.lane
        if self.strict:
            self.last_event_time = lane.last_event_time
        if self.numbering is not None:
            self.numbering.begin(lane.last_sequence(self._producer_name))
            self.found_routes = list(lane.routes(self._producer_name))
            self.route(lane)

    def route(self, lane: Lane) -> None:
        """Have the lane keep how the producer's numbers are routed, once that is agreed on."""
        if self._routes.known:
            lane.set_routes(self._producer_name, self._routes.known)

    def find_duplicate(self, sequence: int | None) -> tuple[Batch, int] | None:
        """Return where the message is that has this number, if one was accepted."""
        if self.numbering is None or sequence is None or sequence >= self.numbering.next:
            return None
        return self.numbering.find(sequence)

    def admit(self, event_time: int | None, sequence: int | None) -> tuple[int, bool]:
        """Accept a message; return its number and whether it follows the one before.

        -1: it has none. Raises EventTimeBack; then it is not accepted.
        """
        if self.ordered:
            self._check(event_time)
            self.last_event_time = event_time
        if self.numbering is None:
            return -1, True
        following = self.numbering.next
        if sequence is None:
            sequence = following
        self.numbering.accept(sequence)
        return sequence, sequence == following

    def take(self, batch: Batch) -> None:
        """Accept a batch that was checked and numbered by who made it."""
        if self.ordered and batch.sealed is not None:
            self.last_event_time = batch.sealed.last_event_time
        if self.numbering is not None:
            self.numbering.accept(batch.sequence + batch.count - 1)

    def refuse(self, event_time: int, last: int) -> NoReturn:
        """Raise EventTimeBack: *event_time* comes after *last*."""
        raise EventTimeBack(
            self._topic,
            partition=self._partition,
            lane=self._lane,
            event_time=event_time,
            last_event_time=last,
        )

    def refuse_timeless(self) -> NoReturn:
        """Raise BadTopic: a message has no event time."""
        raise BadTopic("ordered by event time: every message needs one", topic=self._topic)

    def _check(self, event_time: int | None) -> None:
        if event_time is None:
            self.refuse_timeless()
        if self.last_event_time is not None and event_time < self.last_event_time:
            self.refuse(event_time, self.last_event_time)
