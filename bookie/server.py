"""Sockets and the engine: chunks of bytes in, one buffer of responses out.

An add from socket to disk and back:

    receive_some ─► Conversation._take_in ─► Connection.feed (native/engine.py: one C call
    for the chunk: frames, memtable, journal buffer) ─► journal thread: write, sync ─►
    eventfd ─► Events (bookie/events.py) ─► Conversation.news ─► _send: one buffer

No Python runs per add, nor per READ: those of a chunk are answered together. feed() returns every
other frame as a Request. A read is answered at once if memory has the entry; all others that wait
for the disk share one hop to a worker thread. Fences, calls and parked reads run in tasks of their
own, in bounded number.

Failures. An error while serving one peer, even a bug, ends that connection and nothing else: no
request may end the process. An OSError is different: the engine raises it when the journal, a
flush or memory failed, and the bookie ends with it. Code that only reads the disk turns its
OSError into a response itself (answer.c, calls.py).

Bounds. All connections together hold bytes_in_flight_max, in four pools (budget.py), so that a peer
that does not read its responses delays no other's adds. A connection with more than
connection_bytes_max unsynced or unsent is not read from. A frame must be complete, and a chunk of
a response taken, within peer_timeout_s; sooner while others wait for the memory. Memory for a
call's response is reserved before the call is made. connection_limits.py bounds the number of
connections. An idle connection holds no buffer.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable

import trio

from bookie.admission import AdmittedPeer, UncheckedLogins, admit
from bookie.budget import PRESSED_S, SMALL_SIZE, MemoryBudget, Pool
from bookie.config import BookieConfig
from bookie.connection_limits import ConnectionLimits, TooManyConnections
from bookie.errors import PeerAtFault
from bookie.events import Events, Wakeup
from bookie.fences import Fences
from bookie.hints import HintBox, Hints
from bookie.incarnations import Incarnations, Newcomer
from bookie.listeners import has_unread, peer_address
from bookie.outbox import CallRoom, Outbox, ParkedCalls
from bookie.parked import FollowedLedgers, ParkedReads
from bookie.reads import ANSWER_SIZE_MAX, DiskReads
from bookie.refusals import NO_LOGIN, not_fenced, too_many
from bookie.security import Security
from native.connection import Backlog, Connection, Verdict
from native.engine import Engine, Reads
from native.frame import Code, Flag, Opcode, Request, call_response, pulse

_log = logging.getLogger(__name__)

_CHUNK_SIZE = 256 << 10
# Each chunk of a response has a deadline of its own, so a slow peer that makes progress is kept.
_PIECE_SIZE = 256 << 10
_FRAME_PIECES = 10  # of the time that a frame may take
_PARKED_MAX = 256  # parked reads of one connection, and parked calls
_TASKS_MAX = 64 + _PARKED_MAX + 2  # fences and calls of one connection; two wait for news
_CALL_SIZE = 4 << 10  # of the task of a call
_LOGIN_S_MAX = 10.0
_WAIT_S_MAX = 60.0
_FENCE_S_MAX = 8.0  # less than clients wait, so that they get an answer: state unknown
OPEN = Security()
_FENCE = int(Flag.FENCE)  # an operation on an enum costs as much as the rest of a read here
_PULSE = pulse()


class Server:
    """Serves all connections of a bookie.

    Attributes:
        refused: connections closed at once because there were too many and none was idle.
        dropped: connections ended because their peer broke a rule or was too slow.
        faults: connections ended by a bug of the bookie.
    """

    def __init__(
        self,
        engine: Engine,
        events: Events,
        config: BookieConfig,
        answer_call: Callable[[bytes, CallRoom], Awaitable[bytes]],
        security: Security = OPEN,
        incarnations: Incarnations | None = None,
        hints: Hints | None = None,
    ) -> None:
        self._tokens = itertools.count(1)
        self._conversations: dict[int, Conversation] = {}
        self.security = security
        self.engine = engine
        self.events = events
        self.answer_call = answer_call
        self.config = config
        self.incarnations = incarnations
        self.fences = Fences(engine, events, incarnations)
        engine.set_guarded(incarnations is not None)
        self.hints = hints
        self.budget = MemoryBudget(config.bytes_in_flight_max)
        self.budget.on_pressed = self._close_hoarders
        self.limits = ConnectionLimits(config.connections_max)
        self.parked_reads = ParkedReads(engine)
        self.parked_calls = ParkedCalls()
        self.read_workers = trio.CapacityLimiter(config.read_workers)
        self.refused = 0
        self.dropped = 0
        self.faults = 0
        self.unchecked_logins = UncheckedLogins()
        events.on_ready = self._notify_ready
        events.on_woken = self.parked_reads.wake

    @property
    def connections(self) -> int:
        """Connections now, including those that are not admitted yet."""
        return self.limits.served + self.limits.pending

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it leaves or breaks a rule, then close the stream.

        Raises:
            OSError: the engine failed; the bookie must end.
        """
        token = next(self._tokens)
        address = peer_address(stream) or f"connection {token}"
        try:
            with self.limits.admit(token, address):
                admitted = await self._admit(stream, token)
            await self._converse(admitted, token, address)
        except* TooManyConnections as refused:
            self.refused += 1
            _log.debug("connection %d refused: %s", token, refused.exceptions[0])
        except* (PeerAtFault, trio.BrokenResourceError, trio.ClosedResourceError) as ended:
            self.dropped += 1
            _log.debug("connection %d ended: %r", token, ended.exceptions)
        except* (OSError, trio.TrioInternalError):
            raise
        except* Exception as fault:  # noqa: BLE001 - an error of one connection must not end others
            self.faults += 1
            _log.error(
                "connection %d is closed after an error in serving it; others go on. "
                "This is a bug: report the traceback",
                token,
                exc_info=fault,
            )
        finally:
            await trio.aclose_forcefully(stream)

    async def _admit(self, stream: trio.abc.Stream, token: int) -> AdmittedPeer:
        patience_s = min(self.config.peer_timeout_s or math.inf, _LOGIN_S_MAX)
        idle_s = self.config.idle_timeout_s or math.inf
        try:
            return await admit(stream, self.security, patience_s=patience_s, idle_s=idle_s)
        except trio.TooSlowError as slow:
            raise PeerAtFault(f"connection {token}: no login in time") from slow
        except OSError as error:  # the engine was not involved yet
            raise PeerAtFault(f"connection {token}: no login: {error}") from error

    def _close_hoarders(self, pool: Pool, address: str | None) -> None:
        """End conversations without progress of *address*, or of any, that hold memory of *pool*.

        Those that hold most go first, until there is room again. The addresses of all of them
        get a smaller share from now on, so that the freed memory goes to others.
        """
        hoards = [
            (conversation.standing_hoard(pool), conversation)
            for conversation in self._conversations.values()
            if address in (None, conversation.address)
        ]
        left = pool.surplus(address)
        for hoard, conversation in sorted(hoards, key=lambda each: each[0], reverse=True):
            if hoard > 0:
                self.budget.punish(conversation.address)
            if hoard > 0 and left >= 0:
                conversation.end(PeerAtFault("it made no progress while others waited for memory"))
            left -= hoard

    async def _converse(self, admitted: AdmittedPeer, token: int, address: str) -> None:
        conversation = Conversation(self, admitted.stream, token, address)
        self._conversations[token] = conversation
        try:
            with self.limits.serve(address, conversation):
                await conversation.run(admitted.first)
        finally:
            del self._conversations[token]
            conversation.close()

    def pulse(self, *, flushes: bool) -> None:
        """Send pulses to peers whose adds wait, because the disk makes progress.

        Also release the memory of adds that were synced, of peers that read nothing.
        *flushes*: a full memtable is being flushed too.
        """
        for conversation in self._conversations.values():
            conversation.pulse(flushes=flushes)

    def _notify_ready(self, token: int) -> None:
        conversation = self._conversations.get(token)
        if conversation is not None:
            conversation.news.set()


