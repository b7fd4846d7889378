"""Ids of messages: of one, and of many that were sent together."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple, overload

NOT_PARTITIONED = -1
NOT_BATCHED = -1
_TEXT = re.compile(r"(?:(\d{1,19}):(\d{1,19})|-1:-1):(-1|\d{1,10})(?::(-1|\d{1,10}))?", re.ASCII)
_ID_MAX = (1 << 63) - 1


class MessageId(NamedTuple):
    """The id of a message, in Pulsar's four parts.

    Ledger and entry are -1 for a duplicate whose original is in an unknown place. Ids sort
    the messages of one lane as they were written. Between lanes or partitions they say nothing
    about which message came first.
    """

    ledger_id: int
    entry_id: int
    partition: int = NOT_PARTITIONED
    batch_index: int = NOT_BATCHED

    def __str__(self) -> str:
        """Return ledger:entry:partition, followed by :batch if the message was batched."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index == NOT_BATCHED else f"{text}:{self.batch_index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse what str() returned: three parts, or four.

        Raises:
            ValueError: *text* is not an id.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a message id: ledger:entry:partition[:batch]")
        ledger_id, entry_id, partition, index = (int(part or -1) for part in found.groups())
        message_id = cls(ledger_id, entry_id, partition, index)
        if max(message_id) > _ID_MAX:
            raise ValueError(f"{text!r} is not a message id: a number is over 2**63 - 1")
        return message_id


class IdRange(NamedTuple):
    """*length* consecutive messages of one batch.

    *first* is the index of the first one in the batch, -1 if they are unbatched.
    """

    ledger_id: int
    entry_id: int
    partition: int
    first: int
    length: int

    def id_at(self, place: int) -> MessageId:
        """Return the id of message *place* of the range."""
        index = NOT_BATCHED if self.first < 0 else self.first + place
        return MessageId(self.ledger_id, self.entry_id, self.partition, index)


class MessageIds(Sequence[MessageId]):
    """The id of each message that send_many() sent, in their order there.

    It holds a few numbers for each batch and none for each message.

    Args:
        ranges: the ids, by batch.
        rows: needed if the ranges are in another order than the messages. It lists, in the order
            of the ranges, the index of each message: as pairs of a number and an array, whose
            indexes are relative to that number.
    """

    def __init__(
        self, ranges: Sequence[IdRange], rows: Sequence[tuple[int, array[int]]] | None = None
    ) -> None:
        self._ranges = ranges
        self._rows = rows
        self._ends: list[int] = []
        end = 0
        for each in ranges:
            end += each.length
            self._ends.append(end)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> MessageId: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | Sequence[MessageId]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        return self._at(index % len(self))

    def __iter__(self) -> Iterator[MessageId]:
        if self._rows is None:
            for each in self._ranges:
                yield from map(each.id_at, range(each.length))
        else:
            yield from map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(MessageId.__eq__, self, other))

    def __repr__(self) -> str:
        first = ", ".join(str(message_id) for message_id in islice(self, 3))
        return f"<{len(self)} message ids: {first}{', ...' if len(self) > 3 else ''}>"

    def _at(self, index: int) -> MessageId:
        place = index if self._rows is None else self._places[index]
        index = bisect_right(self._ends, place)
        found = self._ranges[index]
        return found.id_at(place - (self._ends[index] - found.length))

    @cached_property
    def _places(self) -> array[int]:
        """The place of each message among the ranges; built when the first id is looked up."""
        assert self._rows is not None
        places = array("Q", bytes(8 * len(self)))
        place = 0
        for first, rows in self._rows:
            for row in rows:
                places[first + row] = place
                place += 1
        return places
