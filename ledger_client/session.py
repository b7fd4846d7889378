"""One TCP connection to a bookie, from when it stands until it breaks.

What is queued before it stands goes out first. When it is over, everybody who
waits for an answer and every writer is told, once.

It is over when adds are under way and none is acknowledged for two seconds: the bookie's disk
hangs, or the bookie, or the network. How long the oldest add has waited says nothing, since
behind a long queue it waits long although the disk moves; any acknowledgement counts, and so
does a pulse, by which a bookie says that it cannot acknowledge yet and makes progress.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.outgoing import Buffer, Outgoing
from ledger_client.replies import PROBE, ReplyBook
from ledger_client.statements import LedgerName, Statements
from metadata.standstill import Standstill
from native import frame
from native.errors import ProtocolBroken
from native.frame import Code, Opcode
from native.link import Link, Writer

SEND_SIZE = 1 << 20
LAST_CHANCE_S = 0.05
"""Before a bookie is given up, what it said has this long to be received."""
LOOKS = 16
"""How often the watch looks while it waits as long as it would for a bookie."""
NO_OWNER = 0
"""Whose frames are those that no writer sent."""
UNANSWERED_MAX = 4096
"""Ledgers that writers left with adds under way, of which a connection remembers the last."""
ANSWERS = frozenset({Opcode.ADD, Opcode.PULSE})
"""What nobody asked for: acknowledgements for a writer that left, and pulses."""


class Listener(Protocol):
    """A writer, as its connections see it."""

    def acknowledged(self) -> None:
        """The state of the native writer changed."""

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The bookie at *index* of the ensemble acknowledges nothing any more."""


class Attached(NamedTuple):
    """A writer, and this bookie's index in its ensemble."""

    writer: Writer
    place: int
    listener: Listener
    name: LedgerName


_IN_DOUBT = (Code.UNKNOWN_STATE, Code.OTHER_LEDGER)


