"""The client's side of the wire, as link.h defines it: writers, links, single entries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.digest import Digest
from native.errors import Corrupt, check, raise_for

_RESPONSES_MAX = 256
_TOKENS_MAX = 256
_CHUNK_SIZE = 256 << 10
_COPIED_MAX = 65536  # a body that arrived in several reads is copied up to this size, else lent
_ENTRY_SIZE_MIN = 36  # in a batch: the size, and a stored entry without payload
_HEAD_SIZE = 16
TLS_REMEDY = "it speaks TLS; name it as bookie+tls://host:port"
HTTP_REMEDY = "it speaks HTTP, as the port of a bookie's metrics does; a bookie listens at another"
_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class WriterState(msgspec.Struct, frozen=True):
    """The progress of a writer. Sizes are payload bytes of the ledger."""

    lac: int
    next_entry: int
    length: int
    confirmed_length: int
    pending_bytes: int
    refused: int
    """Bit i: the bookie at index i refused an entry."""
    code: int
    """The first refusal's code, 0 for none; FENCED and UNAUTHORIZED replace others."""


class Writer:
    """One ledger being written: builds its ADD frames and counts acknowledgements.

    If ``ensemble_size == write_quorum``, every bookie gets the same bytes, so they are
    built once. close() detaches the writer from its links.
    """

    def __init__(
        self,
        ledger_id: int,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest: Digest,
        *,
        first_entry: int = 0,
        length: int = 0,
        token: int = 0,
        flags: int = 0,
    ) -> None:
        """Start before *first_entry*, with *length* payload bytes in front of it.

        Link.dirty() returns *token* when the writer's state has changed. Every ADD frame
        carries *flags*; Flag.RECOVERY adds to a fenced ledger.

        Raises:
            OSError: EINVAL, not 1 <= ack <= write <= ensemble <= 64.
        """
        out = ffi.new("bk_writer **")
        result = lib.bk_writer_open(
            ledger_id,
            ensemble_size,
            write_quorum,
            ack_quorum,
            digest.pointer,
            flags,
            first_entry,
            length,
            token,
            out,
        )
        check(result, f"a writer of ledger {ledger_id}")
        self._pointer = ffi.gc(out[0], lib.bk_writer_close)
        self._buffer_count = 1 if ensemble_size == write_quorum else ensemble_size
        self._copies = ensemble_size // self._buffer_count
        self._payload_size_max = digest.payload_size_max
        self._sizes = ffi.new("uint64_t[]", self._buffer_count)
        self._outs = ffi.new("uint8_t *[]", self._buffer_count)
        self._first = ffi.new("int64_t *")
        self._state = ffi.new("bk_writer_state *")

    @property
    def pointer(self) -> CData:
        """The handle, for the other modules of this package; ValueError once closed."""
        if self._pointer is None:
            raise ValueError("the writer is closed")
        return self._pointer

    @property
    def is_open(self) -> bool:
        """True until close(), after which other calls raise ValueError."""
        return self._pointer is not None

    def add(self, payloads: Sequence[bytes]) -> tuple[int, list[memoryview]]:
        """Return the first entry's id, and the ADD frames for each bookie of the ensemble.

        The ids of *payloads* rise by one from there. A bookie that stores none of them gets
        an empty buffer; bookies that store the same entries get the same object.

        Raises:
            ValueError: a payload is too large for a frame, or ids run out. Nothing is added.
        """
        pointer = self.pointer
        sizes = array("I", map(len, payloads))
        lent_sizes = ffi.from_buffer("uint32_t[]", sizes)
        if lib.bk_writer_plan(pointer, lent_sizes, len(sizes), self._sizes) != lib.BK_OK:
            raise ValueError(
                f"a payload has more than {self._payload_size_max} bytes, or entry ids run out"
            )
        frames: list[memoryview] = []
        for i, size in enumerate(self._sizes):
            buffer = self._outs[i] = _new_uncleared("uint8_t[]", size)
            frames.append(memoryview(ffi.buffer(buffer)))
        joined = b"".join(payloads)
        result = lib.bk_writer_add(pointer, joined, lent_sizes, len(sizes), self._outs, self._first)
        if result != lib.BK_OK:
            raise_for(result, "adding entries")
        return self._first[0], frames * self._copies

    def state(self) -> WriterState:
        """Return the writer's progress, as of the acknowledgements counted so far."""
        lib.bk_writer_get_state(self.pointer, self._state)
        raw = self._state
        return WriterState(
            raw.lac,
            raw.next_entry,
            raw.length,
            raw.confirmed_length,
            raw.pending_bytes,
            raw.refused,
            raw.code,
        )

    def acknowledge(self, bookie: int, entry_id: int, code: int = 0) -> None:
        """Count one response of the bookie at this index, as a link does."""
        lib.bk_writer_acknowledge(self.pointer, bookie, entry_id, code)

    def behind(self) -> int:
        """Return bit i set for each index i whose bookie has unacknowledged entries.

        Confirmed entries count too, if the bookie has not acknowledged them. Entries sent to
        a bookie that it replaced do not.
        """
        return int(lib.bk_writer_behind(self.pointer))

    def owing(self) -> int:
        """Return bit i set for each index i that holds up the oldest unconfirmed entry.

        0 means that everything is confirmed.
        """
        return int(lib.bk_writer_owing(self.pointer))

    def hold(self, on: bool) -> None:
        """Hold the LAC while the ensemble changes, or release it.

        Acknowledgements are counted meanwhile. `hold(False)` confirms every entry that has
        its ack quorum; no link reports this, so read state() afterwards.
        """
        lib.bk_writer_hold(self.pointer, on)

    def replace(self, bookie: int) -> None:
        """Replace the bookie at this index of the ensemble.

        Detaches the old bookie's link and forgets its refusal and its acknowledgements above
        the LAC; `code` becomes 0 unless it is FENCED or UNAUTHORIZED. Then attach the new
        bookie's link, and send it the entries above the LAC that it stores.

        Raises:
            OSError: EINVAL, no such index, or the LAC is not held.
        """
        check(lib.bk_writer_replace(self.pointer, bookie), "replacing a bookie")

    def close(self) -> None:
        """Drop pending entries and detach from all links. Closing twice is harmless."""
        if self._pointer is not None:
            ffi.release(self._pointer)
            self._pointer = None


