"""What connections to bookies wait for and have declared, without I/O.

Declarations  ledgers whose incarnation the bookie was sent
ReplyBook     requests that are not answered yet
Turns         calls that wait until others are answered
fail_after    and others: deadlines that hardly count the time the event loop stood still
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

import trio

from ledger_client.errors import BookieUnavailable
from metadata.errors import MetadataUnavailable
from native import frame
from native.frame import Opcode
from native.link import Response

DECLARED_MAX = 16384
"""Ledgers declared on one connection at a time; a bookie remembers four times as many."""
PROBE = (0, (1 << 63) - 1)
"""A ledger and an entry that no bookie has; it answers a READ of it without a disk access."""
LATE_S = 60.0
"""For so long a late answer to an abandoned READ is expected; bookies may drop one."""
STALL_S = 0.5
"""What a pass of the loop counts at most."""
STALLS_MAX = 100
"""So many stalls are remembered, for waits that begin anew."""
IDLE_PASSES_MAX = 100
"""After so many without a wait, the loop's passes are measured no more."""
_CLOCKS_APART_S = 0.001

Key = int | tuple[int, int]
"""A request id, or for READ the ledger and the entry."""


# --- ledgers by id and incarnation --------------------------------------------------------


class LedgerName(NamedTuple):
    """Identifies one ledger even if its id is reused. Incarnation 0 means that it is unknown."""

    ledger_id: int
    incarnation: int


class Declarations:
    """The ledgers whose incarnation the bookie was sent on this connection.

    A ledger id may be reused, so the first frame about a ledger is preceded by one that
    declares which incarnation the id means from here on. That costs 24 bytes and no answer,
    because frames keep their order. A bookie that stores another incarnation under the id
    looks up in metadata which of the two is current before it goes on.
    """

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """*put* appends a frame to the queue."""
        self._put = put
        self._declared: dict[int, int] = {}  # the oldest first
        self._held: dict[int, int] = {}

    def declare(self, name: LedgerName) -> None:
        """Let the ledger id mean *name* in every frame that is queued after this call."""
        if self._declared.get(name.ledger_id, 0) == name.incarnation:
            return
        self._declared.pop(name.ledger_id, None)
        if name.incarnation:
            self._declared[name.ledger_id] = name.incarnation
        self._put(frame.incarnation(*name))
        if len(self._declared) > DECLARED_MAX:
            self._withdraw_oldest()

    def restore(self, ledger_id: int) -> None:
        """Declare the writer's ledger again if a reader declared another incarnation."""
        held = self._held.get(ledger_id)
        if held is not None:
            self.declare(LedgerName(ledger_id, held))

    def hold(self, name: LedgerName) -> None:
        """Keep *name* declared until release(): a writer's frames bypass declare()."""
        self._held[name.ledger_id] = name.incarnation
        self.declare(name)

    def release(self, ledger_id: int) -> None:
        """End hold(), for a writer that is detached."""
        self._held.pop(ledger_id, None)
        self.forget(ledger_id)

    def forget(self, ledger_id: int) -> None:
        """Declare the ledger anew before its next frame, so that the bookie looks it up again.

        Called when the bookie answered that it does not know which incarnation is current.
        """
        if self._declared.get(ledger_id):
            self.declare(LedgerName(ledger_id, 0))
            self.restore(ledger_id)

    def _withdraw_oldest(self) -> None:
        for ledger_id in self._declared:
            if ledger_id not in self._held:
                self.declare(LedgerName(ledger_id, 0))
                return


# --- requests and their replies -----------------------------------------------------------


def _nothing() -> None:
    pass


class Reply:
    """A pending request: not answered yet, answered by a response, or failed."""

    __slots__ = (
        *("_abandon", "_on_arrival", "abandoned_at"),
        *("bookie_id", "failure", "response", "sent_at"),
    )

    def __init__(self, bookie_id: str, on_arrival: Callable[[], None]) -> None:
        self.bookie_id = bookie_id
        self.response: Response | None = None
        self.failure: BookieUnavailable | None = None
        self.sent_at = trio.current_time()
        self.abandoned_at: float | None = None
        self._on_arrival = on_arrival
        self._abandon: Callable[[], None] | None = None

    @property
    def arrived(self) -> bool:
        """True once there is a response or a failure."""
        return self.response is not None or self.failure is not None

    def resolve(self, response: Response) -> None:
        """Store the response and call on_arrival."""
        self.response = response
        self._abandon = None  # it refers to this reply, and the response should not outlive use
        self._on_arrival()

    def fail(self, failure: BookieUnavailable) -> None:
        """Store the failure and call on_arrival: there will be no response."""
        self.failure = failure
        self._abandon = None
        self._on_arrival()

    def abandon(self) -> None:
        """Stop waiting; the response is dropped when it arrives."""
        if self._abandon is not None:
            self._abandon()
            self._abandon, self._on_arrival = None, _nothing  # what asked is not kept


