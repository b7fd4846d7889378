"""A bookie that answers nothing but metadata calls, and misbehaves on demand.

It takes frames apart by hand, so that it does not share the driver's mistakes.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
import trio.testing

from bookie.calls import MetadataCalls
from bookie.hints import HintBox, Hints
from metadata.address import Address
from metadata.calls import (
    AwaitHints,
    Get,
    HintRequest,
    MetadataRequest,
    Reply,
    WatchPrefixes,
    decode_request,
    encode_reply,
)
from metadata.errors import MetadataError
from metadata.failures import failure_of
from metadata.store import MetadataStore

CALL = 0x0243  # version 2, opcode 67
READ = 0x0202
NO_LEDGER = (1).to_bytes(4)


class Peer:
    """One client of a fake bookie."""

    def __init__(self, stream: trio.abc.Stream, hints: Hints) -> None:
        self.stream = stream
        self.hints = HintBox(hints)
        self.sending = trio.Lock()


class FakeBookie:
    """Serves *store*. What is set on it decides how the next requests fare."""

    def __init__(self, store: MetadataStore) -> None:
        self._calls = MetadataCalls(store)
        self._hints = Hints(store)
        self.requests: list[MetadataRequest] = []
        self.connections = 0
        self.reachable = True
        self.mute = False
        """take requests and never answer"""
        self.hangs = False
        """answer no calls, but still show that it lives"""
        self.silent_about = ""
        """answer no question for this key"""
        self.lose_answers = 0
        """do this many requests, then close the connection instead of answering"""
        self.answer: Callable[[MetadataRequest], Reply | bytes | None] = lambda _request: None
        """answer with this instead, unless it is None"""

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Answer over *stream* until the peer goes away."""
        self.connections += 1
        data = bytearray()
        peer = Peer(stream, self._hints)
        try:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._hints.run)
                async for received in stream:
                    data += received
                    while (frame := _take_frame(data)) is not None:
                        nursery.start_soon(self._answer, peer, frame)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            peer.hints.close()

    async def _answer(self, peer: Peer, frame: bytes) -> None:
        if int.from_bytes(frame[:2]) == READ:
            if not self.mute:
                await self._send(peer, frame[:2] + bytes(2) + NO_LEDGER + frame[4:20])
            return
        assert int.from_bytes(frame[:2]) == CALL
        request = decode_request(frame[12:])
        self.requests.append(request)  # type: ignore[arg-type]
        if self.mute or self.hangs or (self.silent_about and request == Get(self.silent_about)):
            return
        reply = self.answer(request)  # type: ignore[arg-type]
        if reply is None:
            reply = await self._do(peer, request)  # type: ignore[arg-type]
        if self.lose_answers:
            self.lose_answers -= 1
            await peer.stream.aclose()
            return
        body = reply if isinstance(reply, bytes) else encode_reply(reply)
        await self._send(peer, CALL.to_bytes(2) + bytes(2) + bytes(4) + frame[4:12] + body)

    async def _send(self, peer: Peer, payload: bytes) -> None:
        async with peer.sending:
            await peer.stream.send_all(len(payload).to_bytes(4) + payload)

    async def _do(self, peer: Peer, request: MetadataRequest | HintRequest) -> Reply:
        try:
            if isinstance(request, WatchPrefixes):
                return await peer.hints.change(request.add, request.drop, request.since)
        except MetadataError as error:
            return failure_of(error)
        if isinstance(request, AwaitHints):
            await peer.hints.wait(request.wait_ms / 1000)
            return peer.hints.take()
        return await self._calls.answer(request)

    async def dial(self, nursery: trio.Nursery) -> trio.abc.Stream:
        """Return the client's end of a connection to this bookie."""
        if not self.reachable:
            raise ConnectionRefusedError("nobody listens here")
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(self.serve, theirs)
        return ours


class Network:
    """Fake bookies by address, for the driver's open_stream."""

    def __init__(self, nursery: trio.Nursery, *bookies: FakeBookie) -> None:
        self._nursery = nursery
        self.bookies = {Address("bookie", 1 + i): bookie for i, bookie in enumerate(bookies)}

    @property
    def addresses(self) -> list[Address]:
        return list(self.bookies)

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return await self.bookies[Address(host, port)].dial(self._nursery)


def _take_frame(data: bytearray) -> bytes | None:
    end = 4 + int.from_bytes(data[:4])
    if len(data) < 4 or len(data) < end:
        return None
    frame = bytes(data[4:end])
    del data[:end]
    return frame