class Response(msgspec.Struct, frozen=True):
    """A response frame. Fields that its opcode lacks are 0 or empty.

    A large body is a read-only view of the memory that it was received into.
    """

    opcode: int
    code: int
    ledger_id: int
    entry_id: int
    request_id: int
    lac: int
    fenced: bool
    body: bytes | memoryview


class Link:
    """The incoming side of one connection: counts acknowledgements, returns other responses."""

    def __init__(self) -> None:
        out = ffi.new("bk_link **")
        check(lib.bk_link_open(out), "a link")
        self._pointer = ffi.gc(out[0], lib.bk_link_close)
        self._raw = ffi.new("bk_response[]", _RESPONSES_MAX)
        self._used = ffi.new("size_t *")
        self._count = ffi.new("uint32_t *")
        self._tokens = ffi.new("uint64_t[]", _TOKENS_MAX)
        self._room_size = ffi.new("size_t *")
        self._chunk: CData = None
        self._room: CData = None
        self._orphan: CData = None

    def attach(self, writer: Writer, bookie: int) -> None:
        """Count ADD responses of the writer's ledger for this index of its ensemble.

        Raises:
            OSError: EEXIST, another writer of the ledger is attached; EINVAL, no
                such index.
        """
        check(lib.bk_link_attach(self._open(), writer.pointer, bookie), "attaching a writer")

    def detach(self, writer: Writer) -> None:
        """Stop counting for this writer; harmless if it is not attached."""
        if self._pointer is not None and writer.is_open:
            lib.bk_link_detach(self._pointer, writer.pointer)

    def room(self) -> memoryview:
        """Return memory for the next bytes from the bookie; then call `filled`.

        The rest of a large frame is received in place, without another copy. Do not call
        `feed` in between. The memory stays valid while the link object lives, even if the
        link is closed meanwhile.
        """
        self._room = lib.bk_link_room(self._open(), self._room_size)
        if self._room != ffi.NULL:
            return memoryview(ffi.buffer(self._room, self._room_size[0]))
        if self._chunk is None:
            self._chunk = _new_uncleared("uint8_t[]", _CHUNK_SIZE)
        self._room = self._chunk
        return memoryview(ffi.buffer(self._chunk))

    def filled(self, size: int) -> list[Response]:
        """Parse *size* bytes received into the memory of room(); returns and raises as `feed`."""
        room, self._room = self._room, None
        return self._feed(room, size)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Response]:
        """Parse bytes from the bookie and return the responses that no writer counted.

        Raises:
            ProtocolBroken: they are no responses; the link accepts no more bytes.
        """
        with ffi.from_buffer(data) as lent:
            return self._feed(lent, len(lent))

    def _feed(self, start: CData, size: int) -> list[Response]:
        pointer, at = self._open(), ffi.cast("uint8_t *", start)
        head = bytes(ffi.buffer(at, min(size, _HEAD_SIZE)))
        responses: list[Response] = []
        while True:
            result = lib.bk_link_feed(
                pointer, at, size, self._used, self._raw, _RESPONSES_MAX, self._count
            )
            if result != lib.BK_OK:
                raise_for(result, _spoken(head))
            if count := self._count[0]:
                responses += [self._response(raw, at) for raw in self._raw[0:count]]
            at, size = at + self._used[0], size - self._used[0]
            if size == 0:
                return responses

    def _response(self, raw: CData, fed: CData) -> Response:
        return Response(
            raw.opcode,
            raw.code,
            raw.ledger_id,
            raw.entry_id,
            raw.request_id,
            raw.lac,
            raw.fenced != 0,
            self._body(raw, fed),
        )

    def _body(self, raw: CData, fed: CData) -> bytes | memoryview:
        start, size = raw.body_offset, raw.body_size
        if not raw.in_pieces:
            return bytes(ffi.buffer(fed + start, size))
        if size <= _COPIED_MAX:
            return bytes(ffi.buffer(lib.bk_link_partial(self._pointer) + start, size))
        taken = ffi.gc(lib.bk_link_take(self._pointer), lib.bk_link_release, start + size)
        return memoryview(ffi.buffer(taken, start + size)).toreadonly()[start:]

    def dirty(self) -> list[int]:
        """Return the tokens of writers whose state this link changed since the last call."""
        tokens: list[int] = []
        while True:
            count = lib.bk_link_dirty(self._open(), self._tokens, _TOKENS_MAX)
            tokens += ffi.unpack(self._tokens, count)
            if count < _TOKENS_MAX:
                return tokens

    @property
    def answers(self) -> int:
        """The number of ADD responses counted for attached writers."""
        return int(lib.bk_link_answers(self._open()))

    def close(self) -> None:
        """Detach all writers and drop an incomplete frame. Closing twice is harmless."""
        if self._pointer is not None:
            if self._room is not None:  # the caller may still receive into it
                self._orphan = ffi.gc(lib.bk_link_take(self._pointer), lib.bk_link_release)
            ffi.release(self._pointer)
            self._pointer = None

    def _open(self) -> CData:
        if self._pointer is None:
            raise ValueError("the link is closed")
        return self._pointer