class Call(Reply):
    """A pending CALL that one task waits for; *number* is that of its buffer in Outgoing."""

    __slots__ = ("_done", "number")

    def __init__(self, bookie_id: str) -> None:
        self._done = trio.Event()
        super().__init__(bookie_id, self._done.set)
        self.number = 0

    async def wait(self) -> Response:
        """Return the response.

        Raises:
            BookieUnavailable: the connection was lost first.
        """
        await self._done.wait()
        if self.failure is not None:
            raise self.failure
        assert self.response is not None
        return self.response


class _Reads:
    """Unanswered READs of one ledger, including abandoned ones."""

    __slots__ = ("count", "incarnation")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.count = 0


class ReplyBook:
    """The open requests of one connection, and the replies that belong to them.

    READ has no request id on the wire, so its responses are matched by ledger and entry, the
    oldest request first. One that was abandoned keeps its place for LATE_S: its late answer is
    older than the next request, which may fence. Two equal requests under way get equal
    responses, so their order does not matter. It would matter if the ledger's id was reused between
    the two: then the second must be sent on another connection. All other requests carry a request
    id.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, Reply] = {}
        self._by_entry: dict[tuple[int, int], deque[Reply]] = {}
        """also those that were abandoned"""
        self._reads: dict[int, _Reads] = {}

    def __iter__(self) -> Iterator[Reply]:
        yield from self._by_id.values()
        for replies in self._by_entry.values():
            yield from (reply for reply in replies if reply.abandoned_at is None)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    @property
    def count(self) -> int:
        """How many requests with an id are open."""
        return len(self._by_id)

    def is_ambiguous(self, key: Key, incarnation: int) -> bool:
        """True if a READ of another incarnation of its ledger may still be answered."""
        if isinstance(key, int):
            return False
        reads = self._reads.get(key[0])
        return reads is not None and reads.incarnation != incarnation

    def add(self, key: Key, reply: Reply, incarnation: int = 0) -> None:
        """Expect the response of *key*, about that incarnation of its ledger, for *reply*."""
        if isinstance(key, int):
            self._by_id[key] = reply
        else:
            replies = self._by_entry.setdefault(key, deque())
            while replies and _is_over(replies[0], reply.sent_at):
                replies.popleft()
            replies.append(reply)
            if key != PROBE:
                self._reads.setdefault(key[0], _Reads(incarnation)).count += 1
        reply._abandon = lambda: self._forget(key, reply)

    def resolve(self, response: Response) -> None:
        """Pass *response* to its reply; drop it if the reply was abandoned."""
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
        """Fail all open requests, because the connection is lost."""
        waiting = list(self)
        self._by_id.clear()
        self._by_entry.clear()
        for reply in waiting:
            reply.fail(failure)

    def _note_read(self, ledger_id: int) -> None:
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
        return reply if reply.abandoned_at is None else None

    def _forget(self, key: Key, reply: Reply) -> None:
        if isinstance(key, int):
            self._by_id.pop(key, None)
            return
        reply.abandoned_at = trio.current_time()


def _is_over(reply: Reply, now: float) -> bool:
    """Return True for one that was abandoned so long ago that nobody expects an answer."""
    return reply.abandoned_at is not None and now > reply.abandoned_at + LATE_S


# --- deadlines ------------------------------------------------------------------------------
# While the event loop stands still, answers lie in sockets. Then trio ends what is overdue, and
# only afterwards reads: a handler that computes for a minute would find that no bookie answered,
# although all of them did. So each pass of the loop is measured while requests are under way, and
# counts as STALL_S at most. A peer that is really gone is given up after limit / STALL_S passes,
# however long they take. On trio's virtual clocks nothing is changed.


class _Patience(trio.abc.Instrument):
    """The waits of one event loop. It measures the loop's passes while there are any."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, float] = {}
        """and when each began"""
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_MAX)
        """when each ended, and what of it does not count"""
        self._measures = False
        self._idle_passes = 0
        self._passed_at = 0.0
        self._ahead_s = _ahead_s()

    def add(self, scope: trio.CancelScope) -> None:
        now = self._scopes[scope] = trio.current_time()
        if not self._measures:
            self._measures, self._idle_passes, self._passed_at = True, 0, now
            trio.lowlevel.add_instrument(self)

    def remove(self, scope: trio.CancelScope) -> None:
        del self._scopes[scope]

    def after_io_wait(self, timeout: float) -> None:
        """Called between reading which sockets are ready and ending what is overdue."""
        now, passed_at = trio.current_time(), self._passed_at
        self._passed_at = now
        self._idle_passes = 0 if self._scopes else self._idle_passes + 1
        over_s = now - passed_at - timeout - STALL_S
        if self._idle_passes > IDLE_PASSES_MAX:
            self._measures = False
            trio.lowlevel.remove_instrument(self)
        elif over_s > 0 and self._is_real():
            self._stalls.append((now, over_s))
            for scope, began_at in self._scopes.items():
                scope.deadline += min(over_s, now - began_at)

    def stalled_s(self, since: float) -> float:
        """Return the seconds since then that do not count."""
        return sum(min(over_s, at - since) for at, over_s in self._stalls if at > since)

    def _is_real(self) -> bool:
        """False on a virtual clock: it leaps over what nobody waits for."""
        return abs(_ahead_s() - self._ahead_s) < _CLOCKS_APART_S


