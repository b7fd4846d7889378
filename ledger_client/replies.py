"""Which answer belongs to which question on one connection.

READ has no request id on the wire, so its answers are matched by ledger and
entry, the oldest question first; two equal questions get equal answers, so it
does not matter which gets which. Everything else carries a request id.
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


class ReplyBook:
    """The open questions of one connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Reply] = {}
        self._by_entry: dict[tuple[int, int], deque[Reply]] = {}

    def __iter__(self) -> Iterator[Reply]:
        yield from self._by_id.values()
        for replies in self._by_entry.values():
            yield from replies

    def add(self, key: Key, reply: Reply) -> None:
        """Expect the answer of *key* for *reply*."""
        if isinstance(key, int):
            self._by_id[key] = reply
        else:
            self._by_entry.setdefault(key, deque()).append(reply)
        reply._abandon = lambda: self._forget(key, reply)

    def resolve(self, response: Response) -> None:
        """Hand *response* to who asked for it; nobody may want it any more."""
        if response.opcode == Opcode.READ:
            reply = self._take_entry((response.ledger_id, response.entry_id))
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
