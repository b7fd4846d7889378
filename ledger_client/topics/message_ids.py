"""The ids of many messages, a few numbers for each batch and none for each message."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple, overload

from ledger_client.topics.message_id import NOT_BATCHED, MessageId


class Run(NamedTuple):
    """*length* messages of one batch, in order, from the place *first* in it; -1: unbatched."""

    ledger_id: int
    entry_id: int
    partition: int
    first: int
    length: int

    def id_at(self, place: int) -> MessageId:
        """Return the id of the message at *place* of the run."""
        index = NOT_BATCHED if self.first < 0 else self.first + place
        return MessageId(self.ledger_id, self.entry_id, self.partition, index)


class MessageIds(Sequence[MessageId]):
    """What send_many returns: the id of each message, in the order in which they were given.

    *rows*: where runs are in another order: for the messages in the order of the runs, which
    of those given each one is. Each entry adds a number to those of an array.
    """

    def __init__(
        self, runs: Sequence[Run], rows: Sequence[tuple[int, array[int]]] | None = None
    ) -> None:
        self._runs = runs
        self._rows = rows
        self._ends: list[int] = []
        end = 0
        for run in runs:
            end += run.length
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
            for run in self._runs:
                yield from map(run.id_at, range(run.length))
        else:
            yield from map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(MessageId.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have none either

    def __repr__(self) -> str:
        first = ", ".join(str(message_id) for message_id in islice(self, 3))
        return f"<{len(self)} message ids: {first}{', ...' if len(self) > 3 else ''}>"

    def _at(self, index: int) -> MessageId:
        place = index if self._rows is None else self._places[index]
        run = bisect_right(self._ends, place)
        return self._runs[run].id_at(place - (self._ends[run] - self._runs[run].length))

    @cached_property
    def _places(self) -> array[int]:
        """Where in the runs each message is; made when somebody asks for the first one."""
        assert self._rows is not None
        places = array("Q", bytes(8 * len(self)))
        place = 0
        for first, rows in self._rows:
            for row in rows:
                places[first + row] = place
                place += 1
        return places
