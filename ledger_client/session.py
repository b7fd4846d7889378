"""One TCP connection to a bookie, from when it stands until it breaks.

What is queued before it stands goes out first. When it is over, everybody who
waits for an answer and every writer is told, once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.outgoing import Outgoing
from ledger_client.replies import ReplyBook
from native.errors import ProtocolBroken
from native.link import Link, Writer

SEND_SIZE = 1 << 20
LAST_CHANCE_S = 0.05
"""Before a bookie counts as silent, what it said has this long to be received."""


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


class Session:
    """Bytes to a bookie and back, answers to who asked, acknowledgements to writers."""

    def __init__(self, *, send_timeout_s: float, queue_size_max: int, silence_s: float) -> None:
        """A bookie that owes an answer and says nothing for *silence_s* is given up."""
        self.outgoing = Outgoing(queue_size_max)
        self.replies = ReplyBook()
        self.scope = trio.CancelScope()
        self.received_at = trio.current_time()
        self._send_timeout_s = send_timeout_s
        self._silence_s = silence_s
        self._owed_since: float | None = None
        self._owed = trio.Event()
        self._link = Link()
        self._attached: dict[int, Attached] = {}
        self._over = False

    def attach(self, token: int, attached: Attached) -> None:
        """Count acknowledgements for a writer.

        Raises:
            OSError: another writer of the same ledger is attached.
        """
        self._link.attach(attached.writer, attached.place)
        self._attached[token] = attached

    def detach(self, token: int) -> None:
        """Forget a writer and drop what it has queued."""
        if self.leave(token):
            self.outgoing.revoke(token)

    def leave(self, token: int) -> bool:
        """Forget a writer, if it is attached; what it has queued still goes out."""
        attached = self._attached.pop(token, None)
        if attached is not None:
            self._link.detach(attached.writer)
        return attached is not None

    def expect(self, since: float | None = None) -> None:
        """Expect something from the bookie, from now or from *since* on, if that is new."""
        if self._owed_since is None:
            since = trio.current_time() if since is None else max(since, self.received_at)
            self._owed_since = since
            self._owed.set()

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
            tasks.start_soon(run, self._notice_silence)
        return reasons[0]

    def end(self, failure: BookieUnavailable) -> None:
        """Tell everybody; what comes in from now on belongs to nobody."""
        self._over = True
        self.scope.cancel()
        self._link.close()
        self.outgoing.clear()
        attached, self._attached = self._attached, {}
        for _, place, listener in attached.values():
            listener.bookie_lost(place, failure)
        self.replies.fail(failure)

    async def _send_all(self, stream: trio.abc.Stream) -> str:
        while True:
            buffer = memoryview(await self.outgoing.take())
            try:
                for start in range(0, len(buffer), SEND_SIZE):
                    with trio.fail_after(self._send_timeout_s):
                        await stream.send_all(buffer[start : start + SEND_SIZE])
            except trio.TooSlowError:
                return f"took nothing for {self._send_timeout_s:g} s"
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as wrong:
                return f"connection lost: {first_line(wrong)}"
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
            self._owed_since = None
            try:
                self._take_in(size)
            except ProtocolBroken as wrong:
                return f"broke the protocol: {wrong}"

    async def _notice_silence(self, _stream: trio.abc.Stream) -> str:
        while True:
            since = self._owed_since
            if since is None:
                self._owed = trio.Event()
                await self._owed.wait()
                continue
            await trio.sleep_until(since + self._silence_s - LAST_CHANCE_S)
            if self._owed_since == since:  # or it was this process that hung: look once more
                await trio.sleep(LAST_CHANCE_S)
            if self._owed_since == since:
                return f"silent for {self._silence_s:g} s"

    def _take_in(self, size: int) -> None:
        for response in self._link.filled(size):
            self.replies.resolve(response)
        if self._attached:
            for token in self._link.dirty():
                attached = self._attached.get(token)
                if attached is not None:
                    attached.listener.acknowledged()


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