_of_loop: trio.lowlevel.RunVar[_Patience] = trio.lowlevel.RunVar("patience")


def _patience() -> _Patience:
    try:
        return _of_loop.get()
    except LookupError:
        made = _Patience()
        _of_loop.set(made)
        return made


def _ahead_s() -> float:
    """Return how far trio's clock is ahead of the real one; a constant unless it is virtual."""
    return trio.current_time() - time.perf_counter()


def ends_at(since: float, limit_s: float) -> float:
    """Return when a wait of *limit_s* that began at *since* ends, by trio's clock."""
    return since + limit_s + _patience().stalled_s(since)


class _Limit:
    """A block with a deadline that stalls of the loop move. Each call has several: it is quick."""

    __slots__ = ("_fails", "_patience", "_scope")

    def __init__(self, at: float, *, fails: bool) -> None:
        self._scope = trio.CancelScope(deadline=at)
        self._fails = fails
        self._patience = _patience()

    def __enter__(self) -> trio.CancelScope:
        scope = self._scope.__enter__()
        self._patience.add(scope)
        return scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._patience.remove(self._scope)
        is_caught = bool(self._scope.__exit__(kind, error, trace))
        if self._fails and self._scope.cancelled_caught:
            raise trio.TooSlowError
        return is_caught


def move_on_at(at: float) -> _Limit:
    """As trio.move_on_at(); stalls of the loop from now on move the deadline."""
    return _Limit(at, fails=False)


def move_on_after(limit_s: float) -> _Limit:
    """As trio.move_on_after(); stalls of the loop move the deadline."""
    return _Limit(trio.current_time() + limit_s, fails=False)


def fail_after(limit_s: float) -> _Limit:
    """As trio.fail_after(); stalls of the loop move the deadline. Raises TooSlowError."""
    return _Limit(trio.current_time() + limit_s, fails=True)


# --- turns of calls -----------------------------------------------------------------------
# Many calls at once would wait for each other at a bookie, and the last ones run into a deadline
# although each takes milliseconds. So a bounded number is under way.


_limit: ContextVar[trio.CancelScope | None] = ContextVar("_limit", default=None)


class _Limited:
    """limited(), as a class: each call has one, and a generator would take twice the time."""

    __slots__ = ("_limit", "_limit_s", "_token")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._limit = fail_after(self._limit_s)
        self._token = _limit.set(self._limit.__enter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        _limit.reset(self._token)
        return self._limit.__exit__(kind, error, trace)


told: ContextVar[list[str] | None] = ContextVar("told", default=None)
"""Takes what bookies say of a call that they cannot do now, in the attempts so far."""


def limited(limit_s: float) -> AbstractContextManager[None, bool | None]:
    """Limit the block to *limit_s*, not counting that its calls wait for their turn.

    That wait has its own end: see Turns. Raises trio.TooSlowError.
    """
    return _Limited(limit_s)


class Turns:
    """The turns of calls, in the order in which they came: *count_max* are under way at a time.

    A call waits for its turn while others are answered. It is refused if none was for *timeout_s*.

    Attributes:
        answered_at: when the last answer came, by trio's clock.
    """

    def __init__(self, count_max: int, timeout_s: float) -> None:
        self._free = count_max
        self._timeout_s = timeout_s
        self._waiting: OrderedDict[trio.Event, None] = OrderedDict()
        self.answered_at = -math.inf

    def note_answer(self) -> None:
        """Note that a call was answered."""
        self.answered_at = trio.current_time()

    def take(self, name: str) -> AbstractAsyncContextManager[None]:
        """Have a turn for the length of the block. Raises MetadataUnavailable, naming *name*."""
        return _OneTurn(self, name)

    async def _wait(self, name: str) -> None:
        turn, asked_at = trio.Event(), trio.current_time()
        limit = _limit.get()
        left_s = math.inf if limit is None else limit.deadline - asked_at
        self._waiting[turn] = None
        try:
            if limit is not None:
                limit.deadline = math.inf
            while not turn.is_set():
                until = self._until(asked_at, name)
                with trio.move_on_at(until):
                    await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on()
            else:
                del self._waiting[turn]
            raise
        finally:
            if limit is not None and left_s < math.inf:  # else another call of the block waits
                limit.deadline = trio.current_time() + left_s

    def _until(self, asked_at: float, name: str) -> float:
        until = max(asked_at, self.answered_at) + self._timeout_s
        if trio.current_time() < until:
            return until
        raise MetadataUnavailable(
            f"metadata: {name}: no answer in {self._timeout_s:g} s to the calls before this one,"
            f" {len(self._waiting)} wait for their turn"
        )

    def _pass_on(self) -> None:
        if self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            turn.set()
        else:
            self._free += 1


class _OneTurn:
    """Turns.take(), as a class for the same reason as _Limited."""

    __slots__ = ("_name", "_turns")

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name

    async def __aenter__(self) -> None:
        if self._turns._free:
            self._turns._free -= 1
        else:
            await self._turns._wait(self._name)

    async def __aexit__(self, *_: object) -> None:
        self._turns._pass_on()
