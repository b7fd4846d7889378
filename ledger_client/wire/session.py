"""One TCP connection to a bookie, until it breaks.

Requests that are queued before the connection stands are sent first. When it ends, every open
request fails and every attached writer is notified, once. A bookie may close a connection that has
been idle, to serve others: that is no loss for a writer whose adds are all answered.

It also ends when adds are under way and none is acknowledged for two seconds: the bookie, its
disk or the network hangs. The age of the oldest add is no measure, because an add waits long
behind a long queue although the disk makes progress. Any acknowledgement counts as progress,
and so does a pulse, which a bookie sends while it cannot acknowledge yet but its disk works.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import trio

from ledger_client.background import Background
from ledger_client.errors import BookieUnavailable
from ledger_client.options import DEFAULT_OPTIONS, Options
from ledger_client.wire.inflight import (
    PROBE,
    Call,
    Declarations,
    LedgerName,
    ReplyBook,
)
from ledger_client.wire.streams import BROKEN, first_line
from metadata.stall_timer import StallTimer
from native import frame
from native.errors import ProtocolBroken
from native.frame import Code, Opcode
from native.link import Link, Writer

CHUNK_SIZE = 256 * 1024
"""Small buffers are joined up to this size for one send."""
SEND_SIZE = 1 << 20
LAST_CHANCE_S = 0.05
"""Before a bookie is given up, bytes that it has sent get this long to be received."""
LOOKS = 16
"""Checks for progress within bookie_timeout_s or send_timeout_s, the shorter one."""
CALLS_FEW = 4
"""With more calls under way, of which two may wait for news, others are sent together."""
NO_OWNER = 0
"""Owner of frames that belong to no writer."""
UNANSWERED_MAX = 4096
"""Ledgers remembered because their writer left while adds were under way; the newest are kept."""
ANSWERS = frozenset({Opcode.ADD, Opcode.PULSE})
"""Responses to no request: acknowledgements for a writer that left, and pulses."""
Buffer = bytes | bytearray | memoryview


class Listener(Protocol):
    """A writer, as its connections see it."""

    def acknowledged(self) -> None:
        """The state of the native writer changed."""

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The connection to the bookie at *index* of the ensemble is lost."""

    def bookie_left(self, index: int) -> None:
        """The bookie closed the connection, and had acknowledged all adds of this writer."""


class Attached(NamedTuple):
    """A writer, and this bookie's index in its ensemble."""

    writer: Writer
    place: int
    listener: Listener
    name: LedgerName


class ClosedByBookie(ConnectionError):
    """The bookie closed the connection in order."""


_IN_DOUBT = (Code.UNKNOWN_STATE, Code.OTHER_LEDGER)


