"""What is read beside what was sent: each message once, in its lane's order, with its id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from ledger_client import Message, MessageId

Lane = tuple[str, int]
"""A producer's lane: its name, and the partition."""


class Comparison:
    """Takes messages as a reader gives them.

    *sent*: of each producer the ids that it got, in the order in which it sent.
    """

    def __init__(self, sent: Mapping[str, Iterable[MessageId]]) -> None:
        self._sent: dict[Lane, Iterator[tuple[int, MessageId]]] = {}
        for producer, ids in sent.items():
            lanes: dict[int, list[MessageId]] = defaultdict(list)
            for message_id in ids:
                lanes[message_id.partition].append(message_id)
            for partition, found in lanes.items():
                self._sent[producer, partition] = zip(count(), found, strict=False)
        self._is_as_sent = True

    def take(self, messages: Sequence[Message]) -> None:
        """Compare the next messages, with their numbers and ids."""
        for message in messages:
            lane = self._sent.get((message.producer, message.id.partition))
            expected = next(lane, None) if lane is not None else None
            self._is_as_sent &= expected == (message.sequence, message.id)

    def ends_as_sent(self) -> bool:
        """Return whether all were as they were sent, and none is left. Ask once, at the end."""
        return self._is_as_sent and all(next(lane, None) is None for lane in self._sent.values())
