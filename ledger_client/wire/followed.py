"""The quiet ledgers of one bookie that a client follows, by one call for all of them.

    Follower ── follow ──► FollowedLedgers ── AwaitLedgers ──► bookie   one call, which waits there
             ◄── wake ───                  ◄─ LedgersMoved ──┘

A message adds ledgers, and a task per bookie sends it; a follower that waits costs nothing else.
A ledger is followed until the bookie has news of it once. If the connection breaks, or the bookie
refuses, all followers are woken, and ask bookies as they did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

import trio

from ledger_client.wire.inflight import Reply
from metadata.calls import (
    WATCHED_AT_ONCE_MAX,
    AwaitLedgers,
    FollowedLedger,
    LedgersMoved,
    decode_reply,
    encode_request,
)
from metadata.errors import BadRecord
from native import frame
from native.frame import Code

WAIT_S = 10.0
"""A bookie that hangs is noticed after this time at the latest."""
ANSWER_S = 2.0
"""How late an answer may be."""
GATHER_S = 0.02
"""Ledgers that come within this time go into one message."""
REFUSED_S = 60.0
"""A bookie that refused is not asked for so long."""

Wake = Callable[[], None]
T = TypeVar("T")


class Asking(Protocol):
    """The connection to the bookie."""

    def next_request_id(self) -> int:
        """Return a request id that no open request has."""

    def ask(self, request: bytes, key: int, on_arrival: Callable[[], None]) -> Reply:
        """Send *request*; *on_arrival* is called when the Reply has a response or a failure."""

    def suspect(self, since: float) -> None:
        """Drop the connection soon if nothing was received after *since*."""


class FollowedLedgers:
    """Follows ledgers at the bookie of *connection*, by a task of *nursery* while there are any."""

    def __init__(self, connection: Asking, nursery: trio.Nursery) -> None:
        self._connection = connection
        self._nursery = nursery
        self._wakes: dict[int, tuple[Wake, ...]] = {}
        self._known: dict[int, int] = {}
        self._add: dict[int, int] = {}
        self._drop: dict[int, None] = {}
        self._news = trio.Event()
        self._is_running = False
        self._pending: Reply | None = None
        self._refused_at = float("-inf")

    @property
    def takes(self) -> bool:
        """False for a while after the bookie refused."""
        return trio.current_time() - self._refused_at >= REFUSED_S

    def follow(self, ledger_id: int, known_lac: int, wake: Wake) -> None:
        """Call *wake*, once, when the last confirmed entry may be above *known_lac*.

        Also when the ledger may have ended, and when the bookie cannot tell any more.
        """
        self._wakes[ledger_id] = (*self._wakes.get(ledger_id, ()), wake)
        if ledger_id in self._known:  # the one that knows least decides
            known_lac = min(known_lac, self._known[ledger_id])
        self._known[ledger_id] = self._add[ledger_id] = known_lac
        self._drop.pop(ledger_id, None)
        self._news.set()
        if not self._is_running:
            self._is_running = True
            self._nursery.start_soon(self._run)

    def leave(self, ledger_id: int, wake: Wake) -> None:
        """Undo follow(); harmless if it woke. The bookie learns it with the next message."""
        wakes = tuple(each for each in self._wakes.get(ledger_id, ()) if each is not wake)
        if wakes:
            self._wakes[ledger_id] = wakes
        elif ledger_id in self._wakes:
            self._forget(ledger_id)
            if self._add.pop(ledger_id, None) is None:
                self._drop[ledger_id] = None

    async def _run(self) -> None:
        try:
            while self._wakes:
                await trio.sleep(GATHER_S)
                self._news = trio.Event()
                sent_at = self._send()
                with trio.move_on_after(WAIT_S + ANSWER_S) as scope:
                    await self._news.wait()
                if scope.cancelled_caught:
                    self._connection.suspect(sent_at)
                    self._give_up()
        finally:
            self._is_running = False

    def _send(self) -> float:
        request = AwaitLedgers(
            [FollowedLedger(*each) for each in _some(self._add.items())],
            [*_some(self._drop)],
            int(WAIT_S * 1000),
        )
        for known in request.add:
            del self._add[known.ledger_id]
        for ledger_id in request.drop:
            del self._drop[ledger_id]
        if self._add:
            self._news.set()  # the rest at once
        request_id = self._connection.next_request_id()
        body = frame.call(request_id, encode_request(request))
        arrived: list[Reply] = []
        self._pending = reply = self._connection.ask(
            body, request_id, lambda: self._take(arrived[0] if arrived else None)
        )
        arrived.append(reply)
        if reply.arrived:
            self._take(reply)
        return reply.sent_at

    def _take(self, reply: Reply | None) -> None:
        """Wake the followers of the ledgers in an answer; all of them after a failure."""
        if reply is None:
            return  # it failed at once, and is taken after
        if reply is self._pending:
            self._pending = None
            self._news.set()
        response = reply.response
        if response is None:
            self._give_up()
            return
        try:
            found = decode_reply(response.body) if response.code == Code.OK else None
        except BadRecord:
            found = None
        if not isinstance(found, LedgersMoved):
            self._refused_at = trio.current_time()
            self._give_up()
            return
        for ledger_id in found.ledger_ids:
            if ledger_id not in self._add:  # else it is about what is followed no longer
                self._wake(ledger_id)

    def _wake(self, ledger_id: int) -> None:
        wakes = self._wakes.get(ledger_id, ())
        self._forget(ledger_id)
        for wake in wakes:
            wake()

    def _give_up(self) -> None:
        self._add.clear()
        self._drop.clear()
        for ledger_id in list(self._wakes):
            self._wake(ledger_id)

    def _forget(self, ledger_id: int) -> None:
        self._wakes.pop(ledger_id, None)
        self._known.pop(ledger_id, None)


def _some(items: Iterable[T]) -> Iterator[T]:
    return islice(items, WATCHED_AT_ONCE_MAX)