class Session:
    """Bytes to a bookie and back, answers to who asked, acknowledgements to writers."""

    def __init__(self, *, send_timeout_s: float, queue_size_max: int, silence_s: float) -> None:
        """A bookie that acknowledges nothing for *silence_s*, though it should, is given up.

        So is one that takes no bytes for *send_timeout_s*.
        """
        self.outgoing = Outgoing(queue_size_max)
        self.outgoing.put(NO_OWNER, frame.pulse())
        self.replies = ReplyBook()
        self._statements = Statements(self._tell)
        self.scope = trio.CancelScope()
        self.received_at = trio.current_time()
        self._send_timeout_s = send_timeout_s
        self._silence_s = silence_s
        self._link = Link()
        self._owed: dict[int, None] = {}  # tokens of writers that sent adds
        self._left_at = -1  # answers when a writer left with adds under way
        self._unanswered: dict[int, int] = {}  # what writers left so: incarnations, by ledger id
        self._answers = 0  # beside those that the link counted
        self._sending = False
        self._sends = 0
        self._suspected = False
        self._receipts = 0
        self._busy = trio.Event()
        self._attached: dict[int, Attached] = {}
        self._over = False

    def attach(self, token: int, attached: Attached) -> None:
        """Count acknowledgements for a writer.

        Raises:
            OSError: another writer of the same ledger is attached, or is_ambiguous().
        """
        if self.is_ambiguous(attached.name):
            raise OSError(f"adds of an earlier ledger {attached.name.ledger_id} are not answered")
        self._link.attach(attached.writer, attached.place)
        self._attached[token] = attached
        self._statements.hold(attached.name)

    def is_ambiguous(self, name: LedgerName) -> bool:
        """True if adds of an earlier ledger with this id may still be answered here."""
        return self._unanswered.get(name.ledger_id, name.incarnation) != name.incarnation

    def ask(self, request: bytes, name: LedgerName | None) -> None:
        """Queue a request, which is about the ledger *name* or about none."""
        if name is None:
            self._tell(request)
            return
        self._statements.say(name)
        self._tell(request)
        self._statements.resume(name.ledger_id)

    def _tell(self, request: bytes) -> None:
        self.outgoing.put(NO_OWNER, request)

    def detach(self, token: int) -> None:
        """Forget a writer and drop what it has queued."""
        attached = self._attached.pop(token, None)
        self._owed.pop(token, None)
        if attached is not None:
            self._note_unanswered(attached)
            self._link.detach(attached.writer)
            self.outgoing.revoke(token)
            self._statements.release(attached.name.ledger_id)

    def leave(self, token: int) -> None:
        """Forget a writer; what it has queued still goes out, and is still to be answered."""
        attached = self._attached.pop(token, None)
        self._owed.pop(token, None)
        if attached is not None:
            if self._note_unanswered(attached):
                self._left_at = self._steps()
            self._link.detach(attached.writer)
            self._statements.release(attached.name.ledger_id)

    def _note_unanswered(self, attached: Attached) -> bool:
        """Note whether adds of a writer that goes may still be answered.

        An answer says of which ledger and entry it is, and not of which incarnation: it must
        not count for a ledger that gets the same id.
        """
        if not _owes(attached):
            return False
        ledger_id, incarnation = attached.name
        self._unanswered[ledger_id] = incarnation
        if len(self._unanswered) > UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        return True

    def send(self, token: int, buffer: Buffer) -> None:
        """Queue adds of an attached writer, which the bookie is to acknowledge."""
        self.outgoing.put(token, buffer)
        self._owed[token] = None
        self._busy.set()

    def suspect(self) -> None:
        """Ask for a sign of life: somebody waited in vain, unless it was us who hung."""
        if not self._suspected:
            self._suspected = True
            self.outgoing.put(NO_OWNER, frame.read(*PROBE))
            self._busy.set()

    async def serve(self, stream: trio.abc.Stream) -> str:
        """Send and receive until the connection is over; return why it is."""
        self.received_at = trio.current_time()
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
        """Tell everybody; what comes in from now on belongs to nobody."""
        self._over = True
        self.scope.cancel()
        self._link.close()
        self.outgoing.clear()
        attached, self._attached = self._attached, {}
        for each in attached.values():
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
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as wrong:
                return f"connection lost: {first_line(wrong)}"
            self._sending = False
            self.outgoing.sent(len(buffer))

    async def _receive_all(self, stream: trio.abc.Stream) -> str:
        while True:
            try:
                size = await receive_into(stream, self._link.room())
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as wrong:
                return f"connection lost: {first_line(wrong)}"
            if size == 0:
                return "connection closed by the bookie"
            if self._over:
                return "given up"  # the cancellation is on its way
            self.received_at = trio.current_time()
            self._receipts += 1
            self._suspected = False
            try:
                self._take_in(size)
            except ProtocolBroken as wrong:
                return f"broke the protocol: {wrong}"

    # --- whether the bookie makes progress -------------------------------------------

    async def _notice_standstill(self, _stream: trio.abc.Stream) -> str:
        """Return once the bookie stands still, in time for which this process was awake."""
        interval_s = min(self._silence_s, self._send_timeout_s) / LOOKS
        answering, taking, mute = (Standstill(interval_s) for _ in range(3))
        while not self._over:
            now, owed = trio.current_time(), self._is_owed()
            silent_s = answering.look(now, works=owed, steps=self._steps())
            stuck_s = taking.look(now, works=self._sending, steps=self._sends)
            if silent_s >= self._silence_s - 2.5 * interval_s and await self._stays_silent():
                return f"acknowledged nothing for {self._silence_s:g} s"
            if stuck_s >= self._send_timeout_s - 2.5 * interval_s:
                return f"took nothing for {self._send_timeout_s:g} s"
            mute_s = mute.look(now, works=self._suspected, steps=self._receipts)
            if mute_s >= self._silence_s / 2:
                return "does not answer"
            if not (owed or self._sending or self._suspected):
                self._busy = trio.Event()
                await self._busy.wait()
            else:
                await trio.sleep(interval_s)
        return "given up"  # the cancellation is on its way

    async def _stays_silent(self) -> bool:
        steps = self._steps()
        await trio.sleep(LAST_CHANCE_S)
        return not self._over and self._steps() == steps and self._is_owed()

    def _steps(self) -> int:
        """Return how often the bookie acknowledged something, or said that it will."""
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
                self._statements.forget(response.ledger_id)
            self.replies.resolve(response)
        if self._attached:
            for token in self._link.dirty():
                attached = self._attached.get(token)
                if attached is not None:
                    attached.listener.acknowledged()


def _owes(attached: Attached) -> bool:
    """True if adds of the writer are under way to its bookie."""
    return bool(attached.writer.behind() >> attached.place & 1)


async def receive_into(stream: trio.abc.Stream, room: memoryview) -> int:
    """Receive some bytes into *room* and return how many; 0 at the end of the stream.

    From a socket they come without a copy, and without memory of their own.
    """
    if isinstance(stream, trio.SocketStream):
        return await stream.socket.recv_into(room)
    data = await stream.receive_some(len(room))
    room[: len(data)] = data
    return len(data)


def first_line(error: BaseException) -> str:
    """Return what *error* says in one line; trio's errors hide the cause behind them."""
    told = str(error) or str(error.__cause__ or "") or type(error).__name__
    return told.splitlines()[0]
