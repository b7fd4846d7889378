"""One peer of the engine: frames in, responses of adds out. See engine.h."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.errors import raise_for
from native.frame import Request, take_request

REQUESTS_MAX = 256
_REQUEST_SIZE = ffi.sizeof("bk_request")
_NOTHING = ffi.new("uint8_t[1]")
_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class Verdict(enum.IntEnum):
    """The end of a feed; the caller acts on it, see Connection.feed()."""

    OK = lib.BK_OK
    FULL = lib.BK_FULL
    AGAIN = lib.BK_AGAIN
    ASK = lib.BK_ASK
    CLOSE = lib.BK_CLOSE


class Reads:
    """READs that wait for their responses, see Engine.answer_reads().

    Args:
        count: the number of their bk_request structs, which the caller copies to *rows*.
    """

    def __init__(self, count: int) -> None:
        self.rows = ffi.new("bk_request[]", count)
        self.left = ffi.new("uint32_t *", count)

    @classmethod
    def joined(cls, parts: Sequence[Reads]) -> Reads:
        """Return the READs of all *parts*, as a copy."""
        all_of_them = cls(sum(map(len, parts)))
        start = 0
        for part in parts:
            ffi.memmove(all_of_them.rows + start, part.rows, len(part) * _REQUEST_SIZE)
            start += len(part)
        return all_of_them

    def __len__(self) -> int:
        return int(self.left[0])


class Fed(msgspec.Struct, frozen=True):
    """The result of one feed; *used* bytes were consumed.

    *reads*: READs that came before the requests, and fence nothing; `None` if there are none.
    """

    used: int
    verdict: Verdict
    requests: list[Request]
    reads: Reads | None = None


class Backlog(msgspec.Struct, frozen=True):
    """Bytes that a connection holds: unsynced adds, responses, an incomplete frame."""

    unsynced: int
    ready: int
    waiting: int
    partial: int


class Connection:
    """One peer of the engine: feed() takes its bytes, take() returns the responses to send."""

    def __init__(self, pointer: CData, requests: CData) -> None:
        self._pointer = pointer
        self._requests = requests
        self._told = False
        self._numbers = ffi.new("uint64_t[4]")
        self._used = ffi.new("size_t *")
        self._count = ffi.new("uint32_t *")

    def feed(self, data: bytes | bytearray | memoryview, *, gathers: bool = False) -> Fed:
        """Consume bytes from the peer. *gathers*: READs are told as Fed.reads, not one by one.

        After Verdict.FULL, feed the rest after Event.SPACE (even if the rest is empty); after
        Verdict.AGAIN, feed it after look(), and after Verdict.ASK after tell(); after Verdict.OK
        with bytes left, feed them at once; after Verdict.CLOSE, send the responses of take(), then
        close. If the requests had an INCARNATION, renew the ledger or refuse() first.

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
            reads = self._take_reads() if gathers and self._count[0] else None
            first = len(reads) if reads else 0
            requests = self._take_requests(buffer, first) if self._count[0] > first else []
        used = self._used[0]
        if requests and any(request.body for request in requests):
            self._release_pieces()
        return Fed(used, Verdict(result), requests, reads)

    def look(self) -> None:
        """Read from the entry logs the entry that a feed needs. Blocks.

        Only take() and backlog() may be called meanwhile.

        Raises:
            OSError: no memory.
        """
        result = lib.bk_connection_look(self._pointer)
        if result < 0:
            raise_for(result, "a repeated entry")

    @property
    def asked(self) -> int:
        """The ledger of the frame at which feed() ended with Verdict.ASK."""
        return int(lib.bk_connection_asked(self._pointer))

    def tell(
        self, ledger_id: int, code: int, incarnation: int = 0, key: bytes | None = None
    ) -> None:
        """Say what is true of a ledger that is not here; it holds until the next call.

        Frames for it from a peer that declared no incarnation are refused with *code*. If that is
        0, they create it, with *incarnation*, unless they have another master key than *key*.
        """
        self._told = True
        lib.bk_connection_tell(
            self._pointer, ledger_id, code, incarnation, ffi.NULL if key is None else key
        )

    def forget(self) -> None:
        """Let what tell() said hold no longer."""
        if self._told:
            self._told = False
            lib.bk_connection_tell(self._pointer, -1, 0, 0, ffi.NULL)

    def refuse(self, ledger_id: int, incarnation: int) -> None:
        """Answer with OTHER_LEDGER until the ledger here has the peer's incarnation."""
        lib.bk_connection_refuse(self._pointer, ledger_id, incarnation)

    def _release_pieces(self) -> None:
        """Free a frame that arrived in pieces and was copied, as no more bytes may come."""
        lib.bk_connection_feed(
            self._pointer, _NOTHING, 0, self._used, self._requests, REQUESTS_MAX, self._count
        )

    def _take_reads(self) -> Reads | None:
        count = lib.bk_requests_read(self._requests, self._count[0])
        if count == 0:
            return None
        reads = Reads(count)
        ffi.memmove(reads.rows, self._requests, count * _REQUEST_SIZE)
        return reads

    def _take_requests(self, fed: CData, first: int) -> list[Request]:
        rows = self._requests[first : self._count[0]]
        partial = lib.bk_connection_partial(self._pointer)
        return [take_request(row, partial if row.in_pieces else fed) for row in rows]

    def take(self) -> bytes:
        """Return all response bytes that may be sent now."""
        room = max(self.backlog().ready, 4096)
        out = _new_uncleared("uint8_t[]", room)
        size = lib.bk_connection_take(self._pointer, out, room)
        return bytes(ffi.buffer(out, size))

    def backlog(self) -> Backlog:
        """Return the number of bytes that the connection holds."""
        n = self._numbers
        lib.bk_connection_backlog(self._pointer, n, n + 1, n + 2, n + 3)
        return Backlog(n[0], n[1], n[2], n[3])

    def close(self) -> None:
        """Free the connection. Adds that it delivered stay in the journal."""
        if self._pointer != ffi.NULL:
            lib.bk_connection_close(self._pointer)
            self._pointer = ffi.NULL
