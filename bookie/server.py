"""Sockets and the engine: chunks of bytes in, one buffer of responses out.

An add from socket to disk and back:

    receive_some ─► Conversation._take_in ─► Connection.feed (native/engine.py: one C call
    for the chunk: frames, memtable, journal buffer) ─► journal thread: write, sync ─►
    eventfd ─► Events (bookie/events.py) ─► Conversation.news ─► _send: one buffer

Nothing here runs once per add. What is not an add comes out of feed as a Request: reads
are answered at once from memory or in one hop to a worker thread for all that need the
disk; fences, calls and parked reads get tasks of their own, so many at a time.

Failures. What goes wrong while one peer is served ends its connection and nothing else,
a bug of ours too: no request may end the process. An OSError is not of a peer: the engine
raises it when the journal, a flush or memory failed, and the bookie ends with it. What
only reads the disk turns its OSError into an answer where that happens (answer.c, calls.py).

Bounds. A connection from which more than connection_bytes_max is unsynced or unsent is not
read from, nor is any while all together hold more than bytes_in_flight_max. A frame must
be whole within peer_timeout_s of waiting for its peer, a piece of a response must be
taken within it too. While a connection is idle it holds no buffer.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable

import trio

from bookie.bell import Bell
from bookie.budget import Budget
from bookie.config import BookieConfig
from bookie.door import Admitted, admit
from bookie.errors import PeerAtFault, PeerNotReading, PeerStalled
from bookie.events import Events
from bookie.incarnations import Incarnations
from bookie.outbox import Outbox
from bookie.reads import ANSWER_SIZE_MAX, DiskReads
from bookie.security import Security
from bookie.waits import Waits
from native.engine import Connection, Engine, Request, Verdict
from native.errors import BadKey, Full, OtherLedger
from native.frame import (
    Code,
    Flag,
    Opcode,
    batch_response,
    call_response,
    pulse,
    read_wait_response,
    response,
)

_log = logging.getLogger(__name__)

_CHUNK_SIZE = 256 << 10
# Each piece of a response has a deadline of its own, so a slow peer that moves on is kept.
_PIECE_SIZE = 256 << 10
_TASKS_MAX = 64  # fences and calls of one connection
_PARKED_MAX = 256  # parked reads of one connection
_WAIT_S_MAX = 60.0
_FENCE_S_MAX = 8.0  # less than clients wait: they hear that this bookie cannot tell
OPEN = Security()
_FENCE = int(Flag.FENCE)  # an operation on an enum costs as much as the rest of a read here

# A bookie without authentication answers AUTH with this: plugin "AuthDisabledPlugin" and
# an empty payload, in protobuf, behind the header of version 2, opcode 3.
_AUTH_BODY = b"\x02\x03\x00\x00\x0a\x12AuthDisabledPlugin\x12\x00"
_AUTH_ANSWER = len(_AUTH_BODY).to_bytes(4, "big") + _AUTH_BODY
_PULSE = pulse()


class Server:
    """What all conversations of a bookie share.

    Attributes:
        refused: connections closed at once because there were too many.
        dropped: connections ended for what their peer did or left undone.
        faults: connections ended by an error of ours while their peer was served.
    """

    def __init__(
        self,
        engine: Engine,
        events: Events,
        config: BookieConfig,
        answer_call: Callable[[bytes], Awaitable[bytes]],
        security: Security = OPEN,
        incarnations: Incarnations | None = None,
    ) -> None:
        self._tokens = itertools.count(1)
        self._conversations: dict[int, Conversation] = {}
        self._security = security
        self._at_door = 0
        self.engine = engine
        self.events = events
        self.answer_call = answer_call
        self.config = config
        self.incarnations = incarnations
        self.budget = Budget(config.bytes_in_flight_max)
        self.waits = Waits(engine)
        self.read_workers = trio.CapacityLimiter(config.read_workers)
        self.refused = 0
        self.dropped = 0
        self.faults = 0
        events.on_ready = self._tell_ready
        events.on_woken = self.waits.wake

    @property
    def connections(self) -> int:
        """Connections at present, with those that are not admitted yet."""
        return len(self._conversations) + self._at_door

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Talk with one peer until it leaves or breaks a rule; the stream is closed then.

        Raises:
            OSError: the engine failed; the bookie must end.
        """
        if self.connections >= self.config.connections_max:
            self.refused += 1
            await trio.aclose_forcefully(stream)
            return
        token = next(self._tokens)
        try:
            await self._converse(await self._admit(stream, token), token)
        except* (PeerAtFault, trio.BrokenResourceError, trio.ClosedResourceError) as ended:
            self.dropped += 1
            _log.debug("connection %d ended: %r", token, ended.exceptions)
        except* (OSError, trio.TrioInternalError):
            raise
        except* Exception as fault:  # noqa: BLE001 - whatever one peer brings about stays its own
            self.faults += 1
            _log.error(
                "connection %d is closed after an error in serving it; others go on. "
                "This is a bug: report the traceback",
                token,
                exc_info=fault,
            )
        finally:
            await trio.aclose_forcefully(stream)

    async def _admit(self, stream: trio.abc.Stream, token: int) -> Admitted:
        self._at_door += 1
        patience_s = self.config.peer_timeout_s or math.inf
        try:
            with trio.fail_after(patience_s):
                return await admit(stream, self._security)
        except trio.TooSlowError as slow:
            raise PeerStalled(f"connection {token}: no login within {patience_s:g} s") from slow
        except OSError as error:  # nothing of the engine was touched yet
            raise PeerAtFault(f"connection {token}: no login: {error}") from error
        finally:
            self._at_door -= 1

    async def _converse(self, admitted: Admitted, token: int) -> None:
        conversation = Conversation(self, admitted.stream, token)
        self._conversations[token] = conversation
        try:
            await conversation.run(admitted.first)
        finally:
            del self._conversations[token]
            conversation.close()

    def pulse(self, *, flushes: bool) -> None:
        """Let peers whose adds wait know that the disk moves.

        *flushes*: a full memtable is being flushed, too.
        """
        for conversation in self._conversations.values():
            conversation.pulse(flushes=flushes)

    def _tell_ready(self, token: int) -> None:
        conversation = self._conversations.get(token)
        if conversation is not None:
            conversation.news.ring()


