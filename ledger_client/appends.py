"""What callers want appended, and what was sent and is not confirmed yet.

Two queues of one writer. A request waits in the first until all of its payloads
were handed to C, piece by piece, and in the second until its last entry is
confirmed. Pieces keep their frames until then, so that they can be sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple, cast

import trio

from ledger_client.errors import LedgerError, OutcomeUnknown, WrongPassword
from ledger_client.outgoing import Buffer

Payload = bytes | bytearray | memoryview
PIECE_SIZE = 512 * 1024
"""Payload bytes handed to C at once: small enough to pipeline, large enough to amortize."""

FEW = 64
"""Fewer payloads in a piece than this are worth a closer look at their sizes."""


class Request:
    """One call of append or append_many."""

    __slots__ = ("done", "failure", "first", "largest", "payloads", "taken")

    def __init__(self, payloads: Sequence[Payload]) -> None:
        """Raises TypeError for what is not bytes."""
        kinds = set(map(type, payloads))
        if not kinds <= {bytes, bytearray, memoryview}:
            raise TypeError(f"entries are bytes, not {', '.join(k.__name__ for k in kinds)}")
        own = kinds <= {bytes}  # others are copied: they may change before they are sent
        self.payloads = cast(Sequence[bytes], payloads) if own else list(map(bytes, payloads))
        self.largest = max(map(len, self.payloads), default=0)
        self.taken = 0
        self.first: int | None = None
        self.done = trio.Event()
        self.failure: LedgerError | None = None

    @property
    def ids(self) -> range:
        """Ids of the entries that were sent."""
        return range(0) if self.first is None else range(self.first, self.first + self.taken)

    def count_within(self, room: int) -> int:
        """Return how many of the payloads not taken yet surely fit in *room* bytes."""
        count = room // max(self.largest, 1)
        left = len(self.payloads) - self.taken
        if count >= min(left, FEW):
            return count
        # A few large ones may stand among many small ones: only counting tells.
        rest = map(self.payloads.__getitem__, range(self.taken, len(self.payloads)))
        ends = accumulate(map(len, rest))
        return sum(1 for _ in takewhile(room.__ge__, ends))

    def succeed(self) -> None:
        """Wake the caller: all entries are confirmed."""
        self.done.set()

    def fail(self, failure: LedgerError, *, ledger_id: int, confirmed: int) -> None:
        """Wake the caller: entries above *confirmed* may or may not be in the ledger."""
        self.failure = failure
        if self.first is not None and not isinstance(failure, WrongPassword):
            self.failure = OutcomeUnknown(
                ledger_id=ledger_id,
                first_entry=max(self.first, confirmed + 1),
                last_entry=self.first + len(self.payloads) - 1,
                reason=str(failure),
            )
            self.failure.__cause__ = failure
        self.done.set()


class Piece(NamedTuple):
    """Entries sent together; frames[i] went to bookie i of the ensemble."""

    first: int
    last: int
    frames: Sequence[Buffer]
    sent_at: float


class RequestQueue:
    """Requests whose payloads were not all sent yet, first come first served."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def put(self, request: Request) -> None:
        """Add a request behind the others."""
        self._requests.append(request)

    def withdraw(self, request: Request) -> None:
        """Send nothing more of *request*; what was sent stays sent."""
        if request in self._requests:
            self._requests.remove(request)

    def take_all(self) -> list[Request]:
        """Empty the queue."""
        requests = list(self._requests)
        self._requests.clear()
        return requests

    def take_piece(self, next_entry: int) -> tuple[list[bytes], list[Request]]:
        """Return payloads for one piece and the requests of which it holds the last.

        *next_entry* is the id that the first of them will get.
        """
        payloads: list[bytes] = []
        complete: list[Request] = []
        room = PIECE_SIZE
        while self._requests:
            request = self._requests[0]
            count = request.count_within(room)
            if count == 0 and payloads:
                break
            taken = request.payloads[request.taken : request.taken + max(count, 1)]
            if request.first is None:
                request.first = next_entry + len(payloads)
            request.taken += len(taken)
            payloads += taken
            room -= sum(map(len, taken))
            if request.taken < len(request.payloads):
                break
            complete.append(self._requests.popleft())
        return payloads, complete
