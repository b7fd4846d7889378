"""Which answer belongs to which question on one connection.

READ has no request id on the wire, so its answers are matched by ledger and
entry, the oldest question first; two equal questions get equal answers, so it
does not matter which gets which. They would not if the ledger's id was used
again between the two: then the second must be asked on another connection.
Everything else carries a request id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import trio

from ledger_client.errors import BookieUnavailable
from native.frame import Opcode
from native.link import Response

Key = int | tuple[int, int]
"""A request id, or for READ the ledger and the entry."""
PROBE = (0, (1 << 63) - 1)
"""A ledger and an entry that no bookie has, and can say so without looking at the disk."""


class Reply:
    """The answer to one question: not there yet, a response, or a failure."""

    __slots__ = ("_abandon", "_on_arrival", "bookie_id", "failure", "response", "sent_at")

    def __init__(self, bookie_id: str, on_arrival: Callable[[], None]) -> None:
        self.bookie_id = bookie_id
        self.response: Response | None = None
        self.failure: BookieUnavailable | None = None
        self.sent_at = trio.current_time()
        self._on_arrival = on_arrival
        self._abandon: Callable[[], None] | None = None

    @property
    def arrived(self) -> bool:
        """True once there is a response or a failure."""
        return self.response is not None or self.failure is not None

    def resolve(self, response: Response) -> None:
        """Take the response and tell whoever asked."""
        self.response = response
        self._abandon = None  # it refers to this reply, and the response should not outlive use
        self._on_arrival()

    def fail(self, failure: BookieUnavailable) -> None:
        """There will be no response; tell whoever asked."""
        self.failure = failure
        self._abandon = None
        self._on_arrival()

    def abandon(self) -> None:
        """Nobody wants the answer any more; it is dropped when it comes."""
        if self._abandon is not None:
            self._abandon()


class _Reads:
    """READs of one ledger that are not answered, among them those that nobody waits for."""

    __slots__ = ("count", "incarnation")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.count = 0


class ReplyBook:
    """The open questions of one connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Reply] = {}
        self._by_entry: dict[tuple[int, int], deque[Reply]] = {}
        self._reads: dict[int, _Reads] = {}

    def __iter__(self) -> Iterator[Reply]:
        yield from self._by_id.values()
        for replies in self._by_entry.values():
            yield from replies

    def is_ambiguous(self, key: Key, incarnation: int) -> bool:
        """True if a READ of another incarnation of its ledger may still be answered."""
        if isinstance(key, int):
            return False
        reads = self._reads.get(key[0])
        return reads is not None and reads.incarnation != incarnation

    def add(self, key: Key, reply: Reply, incarnation: int = 0) -> None:
        """Expect the answer of *key*, about that incarnation of its ledger, for *reply*."""
        if isinstance(key, int):
            self._by_id[key] = reply
        else:
            self._by_entry.setdefault(key, deque()).append(reply)
            if key != PROBE:
                self._reads.setdefault(key[0], _Reads(incarnation)).count += 1
        reply._abandon = lambda: self._forget(key, reply)

    def resolve(self, response: Response) -> None:
        """Hand *response* to who asked for it; nobody may want it any more."""
        if response.opcode == Opcode.READ:
            key = (response.ledger_id, response.entry_id)
            reply = self._take_entry(key)
            if key != PROBE:
                self._note_read(response.ledger_id)
        else:
            reply = self._by_id.pop(response.request_id, None)
        if reply is not None:
            reply.resolve(response)

    def fail(self, failure: BookieUnavailable) -> None:
        """Tell all who wait that the connection is gone."""
        waiting = list(self)
        self._by_id.clear()
        self._by_entry.clear()
        for reply in waiting:
            reply.fail(failure)

    def _note_read(self, ledger_id: int) -> None:
        """A READ of the ledger was answered, wanted or not."""
        reads = self._reads.get(ledger_id)
        if reads is not None:
            reads.count -= 1
            if reads.count == 0:
                del self._reads[ledger_id]

    def _take_entry(self, key: tuple[int, int]) -> Reply | None:
        replies = self._by_entry.get(key)
        if not replies:
            return None
        reply = replies.popleft()
        if not replies:
            del self._by_entry[key]
        return reply

    def _forget(self, key: Key, reply: Reply) -> None:
        if isinstance(key, int):
            self._by_id.pop(key, None)
            return
        replies = self._by_entry.get(key)
        if replies is not None and reply in replies:
            replies.remove(reply)
            if not replies:
                del self._by_entry[key]