def protocol_of(head: bytes) -> str:
    """Return "TLS" or "HTTP" if a peer whose first bytes are *head* speaks that, else ""."""
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "TLS"
    return "HTTP" if head.startswith(b"HTTP/") or head[:9].lower() == b"<!doctype" else ""


def _spoken(head: bytes) -> str:
    """Name what bytes are that are no response, by the first of them."""
    return {"TLS": TLS_REMEDY, "HTTP": HTTP_REMEDY}.get(protocol_of(head), "a response")


def add_frame(
    digest: Digest,
    ledger_id: int,
    entry_id: int,
    lac: int,
    length: int,
    payload: bytes,
    *,
    flags: int = 0,
) -> bytes:
    """Return one ADD frame; *length* counts the ledger's payload bytes up to this entry.

    Raises:
        ValueError: the payload is too large for a frame.
    """
    if len(payload) > digest.payload_size_max:
        raise ValueError(f"a payload has more than {digest.payload_size_max} bytes")
    out = _new_uncleared("uint8_t[]", lib.bk_frame_add_size(digest.pointer, len(payload)))
    lib.bk_frame_add(
        out, digest.pointer, flags, ledger_id, entry_id, lac, length, payload, len(payload)
    )
    return bytes(ffi.buffer(out))


class Entries(msgspec.Struct, frozen=True):
    """The sound entries at the start of a body; payload i begins at offsets[i]."""

    count: int
    offsets: list[int]
    sizes: list[int]
    lac: int
    """The greatest LAC in their headers, -1 without entries."""
    length: int
    """The ledger's payload bytes up to the last of them."""
    sound: bool
    """False if the bytes after them are damaged."""


