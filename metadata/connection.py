"""One connection to a bookie, carrying many calls at once.

Calls are told apart by their request ids; answers come in any order. There is no
task in the background: of the callers that wait for an answer, one receives for
all, and hands over to another when it has its own or is cancelled.
"""

from __future__ import annotations

import itertools

import trio

from native import frame
from native.errors import ProtocolBroken
from native.frame import Opcode
from native.link import Link, Response

RECEIVE_SIZE = 64 << 10
IDLE_S = 1.0
PROBE_S = 0.001


class ConnectionLost(Exception):
    """The connection is gone; a call that was sent may have been done, or may still be."""


class Call:
    """One request on its way. *sent* is True once the peer may have seen any of it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.sent = False
        self.response: Response | None = None


class CallConnection:
    """Sends calls over *stream* and matches the answers."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._link = Link()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Call] = {}
        self._sending = trio.Lock()
        self._turn: trio.Event | None = None
        self._lost: str | None = None
        self._retired = False
        self._used_at = trio.current_time()

    @property
    def usable(self) -> bool:
        """Whether new calls may be made."""
        return self._lost is None and not self._retired

    async def perform(self, call: Call) -> Response:
        """Return the answer to *call*. The caller sets a deadline.

        Raises:
            ConnectionLost: call.sent tells whether the bookie may have seen it.
        """
        request_id = next(self._ids)
        self._waiting[request_id] = call
        try:
            await self._probe()
            await self._send(call, request_id)
            while call.response is None:
                await self._receive()
            return call.response
        finally:
            del self._waiting[request_id]
            self._used_at = trio.current_time()
            await self._close_if_done()

    async def retire(self) -> None:
        """Take no new calls; close when those under way are over."""
        self._retired = True
        await self._close_if_done()

    async def aclose(self) -> None:
        """Close at once. Calls under way raise ConnectionLost."""
        self._break("closed by this side")
        await self._close_if_done()

    async def _probe(self) -> None:
        """Notice that an idle connection was closed before anything is sent over it.

        So a bookie's restart does not leave the next change with an unknown outcome.
        """
        if self._turn is None and trio.current_time() - self._used_at > IDLE_S:
            with trio.move_on_after(PROBE_S):
                await self._receive()

    async def _send(self, call: Call, request_id: int) -> None:
        async with self._sending:
            self._raise_if_lost()
            call.sent = True
            whole = False
            try:
                await self._stream.send_all(frame.call(request_id, call.body))
                whole = True
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLost("the connection broke") from error
            finally:
                if not whole:  # also when cancelled: half a frame spoils the rest
                    self._break("a frame was sent in part")

    async def _receive(self) -> None:
        """Receive once, or wait while another caller does."""
        self._raise_if_lost()
        if self._turn is not None:
            await self._turn.wait()
            return
        self._turn = turn = trio.Event()
        try:
            self._take(await self._stream.receive_some(RECEIVE_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break("the connection broke")
        finally:
            self._turn = None
            turn.set()

    def _take(self, data: bytes | bytearray) -> None:
        if not data:
            self._break("the bookie closed the connection")
            return
        try:
            responses = self._link.feed(data)
        except ProtocolBroken:
            self._break("the bookie sent what no frame allows")
            return
        for response in responses:
            call = self._waiting.get(response.request_id)
            # An answer that nobody waits for is that of a call that was cancelled.
            if response.opcode == Opcode.CALL and call is not None:
                call.response = response

    def _break(self, reason: str) -> None:
        self._lost = self._lost or reason
        if self._turn is not None:
            self._turn.set()

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(self._lost)

    async def _close_if_done(self) -> None:
        if self._lost is not None or (self._retired and not self._waiting):
            self._lost = self._lost or "retired"
            await trio.aclose_forcefully(self._stream)