class Outgoing:
    """The bounded queue in front of a socket.

    Buffers are sent whole and in order. A writer that gives the bookie up revokes what it has
    queued here, so that a bookie that stopped reading pins no memory.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._buffers: deque[tuple[int, int, Buffer]] = deque()
        self._size = 0
        self._put = 0
        self._taken = 0
        self._filled = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()

    @property
    def size(self) -> int:
        """Bytes queued, including those that are being sent."""
        return self._size

    @property
    def full(self) -> bool:
        """True while senders of large data should wait."""
        return self._size >= self._size_max

    def put(self, owner: int, buffer: Buffer) -> int:
        """Queue *buffer* and return its number, for withdraw().

        Never blocks: a task that sends much checks ``full`` first.
        """
        self._put += 1
        self._buffers.append((self._put, owner, buffer))
        self._size += len(buffer)
        self._filled.unpark_all()
        return self._put

    async def take(self) -> Buffer:
        """Wait for something to send and return it; call sent() afterwards."""
        while not self._buffers:
            await self._filled.park()
        self._taken, _, first = self._buffers.popleft()
        if not self._buffers or len(first) >= CHUNK_SIZE:
            return first
        chunk = bytearray(first)
        while self._buffers and len(chunk) + len(self._buffers[0][2]) <= CHUNK_SIZE:
            self._taken, _, buffer = self._buffers.popleft()
            chunk += buffer
        return chunk

    def sent(self, size: int) -> None:
        """Free *size* bytes of the queue, and wake wait_room() if it is not full any more."""
        self._size -= size
        if not self.full:
            self._drained.unpark_all()

    def revoke(self, owner: int) -> None:
        """Drop the buffers of *owner* that are still queued."""
        self._drop(lambda _number, its_owner: its_owner == owner)

    def withdraw(self, number: int) -> bool:
        """Drop one buffer; return False if its bytes may have reached the socket already."""
        if number <= self._taken:
            return False
        self._drop(lambda its_number, _owner: its_number == number)
        return True

    def clear(self) -> None:
        """Drop everything, because the connection is lost."""
        self._buffers.clear()
        self.sent(self._size)

    async def wait_room(self) -> None:
        """Wait until the queue is not full."""
        while self.full:
            await self._drained.park()

    def _drop(self, is_meant: Callable[[int, int], bool]) -> None:
        kept = deque(each for each in self._buffers if not is_meant(each[0], each[1]))
        dropped = sum(len(buffer) for *meant, buffer in self._buffers if is_meant(*meant))
        self._buffers = kept
        self.sent(dropped)


class Session:
    """Sends frames, and passes responses to requests and acknowledgements to writers.

    Attributes:
        heard: True once a request was answered, which only a bookie does.
    """

    def __init__(self, options: Options) -> None:
        """Give up a bookie that owes acknowledgements and sends none for bookie_timeout_s.

        Also one that takes no bytes for send_timeout_s.
        """
        self.outgoing = Outgoing(options.queue_size_max)
        self.replies = ReplyBook()
        self._declared = Declarations(self._put)
        self.scope = trio.CancelScope()
        self._request_ids = itertools.count(1)  # for call(); those of ask() are its caller's
        self.received_at = trio.current_time()
        self._send_timeout_s = options.send_timeout_s
        self._silence_s = options.bookie_timeout_s
        self._link = Link()
        self._owed: dict[int, None] = {}  # tokens of writers that sent adds
        self._left_at = -1  # acknowledgements so far when a writer left with adds under way
        self._unanswered: dict[int, int] = {}  # incarnations of such writers' ledgers, by ledger id
        self._answers = 0  # beside those that the link counted
        self._sending = False
        self._sends = 0
        self._suspected = False
        self._receipts = 0
        self.heard = False
        self._busy = trio.Event()
        self._socket: trio.socket.SocketType | None = None
        self._attached: dict[int, Attached] = {}
        self._retired = False
        self._over = False
        self._is_closed = False  # by the bookie, in order
        self._failure: BookieUnavailable | None = None

    def attach(self, token: int, attached: Attached) -> None:
        """Count acknowledgements for a writer.

        Raises:
            OSError: another writer of the same ledger is attached, or is_ambiguous().
        """
        if self.is_ambiguous(attached.name):
            raise OSError(f"adds of an earlier ledger {attached.name.ledger_id} are not answered")
        self._link.attach(attached.writer, attached.place)
        self._attached[token] = attached
        self._declared.hold(attached.name)

    def is_ambiguous(self, name: LedgerName) -> bool:
        """True if adds of an earlier ledger with this id may still be answered here."""
        return self._unanswered.get(name.ledger_id, name.incarnation) != name.incarnation

    def ask(self, request: bytes, name: LedgerName | None) -> None:
        """Queue a request; *name* is the ledger that it is about, if any."""
        if name is None:
            self._put(request)
            return
        self._declared.declare(name)
        self._put(request)
        self._declared.restore(name.ledger_id)

    def call(self, body: bytes, bookie_id: str) -> Call:
        """Queue a CALL. The caller must call withdraw() when it stops waiting.

        It fails at once if the connection is over.
        """
        request_id = next(self._request_ids)
        call = Call(bookie_id)
        if self._failure is not None:
            call.fail(self._failure)
            return call
        self.replies.add(request_id, call)
        buffer = frame.call(request_id, body)
        sent = self._send_now(buffer)
        if sent == 0:
            call.number = self.outgoing.put(NO_OWNER, buffer)
        elif sent < len(buffer):
            self.outgoing.put(NO_OWNER, buffer[sent:])  # must follow, so it cannot be withdrawn
        return call

    def _send_now(self, buffer: bytes) -> int:
        """Send what the socket takes at once, and return how much that is.

        Most calls are made one at a time, over an idle connection. This saves each of them a
        turn of the sending task, a fifth of its cost. Of many calls the sending task sends those
        that came together: a send for each costs more, and the bookie would work on each by itself.
        """
        if self._socket is None or self.outgoing.size or self.replies.count > CALLS_FEW:
            return 0
        try:
            return os.write(self._socket.fileno(), buffer)
        except OSError:  # the socket is full or closed, as the other tasks notice
            return 0

    def withdraw(self, call: Call) -> bool:
        """Forget *call*, answered or not; return False if the bookie may have received it."""
        call.abandon()
        self._end_if_retired()
        return self.outgoing.withdraw(call.number)

    @property
    def takes_calls(self) -> bool:
        """False after retire() or when the connection is over."""
        return not (self._over or self._retired)

    def retire(self) -> None:
        """Close the connection as soon as all its calls are answered or withdrawn."""
        self._retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._retired and not self.replies:
            self.scope.cancel()

    def _put(self, request: bytes) -> None:
        self.outgoing.put(NO_OWNER, request)

    def detach(self, token: int) -> None:
        """Forget a writer and drop what it has queued."""
        attached = self._attached.pop(token, None)
        self._owed.pop(token, None)
        if attached is not None:
            self._note_unanswered(attached)
            self._link.detach(attached.writer)
            self.outgoing.revoke(token)
            self._declared.release(attached.name.ledger_id)

    def leave(self, token: int) -> None:
        """Forget a writer; its queued frames are still sent, and the bookie still owes answers."""
        attached = self._attached.pop(token, None)
        self._owed.pop(token, None)
        if attached is not None:
            if self._note_unanswered(attached):
                self._left_at = self._steps()
            self._link.detach(attached.writer)
            self._declared.release(attached.name.ledger_id)

    def _note_unanswered(self, attached: Attached) -> bool:
        """Remember a writer's ledger if adds are under way; return whether they are.

        An acknowledgement names ledger and entry, but no incarnation. A late one must not count
        for another ledger with the same id.
        """
        if not _owes(attached):
            return False
        ledger_id, incarnation = attached.name
        self._unanswered[ledger_id] = incarnation
        if len(self._unanswered) > UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        return True

    def send(self, token: int, buffer: Buffer) -> None:
        """Queue adds of an attached writer; the bookie owes acknowledgements from here on."""
        self.outgoing.put(token, buffer)
        self._owed[token] = None
        self._busy.set()

    def suspect(self) -> None:
        """Probe the bookie, because a request timed out; end the connection if nothing arrives.

        The timeout may be this process's own fault, if it was stopped, so a probe decides.
        """
        if not self._suspected:
            self._suspected = True
            self.outgoing.put(NO_OWNER, frame.read(*PROBE))
            self._busy.set()

    async def run(self, stream: trio.abc.Stream, bookie_id: str) -> None:
        """Serve *stream* until the connection is over, then close it and fail what waits."""
        reason = "closed by this side"
        try:
            with self.scope:
                async with stream:
                    reason = await self.serve(stream)
        finally:
            self.end(BookieUnavailable(bookie_id, reason))

    async def serve(self, stream: trio.abc.Stream) -> str:
        """Send and receive until the connection ends; return the reason."""
        self.received_at = trio.current_time()
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        reasons: list[str] = []

        async def run(work: Callable[[trio.abc.Stream], Awaitable[str]]) -> None:
            reasons.append(await work(stream))
            tasks.cancel_scope.cancel()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(run, self._send_all)
            tasks.start_soon(run, self._receive_all)
            tasks.start_soon(run, self._notice_standstill)
        return reasons[0]

    def end(self, failure: BookieUnavailable) -> None:
        """Fail all requests and notify all writers; later responses are dropped."""
        self._over, self._failure = True, failure
        self.scope.cancel()
        self._link.close()
        self.outgoing.clear()
        attached, self._attached = self._attached, {}
        for each in attached.values():
            if self._is_closed and not _owes(each):
                each.listener.bookie_left(each.place)
            else:
                each.listener.bookie_lost(each.place, failure)
        self.replies.fail(failure)

    async def _send_all(self, stream: trio.abc.Stream) -> str:
        while True:
            buffer = memoryview(await self.outgoing.take())
            self._sending = True
            self._busy.set()
            try:
                for start in range(0, len(buffer), SEND_SIZE):
                    await stream.send_all(buffer[start : start + SEND_SIZE])
                    self._sends += 1
            except BROKEN as wrong:
                return f"connection lost: {first_line(wrong)}"
            self._sending = False
            self.outgoing.sent(len(buffer))

    async def _receive_all(self, stream: trio.abc.Stream) -> str:
        while True:
            try:
                size = await receive_into(stream, self._link.room())
                if self._over:
                    return "given up"  # the cancellation is on its way
                self.received_at = trio.current_time()
                self._receipts += 1
                self._suspected = False
                self._take_in(size)
            except ConnectionError as wrong:
                self._is_closed = isinstance(wrong, ClosedByBookie)
                return str(wrong)
            except ProtocolBroken as wrong:
                return f"broke the protocol: {wrong}"

    # --- progress of the bookie --------------------------------------------------------

    async def _notice_standstill(self, _stream: trio.abc.Stream) -> str:
        """Return the reason once the bookie stalls; pauses of this process don't count."""
        interval_s = min(self._silence_s, self._send_timeout_s) / LOOKS
        answering, taking, mute = (StallTimer(interval_s) for _ in range(3))
        while not self._over:
            now, owed = trio.current_time(), self._is_owed()
            silent_s = answering.look(now, works=owed, steps=self._steps())
            stuck_s = taking.look(now, works=self._sending, steps=self._sends)
            if silent_s >= self._silence_s - 2.5 * interval_s and await self._stays_silent():
                return f"acknowledged nothing for {self._silence_s:g} s"
            if stuck_s >= self._send_timeout_s - 2.5 * interval_s:
                return f"took nothing for {self._send_timeout_s:g} s"
            mute_s = mute.look(now, works=self._suspected, steps=self._receipts)
            # Who only asks has other bookies; a writer would have to replace this one.
            if mute_s >= (self._silence_s if self._attached else self._silence_s / 2):
                return "does not answer"
            if owed or self._sending or self._suspected:
                await trio.sleep(interval_s)
            elif self._busy.is_set():  # likely so again: waking for each send would cost more
                self._busy = trio.Event()
                await trio.sleep(interval_s)
            else:
                await self._busy.wait()
        return "given up"  # the cancellation is on its way

    async def _stays_silent(self) -> bool:
        steps = self._steps()
        await trio.sleep(LAST_CHANCE_S)
        return not self._over and self._steps() == steps and self._is_owed()

    def _steps(self) -> int:
        """Return the number of acknowledgements and pulses received."""
        return self._link.answers + self._answers

    def _is_owed(self) -> bool:
        while self._owed:
            token = next(iter(self._owed))
            attached = self._attached.get(token)
            if attached is not None and _owes(attached):
                return True
            del self._owed[token]
        return self._left_at == self._steps()

    def _take_in(self, size: int) -> None:
        for response in self._link.filled(size):
            if response.opcode in ANSWERS:
                self._answers += 1
                continue
            if response.code in _IN_DOUBT and response.opcode != Opcode.CALL:
                self._declared.forget(response.ledger_id)
            self.replies.resolve(response)
            self.heard = True
        if self._attached:
            for token in self._link.dirty():
                attached = self._attached.get(token)
                if attached is not None:
                    attached.listener.acknowledged()


async def receive_into(stream: trio.abc.Stream, room: memoryview) -> int:
    """Receive some bytes into *room* and return how many; from a socket without a copy.

    Raises:
        ConnectionError: the connection is lost, or the bookie closed it.
    """
    try:
        if isinstance(stream, trio.SocketStream):
            size = await stream.socket.recv_into(room)
        else:
            data = await stream.receive_some(len(room))
            size = len(data)
            room[:size] = data
    except BROKEN as wrong:
        raise ConnectionError(f"connection lost: {first_line(wrong)}") from wrong
    if size == 0:
        raise ClosedByBookie("connection closed by the bookie")
    return size


def _owes(attached: Attached) -> bool:
    """True if adds of the writer are under way to its bookie."""
    return bool(attached.writer.behind() >> attached.place & 1)


@asynccontextmanager
async def open_session(
    stream: trio.abc.Stream, bookie_id: str, *, options: Options = DEFAULT_OPTIONS
) -> AsyncIterator[Session]:
    """Serve *stream* for the length of the block; errors name *bookie_id*."""
    async with Background() as nursery:
        session = Session(options)
        nursery.start_soon(session.run, stream, bookie_id)
        yield session