def check_entries(
    digest: Digest, body: bytes | memoryview, ledger_id: int, start_id: int, count_max: int
) -> Entries:
    """Check the entries in the body of a BATCH_READ or READ_WAIT response.

    Their ids rise by one from *start_id*; at most *count_max* are checked.
    """
    with ffi.from_buffer(body) as lent:
        room = max(0, min(count_max, len(lent) // _ENTRY_SIZE_MIN + 1))
        offsets, sizes = _new_uncleared("uint64_t[]", room), _new_uncleared("uint32_t[]", room)
        count, lac = ffi.new("uint32_t *"), ffi.new("int64_t *")
        length = ffi.new("uint64_t *")
        result = lib.bk_entries_check(
            digest.pointer,
            lent,
            len(lent),
            ledger_id,
            start_id,
            room,
            offsets,
            sizes,
            count,
            lac,
            length,
        )
    n = count[0]
    return Entries(
        n,
        ffi.unpack(offsets, n),
        ffi.unpack(sizes, n),
        lac[0],
        length[0],
        result == lib.BK_OK,
    )


def readd(key: bytes, flags: int, body: bytes | memoryview) -> tuple[memoryview, int]:
    """Return the entries in the body of a BATCH_READ response as ADD frames, and their count.

    The stored entries are copied unchanged, so all replicas stay equal. Digests are not
    checked here, but by `check_entries`.

    Raises:
        Corrupt: the body does not consist of whole entries.
    """
    count, size = ffi.new("uint32_t *"), ffi.new("uint64_t *")
    with ffi.from_buffer(body) as lent:
        check(lib.bk_readd_plan(lent, len(lent), count, size), "entries to add again")
        out = _new_uncleared("uint8_t[]", size[0])
        lib.bk_readd(out, _checked_key(key), flags, lent, len(lent))
    return memoryview(ffi.buffer(out)), count[0]


def readd_one(key: bytes, flags: int, stored: bytes | memoryview) -> memoryview:
    """Return one stored entry, as in the body of a READ response, as an ADD frame.

    Raises:
        Corrupt: it has no whole header, or is too large for a frame.
    """
    with ffi.from_buffer(stored) as lent:
        if not lib.bk_readd_fits(len(lent)):
            raise Corrupt(f"{len(lent)} bytes are no stored entry")
        out = _new_uncleared("uint8_t[]", lib.BK_ADD_HEADER_SIZE + len(lent))
        lib.bk_frame_readd(out, _checked_key(key), flags, lent, len(lent))
    return memoryview(ffi.buffer(out))


def _checked_key(key: bytes) -> bytes:
    if len(key) != lib.BK_KEY_SIZE:
        raise ValueError(f"a master key has {lib.BK_KEY_SIZE} bytes, not {len(key)}")
    return key