class Conversation:
    """One connection: a task that receives, one that sends, and what they started.

    Attributes:
        news: rings when there may be something to send.
    """

    def __init__(self, server: Server, stream: trio.abc.Stream, token: int) -> None:
        config = server.config
        self._server = server
        self._engine = server.engine
        self._stream = stream
        self._token = token
        self._connection: Connection = server.engine.connect(token)
        self.news = Bell()
        self._eased = Bell()
        self._outbox = Outbox(server.budget, self.news)
        self._tasks = trio.Semaphore(_TASKS_MAX)
        self._bytes_max = config.connection_bytes_max
        self._frame_s = config.peer_timeout_s or math.inf
        self._send_s = config.peer_timeout_s or math.inf
        self._idle_s = config.idle_timeout_s or math.inf
        self._frame_left_s = self._frame_s
        self._partial = 0
        self._held = 0  # unsynced or unsent, answers in the outbox not included
        self._charged = 0  # the same and the frame that is not whole, as the budget has it
        self._in_send = 0
        self._asked = 0  # bytes of calls not yet answered
        self._parked = 0
        self._ended = False
        self._pulsing = self._pulse_due = self._listening = self._full = False
        self._acknowledged = False  # since the last look of pulse()

    async def run(self, first: bytes) -> None:
        """Serve until the peer closes or a rule is broken; what is owed is sent first.

        *first* was received already.
        """
        async with trio.open_nursery() as self._nursery:
            self._reads = DiskReads(
                self._engine, self._server.read_workers, self._outbox, self._nursery
            )
            self._nursery.start_soon(self._send)
            await self._receive(first)
            self._ended = True
            self.news.ring()
            self._nursery.cancel_scope.deadline = trio.current_time() + self._send_s

    def close(self) -> None:
        """Give everything back. Adds not yet synced stay in the journal."""
        self._connection.close()
        while self._outbox.size:
            self._outbox.take()
        self._server.budget.change(-self._charged)
        self._server.budget.mark_unfinished(self._token, False)

    # --- receiving ---------------------------------------------------------------------

    async def _receive(self, first: bytes) -> None:
        if first and not await self._take_in(first):
            return
        # The chunk is an argument and nothing else, so that none is held while waiting.
        while await self._take_in(await self._next_chunk()):
            while self._held + self._outbox.size > self._bytes_max:
                await self._eased.heard()
            await self._server.budget.room(self._token)

    async def _next_chunk(self) -> bytes:
        """The next bytes; none at the end. Only time spent waiting for the peer counts."""
        while True:
            started = trio.current_time()
            patience_s = self._frame_left_s if self._partial else self._idle_s
            with trio.move_on_after(patience_s):
                self._listening = True
                chunk = bytes(await self._stream.receive_some(_CHUNK_SIZE))
                self._listening = False
                self._frame_left_s -= trio.current_time() - started
                return chunk
            if self._partial or self._is_drained():
                raise PeerStalled(f"connection {self._token}: nothing came for {patience_s:g} s")

    async def _take_in(self, chunk: bytes) -> bool:
        """Feed a chunk to the engine; False when nothing more is to be read."""
        rest = memoryview(chunk)
        verdict = Verdict.OK
        # A frame that was put together and has to be tried again waits inside, without a rest.
        while rest or verdict in (Verdict.FULL, Verdict.AGAIN):
            space = self._server.events.space
            fed = self._connection.feed(rest)
            rest = rest[fed.used :]
            for request in fed.requests:
                await _HANDLERS[request.opcode](self, request)
            if fed.requests:
                await trio.lowlevel.checkpoint()  # answers from memory would never yield
            verdict = fed.verdict
            if verdict is Verdict.CLOSE:
                return False
            if verdict is Verdict.FULL:
                self._full = True
                await space.wait()
                self._full = False
            elif verdict is Verdict.AGAIN:
                await trio.to_thread.run_sync(
                    self._connection.look, limiter=self._server.read_workers
                )
        self._account()
        self._watch_frame(len(chunk))
        return bool(chunk)

    def _watch_frame(self, received: int) -> None:
        before, self._partial = self._partial, self._connection.backlog().partial
        # All of the chunk went to the frame that had begun: its time runs on.
        if not (before and self._partial == before + received):
            self._frame_left_s = self._frame_s
        self._server.budget.mark_unfinished(self._token, self._partial > 0)

    def _account(self) -> None:
        backlog = self._connection.backlog()
        self._held = (
            backlog.unsynced + backlog.ready + backlog.waiting + self._in_send + self._asked
        )
        charged = self._held + backlog.partial
        self._server.budget.change(charged - self._charged)
        self._charged = charged

    # --- requests that are not adds ----------------------------------------------------

    async def _on_read(self, request: Request) -> None:
        if request.flags & _FENCE:
            await self._start(self._fence, request)
        else:
            await self._read(request)

    async def _read(self, request: Request) -> None:
        await self._outbox.room()
        frame = self._engine.answer(request, use_disk=False, size_max=ANSWER_SIZE_MAX)
        if frame is None:
            await self._reads.put(request)
        else:
            self._outbox.put(frame)

    async def _fence(self, request: Request) -> None:
        """Fence the ledger; answer when that is durable, or not for long."""
        with trio.move_on_after(_FENCE_S_MAX) as patience:
            try:
                ticket = await self._fence_ticket(request)
            except (BadKey, OtherLedger):
                pass  # the answer checks it again and says so
            else:
                await self._server.events.synced(ticket)
        if patience.cancelled_caught:
            await self._outbox.room()
            self._outbox.put(_not_fenced(request))
        else:
            await self._read(request)

    async def _fence_ticket(self, request: Request) -> int:
        if request.key is None:
            raise BadKey(f"ledger {request.ledger_id}: a fencing read without a key")
        while True:
            space = self._server.events.space
            try:
                return self._engine.fence(request.ledger_id, request.key, request.incarnation)
            except Full:
                await space.wait()

    async def _on_read_wait(self, request: Request) -> None:
        waits = self._server.waits
        if request.wait_ms <= 0 or waits.is_over(request.ledger_id, request.known_lac):
            await self._read(request)
        elif self._parked >= _PARKED_MAX or waits.is_full:
            await self._outbox.room()
            self._outbox.put(_too_many(request))
        else:
            self._parked += 1
            self._nursery.start_soon(self._park, request)

    async def _park(self, request: Request) -> None:
        wait_s = min(request.wait_ms / 1000, _WAIT_S_MAX)
        await self._server.waits.park(request.ledger_id, request.known_lac, wait_s)
        self._parked -= 1
        await self._read(request)

    async def _on_pulse(self, _: Request) -> None:
        self._pulsing = True

    def pulse(self, *, flushes: bool) -> None:
        """Send a pulse if adds of the peer wait, and none was answered since the last call."""
        is_quiet, self._acknowledged = not self._acknowledged, False
        if not (self._pulsing and is_quiet) or (self._full and not flushes):
            return
        backlog = self._connection.backlog()
        if backlog.unsynced or backlog.partial or not self._listening:
            self._pulse_due = True
            self.news.ring()

    async def _on_incarnation(self, request: Request) -> None:
        """The peer means another ledger than the one here; what it sent next waits."""
        incarnations = self._server.incarnations
        if incarnations and await incarnations.is_over(request.ledger_id, request.incarnation):
            self._connection.refuse(request.ledger_id, request.incarnation)

    async def _on_auth(self, _: Request) -> None:
        await self._outbox.room()
        self._outbox.put(_AUTH_ANSWER)

    async def _on_call(self, request: Request) -> None:
        self._asked += len(request.body)
        await self._start(self._call, request)

    async def _call(self, request: Request) -> None:
        reply = await self._server.answer_call(request.body)
        await self._outbox.room()
        self._outbox.put(call_response(Code.OK, request.request_id, reply))
        self._asked -= len(request.body)

    async def _start(self, work: Callable[[Request], Awaitable[None]], request: Request) -> None:
        await self._tasks.acquire()
        self._nursery.start_soon(self._work, work, request)

    async def _work(self, work: Callable[[Request], Awaitable[None]], request: Request) -> None:
        try:
            await work(request)
        finally:
            self._tasks.release()
            self.news.ring()

    # --- sending -----------------------------------------------------------------------

    async def _send(self) -> None:
        while not (self._ended and self._is_drained()):
            await self.news.heard()
            while buffer := self._take_acks() or self._take_pulse() or self._outbox.take():
                await self._send_all(buffer)
            self._account()
            self._eased.ring()
        self._nursery.cancel_scope.cancel()

    def _take_acks(self) -> bytes:
        acks = self._connection.take()
        self._acknowledged = self._acknowledged or bool(acks)
        return acks

    def _take_pulse(self) -> bytes:
        is_due, self._pulse_due = self._pulse_due, False
        return _PULSE if is_due else b""

    async def _send_all(self, buffer: bytes) -> None:
        self._in_send = len(buffer)
        self._account()
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE_SIZE):
            with trio.move_on_after(self._send_s) as patience:
                await self._stream.send_all(view[start : start + _PIECE_SIZE])
            if patience.cancelled_caught:
                raise PeerNotReading(
                    f"connection {self._token}: took no responses for {self._send_s:g} s"
                )
        self._in_send = 0

    def _is_drained(self) -> bool:
        backlog = self._connection.backlog()
        return not (
            backlog.unsynced
            or backlog.waiting
            or backlog.ready
            or self._outbox.size
            or self._reads.is_busy
            or (self._parked and not self._ended)
            or self._tasks.value < _TASKS_MAX
        )


_HANDLERS: dict[int, Callable[[Conversation, Request], Awaitable[None]]] = {
    Opcode.READ: Conversation._on_read,
    Opcode.BATCH_READ: Conversation._on_read,
    Opcode.READ_WAIT: Conversation._on_read_wait,
    Opcode.AUTH: Conversation._on_auth,
    Opcode.CALL: Conversation._on_call,
    Opcode.PULSE: Conversation._on_pulse,
    Opcode.INCARNATION: Conversation._on_incarnation,
}


def _not_fenced(request: Request) -> bytes:
    ledger_id, entry_id = request.ledger_id, request.entry_id
    if request.opcode == Opcode.READ:
        return response(Opcode.READ, Code.IO_ERROR, ledger_id, entry_id)
    return batch_response(Code.IO_ERROR, ledger_id, entry_id, request.request_id)


def _too_many(request: Request) -> bytes:
    return read_wait_response(
        Code.TOO_MANY, request.ledger_id, request.entry_id, request.request_id, -1, False
    )