class Conversation:
    """One connection: a task that receives, one that sends, and the tasks of requests.

    Attributes:
        address: its share of the budget is used.
        news: set when there may be something to send.
    """

    def __init__(self, server: Server, stream: trio.abc.Stream, token: int, address: str) -> None:
        config = server.config
        self.address = address
        self._server = server
        self._engine = server.engine
        self._stream = stream
        self._token = token
        self._connection: Connection = server.engine.connect(token)
        self.news = Wakeup()
        self._eased = Wakeup()
        self._outbox = Outbox(server.budget, address, self.news)
        self._tasks = trio.Semaphore(_TASKS_MAX)
        self._bytes_max = config.connection_bytes_max
        self._frame_s = config.peer_timeout_s or math.inf
        self._send_s = config.peer_timeout_s or math.inf
        self._idle_s = config.idle_timeout_s or math.inf
        self._frame_left_s = self._frame_s
        self._partial = 0
        self._receiving_since = math.inf
        self._sending_since = math.inf
        self._sent_at = -math.inf
        self._hearing = trio.CancelScope()
        self._leaving = False
        self._received = 0  # this connection's part of the pool *received*
        self._unfinished = 0
        self._unsent = 0  # without the responses in the outbox
        self._in_send = 0
        self._calls_size = 0  # bytes of calls not yet answered
        self._parked = 0
        self._parked_here = ParkedCalls(_PARKED_MAX)
        self._hints = None if server.hints is None else HintBox(server.hints)
        self._followed = FollowedLedgers(server.engine, server.parked_reads)
        self._ended = False
        self._pulsing = self._pulse_due = self._listening = self._full = False
        self._acknowledged = False  # since the last call of pulse()
        self._fault: PeerAtFault | None = None

    async def run(self, first: bytes) -> None:
        """Serve until the peer closes or breaks a rule; send pending responses first.

        *first*: bytes received during the login.
        """
        async with trio.open_nursery() as self._nursery:
            self._reads = DiskReads(
                self._engine, self._server.read_workers, self._outbox, self._nursery
            )
            self._nursery.start_soon(self._send)
            await self._receive(first)
            self._ended = True
            self.news.set()
            self._nursery.cancel_scope.deadline = trio.current_time() + self._send_s
        if self._fault is not None:
            raise self._fault

    def standing_hoard(self, pool: Pool) -> int:
        """Return bytes held of *pool*, if the peer made no progress for PRESSED_S; else 0."""
        budget = self._server.budget
        if pool is budget.unfinished:
            hoard, since = self._unfinished, self._receiving_since
        elif pool is budget.unsent:
            hoard, since = self._unsent + self._outbox.size, self._sending_since
        else:
            return 0
        return hoard if trio.current_time() - since >= PRESSED_S else 0

    @property
    def quiet_since(self) -> float:
        """When it last received or sent something; infinity while it does not listen."""
        return max(self._receiving_since, self._sent_at)

    def is_idle(self) -> bool:
        """True if it owes nothing, and nothing has arrived that it has not received."""
        is_busy = self._partial or self._in_send or not (self._listening and self._is_drained())
        return not (is_busy or has_unread(self._stream))

    def leave(self) -> None:
        """Receive nothing more, and close the connection once everything is answered."""
        self._leaving = True
        self._hearing.cancel()

    def end(self, fault: PeerAtFault) -> None:
        """Close the connection for this reason."""
        self._fault = fault
        self._nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Release all memory. Adds that are not synced yet stay in the journal."""
        self._connection.close()
        if self._hints is not None:
            self._hints.close()
        self._followed.close()
        while self._outbox.size:
            self._outbox.take()
        budget = self._server.budget
        budget.received.change(self.address, -self._received)
        budget.unfinished.change(self.address, -self._unfinished)
        budget.unsent.change(self.address, -self._unsent)
        self._received = self._unfinished = self._unsent = 0
        budget.unfinished.mark_unfinished(self._token, False)

    # --- receiving ---------------------------------------------------------------------

    async def _receive(self, first: bytes) -> None:
        if first and not await self._take_in(first):
            return
        budget = self._server.budget
        # The chunk is only an argument, so that no buffer is held while waiting.
        while await self._take_in(await self._next_chunk()):
            while self._received + self._unsent + self._outbox.size > self._bytes_max:
                await self._eased.wait()
            if self._received + self._unfinished > SMALL_SIZE:  # a frame may become an add
                await budget.received.room(self.address)
            if self._unfinished > SMALL_SIZE:
                await budget.unfinished.room(self.address, self._token)
            await self._unsent_room()

    async def _unsent_room(self) -> None:
        """Wait while memory for responses is used up and this peer holds part of it.

        Its part: responses that it has not taken, and calls that wait for memory. Others may
        release memory while this connection is idle, so the pool is checked too.
        """
        pool = self._server.budget.unsent
        while (
            self._unsent + self._outbox.size - self._parked_here.count * _CALL_SIZE > SMALL_SIZE
            and not pool.has_room(self.address)
        ):
            with trio.move_on_after(PRESSED_S):
                await self._eased.wait()

    async def _next_chunk(self) -> bytes:
        """Return the next bytes, none at the end. Only time waiting for the peer counts.

        The time for a frame is waited in pieces: a pause of this process counts as one of them.
        """
        size, chunk = self._chunk_size(), None
        while not self._leaving:
            started = trio.current_time()
            self._receiving_since = min(self._receiving_since, started)
            piece_s = min(self._frame_left_s, self._frame_s / _FRAME_PIECES)
            with trio.move_on_after(piece_s if self._partial else self._idle_s) as self._hearing:
                self._listening = True
                chunk = bytes(await self._stream.receive_some(size))
                self._listening = False
                self._receiving_since = math.inf
            now = trio.current_time()  # a sum of times may be less than its parts: no rest is left
            self._frame_left_s -= piece_s if now >= self._hearing.deadline else now - started
            if chunk is not None:
                return chunk
            is_late = self._frame_left_s <= 0 if self._partial else self._is_drained()
            if is_late and not self._leaving:
                limit_s = self._frame_s if self._partial else self._idle_s
                raise PeerAtFault(f"connection {self._token}: nothing whole came for {limit_s:g} s")
        return b""

    def _chunk_size(self) -> int:
        """Return the bytes to receive at most, fewer while a pool that they may fill is used up."""
        budget = self._server.budget
        is_free = self._partial or budget.unfinished.has_room(self.address)
        return _CHUNK_SIZE if is_free and budget.received.has_room(self.address) else SMALL_SIZE

    async def _take_in(self, chunk: bytes) -> bool:
        """Feed a chunk to the engine; return False if the connection must end."""
        rest = memoryview(chunk)
        verdict = Verdict.OK
        newcomers: dict[int, Newcomer] = {}
        # A completed frame that must be tried again waits in the engine, without a rest.
        while rest or verdict in (Verdict.FULL, Verdict.AGAIN, Verdict.ASK):
            space = self._server.events.space
            fed = self._connection.feed(rest, gathers=True)
            rest = rest[fed.used :]
            if fed.reads:
                await self._read_all(fed.reads)
            for request in fed.requests:
                await _HANDLERS[request.opcode](self, request)
            if fed.requests or fed.reads is not None:
                await trio.lowlevel.checkpoint()  # responses from memory would never yield
            verdict = fed.verdict
            if verdict is Verdict.CLOSE:
                return False
            if verdict is not Verdict.OK:
                await self._wait_for(verdict, space, newcomers)
        self._connection.forget()  # later frames may be about a ledger that is created until then
        before, self._partial = self._partial, self._account().partial
        # The whole chunk belongs to the frame that had begun, so its deadline stays.
        if not (before and self._partial == before + len(chunk)):
            self._frame_left_s = self._frame_s
        if before or self._partial:
            self._server.budget.unfinished.mark_unfinished(self._token, self._partial > 0)
        return bool(chunk)

    async def _wait_for(
        self, verdict: Verdict, space: trio.Event, newcomers: dict[int, Newcomer]
    ) -> None:
        if verdict is Verdict.FULL:
            self._full = True
            await space.wait()
            self._full = False
        elif verdict is Verdict.AGAIN:
            await trio.to_thread.run_sync(self._connection.look, limiter=self._server.read_workers)
        elif verdict is Verdict.ASK and self._server.incarnations:
            await self._server.incarnations.tell(self._connection, newcomers)

    def _account(self) -> Backlog:
        """Let the budget know what the connection holds, and return that."""
        budget, backlog = self._server.budget, self._connection.backlog()
        received, unfinished = backlog.unsynced + backlog.waiting, backlog.partial
        unsent = backlog.ready + self._in_send + self._calls_size
        budget.received.change(self.address, received - self._received)
        budget.unfinished.change(self.address, unfinished - self._unfinished)
        budget.unsent.change(self.address, unsent - self._unsent)
        self._received, self._unfinished, self._unsent = received, unfinished, unsent
        return backlog

    # --- requests that are not adds ----------------------------------------------------

    async def _on_read(self, request: Request) -> None:
        if request.flags & _FENCE:
            await self._start(self._fence, request)
        else:
            await self._read(request)

    async def _read(self, request: Request) -> None:
        frame = None
        if self._outbox.has_room:
            frame = self._engine.answer(request, use_disk=False, size_max=ANSWER_SIZE_MAX)
        if frame is not None:
            self._outbox.put(frame)
        else:  # without memory it waits there, and adds behind it continue
            await self._reads.put(request)

    async def _read_all(self, reads: Reads) -> None:
        """Answer READs from the memtable at once, and let the others wait for the disk."""
        while reads and self._outbox.has_some_room:
            size_max = _PIECE_SIZE if self._outbox.has_room else SMALL_SIZE
            frames = self._engine.answer_reads(reads, use_disk=False, size_max=size_max)
            if not frames:
                break
            self._outbox.put(frames)
        if reads:
            await self._reads.put_all(reads)

    async def _fence(self, request: Request) -> None:
        """Fence the ledger; respond once that is durable, or after _FENCE_S_MAX."""
        code = Code.IO_ERROR
        with trio.move_on_after(_FENCE_S_MAX):
            request, code = await self._server.fences.set(request)
        if code == Code.OK:
            await self._read(request)
        else:
            await self._outbox.room()
            self._outbox.put(not_fenced(request, code))

    async def _on_read_wait(self, request: Request) -> None:
        parked = self._server.parked_reads
        if request.wait_ms <= 0 or parked.is_over(request.ledger_id, request.known_lac):
            await self._read(request)
        elif self._parked >= _PARKED_MAX or parked.is_full:
            await self._outbox.room()
            self._outbox.put(too_many(request))
        else:
            self._parked += 1
            self._nursery.start_soon(self._park, request)

    async def _park(self, request: Request) -> None:
        wait_s = min(request.wait_ms / 1000, _WAIT_S_MAX)
        await self._server.parked_reads.park(request.ledger_id, request.known_lac, wait_s)
        self._parked -= 1
        await self._read(request)

    async def _on_pulse(self, _: Request) -> None:
        self._pulsing = True

    def pulse(self, *, flushes: bool) -> None:
        """Send a pulse if adds of the peer wait and none was acknowledged since the last call."""
        if self._in_send:
            self._account()  # _send cannot, while the peer reads nothing
        is_quiet, self._acknowledged = not self._acknowledged, False
        if not (self._pulsing and is_quiet) or (self._full and not flushes):
            return
        backlog = self._connection.backlog()
        if backlog.unsynced or backlog.partial or not self._listening:
            self._pulse_due = True
            self.news.set()

    async def _on_incarnation(self, request: Request) -> None:
        """Handle a declaration of another incarnation than the stored one; later frames wait."""
        incarnations = self._server.incarnations
        if incarnations and await incarnations.is_over(request.ledger_id, request.incarnation):
            self._connection.refuse(request.ledger_id, request.incarnation)

    async def _on_auth(self, request: Request) -> None:
        if self._server.security.users is None:
            self._server.unchecked_logins.note(request, self.address)
        await self._outbox.room()
        self._outbox.put(NO_LOGIN)

    async def _on_call(self, request: Request) -> None:
        self._calls_size += _CALL_SIZE + len(request.body)
        self._account()
        await self._start(self._call, request)
        await self._unsent_room()  # the call that has begun ends this wait, even if alone

    async def _call(self, request: Request) -> None:
        with CallRoom(
            self._outbox,
            self._parked_here,
            self._server.parked_calls,
            self._hints,
            self._followed,
        ) as room:
            while True:
                reply = await self._server.answer_call(request.body, room)
                frame = call_response(Code.OK, request.request_id, reply)
                if room.put(frame):
                    break
                room.release()
                if not room.may_ask_again:  # its reply is small
                    await self._outbox.room()
                    self._outbox.put(frame)
                    break
                del reply, frame
                await self._outbox.room()
        self._calls_size -= _CALL_SIZE + len(request.body)

    async def _start(self, work: Callable[[Request], Awaitable[None]], request: Request) -> None:
        await self._tasks.acquire()
        self._nursery.start_soon(self._work, work, request)

    async def _work(self, work: Callable[[Request], Awaitable[None]], request: Request) -> None:
        try:
            await work(request)
        finally:
            self._tasks.release()
            self.news.set()

    # --- sending -----------------------------------------------------------------------

    async def _send(self) -> None:
        while not (self._ended and self._is_drained()):
            await self.news.wait()
            while buffer := self._next_buffer():
                await self._send_all(buffer)
            self._account()
            self._eased.set()
        self._nursery.cancel_scope.cancel()

    def _next_buffer(self) -> bytes:
        """Return what to send next, none if nothing waits: acknowledgements before all else."""
        if acks := self._connection.take():
            self._acknowledged = True
            return acks
        if self._pulse_due:
            self._pulse_due = False
            return _PULSE
        return self._outbox.take() if self._outbox.size else b""

    async def _send_all(self, buffer: bytes) -> None:
        self._in_send = len(buffer)
        self._account()
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE_SIZE):
            self._sending_since = trio.current_time()
            with trio.move_on_after(self._send_s) as patience:
                await self._stream.send_all(view[start : start + _PIECE_SIZE])
            if patience.cancelled_caught:
                raise PeerAtFault(f"connection {self._token}: took nothing for {self._send_s:g} s")
        self._in_send = 0
        self._sending_since, self._sent_at = math.inf, trio.current_time()

    def _is_drained(self) -> bool:
        backlog = self._connection.backlog()
        owes = backlog.unsynced or backlog.waiting or backlog.ready or self._outbox.size
        works = self._reads.is_busy or (self._parked and not self._ended)
        return not (owes or works or self._tasks.value < _TASKS_MAX)


_HANDLERS: dict[int, Callable[[Conversation, Request], Awaitable[None]]] = {
    Opcode.READ: Conversation._on_read,
    Opcode.BATCH_READ: Conversation._on_read,
    Opcode.READ_WAIT: Conversation._on_read_wait,
    Opcode.AUTH: Conversation._on_auth,
    Opcode.CALL: Conversation._on_call,
    Opcode.PULSE: Conversation._on_pulse,
    Opcode.INCARNATION: Conversation._on_incarnation,
}
