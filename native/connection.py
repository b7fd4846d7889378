"""One peer of the engine: frames in, responses of adds out. See engine.h."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from native._core import ffi, lib
from native.errors import raise_for
from native.frame import Request, take_request

REQUESTS_MAX = 256
_NOTHING = ffi.new("uint8_t[1]")


class Verdict(enum.IntEnum):
    """What a feed came to."""

    OK = lib.BK_OK
    FULL = lib.BK_FULL
    AGAIN = lib.BK_AGAIN
    CLOSE = lib.BK_CLOSE


class Fed(msgspec.Struct, frozen=True):
    """What became of the bytes of one feed: *used* of them were dealt with."""

    used: int
    verdict: Verdict
    requests: list[Request]


class Backlog(msgspec.Struct, frozen=True):
    """Bytes a connection holds: unsynced adds, responses, a frame that is not whole."""

    unsynced: int
    ready: int
    waiting: int
    partial: int


class Connection:
    """One peer of the engine: feed what it sends, send it what take returns."""

    def __init__(self, pointer: Any, requests: Any) -> None:  # noqa: ANN401 - cffi pointers
        self._pointer = pointer
        self._requests = requests
        self._numbers = ffi.new("uint64_t[4]")
        self._used = ffi.new("size_t *")
        self._count = ffi.new("uint32_t *")

    def feed(self, data: bytes | bytearray | memoryview) -> Fed:
        """Take in bytes from the peer.

        With Verdict.FULL feed the rest after Event.SPACE (also when the rest is
        empty); with Verdict.AGAIN after look(); with Verdict.OK and fewer than all
        bytes used, feed the rest at once; with Verdict.CLOSE send what take gives, then
        close. After an INCARNATION among the requests, renew the ledger or refuse() first.

        Raises:
            OSError: no memory.
        """
        with ffi.from_buffer("uint8_t[]", data) as buffer:
            result = lib.bk_connection_feed(
                self._pointer,
                buffer,
                len(data),
                self._used,
                self._requests,
                REQUESTS_MAX,
                self._count,
            )
            if result < 0:
                raise_for(result, "a connection")
            requests = [self._request(self._requests[i], buffer) for i in range(self._count[0])]
        used = self._used[0]
        if any(request.body for request in requests):
            self._release_pieces()
        return Fed(used, Verdict(result), requests)

    def look(self) -> None:
        """Read what the entry logs hold of the entry that a feed met. Blocks.

        Not while something else is done with the connection but take() and backlog().

        Raises:
            OSError: no memory.
        """
        result = lib.bk_connection_look(self._pointer)
        if result < 0:
            raise_for(result, "a repeated entry")

    def refuse(self, ledger_id: int, incarnation: int) -> None:
        """Answer with OTHER_LEDGER while the ledger here is not the one the peer spoke of."""
        lib.bk_connection_refuse(self._pointer, ledger_id, incarnation)

    def _release_pieces(self) -> None:
        """Free a frame that came in pieces and was copied, though no more may come."""
        lib.bk_connection_feed(
            self._pointer, _NOTHING, 0, self._used, self._requests, REQUESTS_MAX, self._count
        )

    def _request(self, raw: Any, fed: Any) -> Request:  # noqa: ANN401 - cffi pointers
        source = lib.bk_connection_partial(self._pointer) if raw.in_pieces else fed
        return take_request(raw, source)

    def take(self) -> bytes:
        """Return all response bytes that may be sent now."""
        room = max(self.backlog().ready, 4096)
        out = ffi.new("uint8_t[]", room)
        size = lib.bk_connection_take(self._pointer, out, room)
        return bytes(ffi.buffer(out, size))

    def backlog(self) -> Backlog:
        """Return how many bytes the connection holds."""
        n = self._numbers
        lib.bk_connection_backlog(self._pointer, n, n + 1, n + 2, n + 3)
        return Backlog(n[0], n[1], n[2], n[3])

    def close(self) -> None:
        """Forget the connection. Adds that were taken in stay in the journal."""
        if self._pointer != ffi.NULL:
            lib.bk_connection_close(self._pointer)
            self._pointer = ffi.NULL
