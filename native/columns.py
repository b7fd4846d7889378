"""Messages as columns in the layout of Apache Arrow, and the batches made of them.

C reads and writes the buffers of the columns. batch.py takes batches apart again.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Sized
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, Union, cast

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.errors import TooLarge, raise_for

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class SupportsArray(Protocol):
    """An array of numpy, or a column of pandas or Polars, which Arrow can convert."""

    def __len__(self) -> int: ...
    def __array__(self) -> object: ...


Column: TypeAlias = Union[Sequence[T], "pa.Array", "pa.ChunkedArray", SupportsArray]
"""Items as a caller has them. Arrow's arrays are not copied."""
SIZE_MAX = int(lib.BK_BATCH_SIZE_MAX)
"""Bytes of the largest payload, also before it is compressed."""
COUNT_MAX = int(lib.BK_BATCH_COUNT_MAX)
NO_TIME = -(1 << 63)
Compression = Literal["none", "zstd", "lz4"]
COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]
_CODECS = {"zstd": "zstd", "lz4": "lz4_raw"}
_ENDS_MAX = 4096
_NAME_SIZE_MAX = 0xFFFF
_BYTES_MAX = (1 << 31) - 1
_ROW_SIZE = 4
_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class Binary(NamedTuple):
    """Byte strings as one column.

    *offsets*, a memoryview "i", has the start of each string in *data*, and the end of the last;
    the first need not be 0. *validity* has a bit for each string, 0 for null, lowest bit first;
    `None` if no string is null.
    """

    offsets: memoryview
    data: memoryview
    validity: Buffer | None = None

    @property
    def length(self) -> int:
        """The number of strings, nulls included."""
        return len(self.offsets) - 1

    @classmethod
    def of(cls, values: Sequence[Buffer | None]) -> Binary:
        """Return *values* as a column, which copies their bytes.

        Raises:
            TypeError: a value is neither bytes-like nor None.
            TooLarge: the values have 2 GiB or more.
        """
        validity = None
        present = cast("Sequence[Buffer]", values)  # join() finds None faster than a loop would
        try:
            data = b"".join(present)
        except TypeError:
            if None not in values:
                raise
            validity = pack_bits(bytes([value is not None for value in values]))
            present = [b"" if value is None else value for value in values]
            data = b"".join(present)
        return cls(_offsets(present, len(data)), memoryview(data), validity)

    @classmethod
    def of_buffers(
        cls,
        offsets: Buffer,
        data: Buffer,
        validity: Buffer | None = None,
        *,
        first: int = 0,
        count: int | None = None,
    ) -> Binary:
        """Return *count* strings from *first* on, of another library's buffers such as Arrow's.

        *offsets* are 32 bits wide. Only validity is copied, and only if *first* is not a multiple
        of 8. Offsets are checked when C uses them.

        Raises:
            ValueError: a buffer is too small.
        """
        places = memoryview(offsets).cast("B")
        if count is None:
            count = len(places) // 4 - 1 - first
        if first < 0 or count < 0 or len(places) < 4 * (first + count + 1):
            raise ValueError(f"{len(places)} bytes of offsets for strings {first} + {count}")
        return cls(
            places[4 * first : 4 * (first + count + 1)].cast("i"),
            memoryview(data).cast("B"),
            None if validity is None else slice_bits(validity, first, count),
        )

    def to_list(self) -> list[bytes | None]:
        """Return bytes objects, with `None` for null."""
        data = bytes(self.data)
        found: list[bytes | None] = [
            data[begin:end] for begin, end in pairwise(self.offsets.tolist())
        ]
        if self.validity is not None:
            for i in null_places(self.validity, self.length):
                found[i] = None
        return found


def nulls(count: int) -> Binary:
    """Return a column of *count* nulls, which takes about 4 bytes for each."""
    return Binary(
        memoryview(bytes(4 * count + 4)).cast("i"), memoryview(b""), bytes(count // 8 + 1)
    )


class Headers(NamedTuple):
    """The headers of messages as columns: names, values, and the range of each message."""

    offsets: memoryview
    """An "i" more than there are messages: places in the two below."""
    names: Binary
    values: Binary

    @classmethod
    def of(cls, headers: Sequence[Mapping[str, bytes] | None]) -> Headers:
        """Return the headers of each message as columns; `None` stands for no headers.

        Raises:
            TypeError: a name is not a str, or a value is not bytes.
        """
        given = [one or {} for one in headers]
        names = [name.encode() for name in chain.from_iterable(given)]
        values = list(chain.from_iterable(one.values() for one in given))
        return cls(_offsets(given, len(names)), Binary.of(names), Binary.of(values))

    def to_list(self) -> list[dict[str, bytes]]:
        """Return the headers of each message; the last one wins if a name is repeated."""
        names = cast("list[bytes]", self.names.to_list())  # neither is null, as C checks
        values = cast("list[bytes]", self.values.to_list())
        pairs = list(zip(map(bytes.decode, names), values, strict=True))
        return [dict(pairs[begin:end]) for begin, end in pairwise(self.offsets.tolist())]


class Columns(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """Messages as columns. A column that is `None` is null for every message."""

    count: int
    values: Binary
    keys: Binary | None = None
    event_times: memoryview | None = None
    """"q": nanoseconds"""
    event_time_validity: Buffer | None = None
    timestamps: memoryview | None = None
    """"Q": 0 for none"""
    headers: Headers | None = None

    def __post_init__(self) -> None:
        """Check that every column has *count* rows.

        Raises:
            ValueError: a column has another length.
        """
        lengths = {
            "values": self.values.length,
            "keys": None if self.keys is None else self.keys.length,
            "event times": None if self.event_times is None else len(self.event_times),
            "timestamps": None if self.timestamps is None else len(self.timestamps),
            "headers": None if self.headers is None else len(self.headers.offsets) - 1,
        }
        for name, length in lengths.items():
            if length is not None and length != self.count:
                raise ValueError(f"{length} {name} for {self.count} messages")

    @classmethod
    def of(
        cls,
        values: Sequence[Buffer | None],
        *,
        keys: Sequence[Buffer | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Columns:
        """Return messages as columns, from one sequence for each column.

        Raises:
            ValueError: the sequences differ in length.
            TypeError: an item has the wrong type.
            OverflowError: a time does not fit 64 bits.
            TooLarge: values or keys have 2 GiB or more.
        """
        times, validity = (None, None) if event_times is None else words_of("q", event_times)
        stamps = None if timestamps is None else memoryview(array("Q", timestamps))
        return cls(
            count=len(values),
            values=Binary.of(values),
            keys=None if keys is None else Binary.of(keys),
            event_times=times,
            event_time_validity=validity,
            timestamps=stamps,
            headers=None if headers is None else Headers.of(headers),
        )

    def event_times_list(self) -> list[int | None]:
        """Return the event time of each message, `None` if it has none."""
        if self.event_times is None:
            return [None] * self.count
        times: list[int | None] = list(self.event_times)
        if self.event_time_validity is not None:
            for i in null_places(self.event_time_validity, self.count):
                times[i] = None
        return times

    @cached_property
    def loan(self) -> Loan:
        """The columns as a bk_columns, for the other modules of this package."""
        return Loan(self)


class Loan:
    """Buffers lent to C; *pointer* is valid while this object lives."""

    def __init__(self, lender: Columns | Binary) -> None:
        self._kept: list[memoryview] = []
        if isinstance(lender, Binary):
            self.pointer = ffi.new("bk_binary *", self._strings(lender))
        else:
            self.pointer = ffi.new("bk_columns *", self._columns(lender))

    def _columns(self, columns: Columns) -> dict[str, CData]:
        bitmap_size = (columns.count + 7) // 8
        lent = {
            "count": columns.count,
            "values": self._strings(columns.values),
            "event_times": self._lend(columns.event_times, 8 * columns.count),
            "event_time_validity": self._lend(columns.event_time_validity, bitmap_size),
            "timestamps": self._lend(columns.timestamps, 8 * columns.count),
        }
        if columns.keys is not None:
            lent["keys"] = self._strings(columns.keys)
        if columns.headers is not None:
            names, values = columns.headers.names, columns.headers.values
            nullable = names.validity is not None or values.validity is not None
            if names.length != values.length or nullable:
                raise ValueError("a header has a name and a value, neither of them null")
            lent["header_offsets"] = self._lend(columns.headers.offsets, 4 * columns.count + 4)
            lent["header_count"] = names.length
            lent["names"] = self._strings(names)
            lent["header_values"] = self._strings(values)
        return lent

    def _strings(self, strings: Binary) -> dict[str, CData]:
        return {
            "offsets": self._lend(strings.offsets, 4 * strings.length + 4),
            "data": self._lend(strings.data, 0),
            "size": strings.data.nbytes,
            "validity": self._lend(strings.validity, (strings.length + 7) // 8),
        }

    def _lend(self, buffer: Buffer | None, size_min: int) -> CData:
        if buffer is None:
            return ffi.NULL
        view = memoryview(buffer)
        if view.nbytes < size_min:
            raise ValueError(f"a column of {view.nbytes} bytes; it takes {size_min}")
        self._kept.append(view)
        return address(view)


def address(buffer: Buffer | array[int]) -> CData:
    """Return a buffer's address; the caller keeps the buffer alive.

    The pointer holds no reference: CPython before 3.12.7 crashes on garbage cycles with a
    memoryview and an object that holds its buffer.
    """
    with ffi.from_buffer(buffer) as lent:
        return ffi.cast("uint8_t *", lent)


def address_of_rows(rows: array[int]) -> CData:
    """Return the address of an array "I"; the caller keeps the array alive.

    Raises ValueError for an array with items of another size.
    """
    if rows.itemsize != _ROW_SIZE:
        raise ValueError(f"an array {rows.typecode!r} where 'I' is needed")
    return ffi.cast("uint32_t *", address(rows))


def check_columns(result: int) -> None:
    """Raise ValueError if C found the columns unsound."""
    if result == lib.BK_CORRUPT:
        raise ValueError("columns do not fit together: an offset, a row or a time is out of bounds")
    if result != lib.BK_OK:
        raise_for(result, "columns of messages")


# --- batches made of columns --------------------------------------------------------


def encode(
    columns: Columns,
    start: int,
    stop: int,
    *,
    rows: array[int] | None = None,
    compression: Compression = "none",
    batched: bool = True,
    producer: bytes = b"",
    sequence: int = -1,
    epoch: int = 0,
    created_ms: int = 0,
) -> bytes:
    """Return the payload of one batch: the messages from *start* to before *stop*.

    With *rows*, an array "I" of row numbers in *columns*, the batch has the rows
    ``rows[start:stop]``, in that order. A body that compression would not make smaller is stored
    uncompressed. The buffers must not change during the call.

    Raises:
        TooLarge: the batch exceeds SIZE_MAX or COUNT_MAX; cut() prevents that.
        ValueError: the batch has no messages or too many, *batched* is False and it has not exactly
            one, an event time is -2**63, or the columns do not fit together.
    """
    which = _rows(columns, start, stop, rows)
    if stop - start < 1 or not (batched or stop - start == 1):
        raise ValueError(f"{stop - start} messages in a batch, batched={batched}")
    header, layout = ffi.new("bk_batch_header *"), ffi.new("bk_batch_layout *")
    header.producer_size = _name_size(producer)
    result = lib.bk_batch_plan(columns.loan.pointer, *which, header, layout)
    if result == lib.BK_SMALL:
        raise TooLarge("a batch", size=layout.size, size_max=SIZE_MAX)
    check_columns(result)
    header.flags |= lib.BK_BATCH_BATCHED if batched else 0
    _fill(header, lib.BK_BATCH_MESSAGES, sequence, epoch, created_ms)
    out = _new_uncleared("uint8_t[]", header.body_offset + header.body_size)
    body = out + header.body_offset
    lib.bk_batch_write_body(columns.loan.pointer, *which, header, layout, body)
    return _finish(header, producer, out, compression)


def encode_control(
    kind: int,
    body: bytes,
    *,
    compression: Compression = "none",
    producer: bytes = b"",
    epoch: int = 0,
    created_ms: int = 0,
    last_timestamp: int = 0,
) -> bytes:
    """Return the payload of a control entry, which holds *body* and no messages.

    *kind* is a BatchKind.

    Raises:
        TooLarge: the payload exceeds SIZE_MAX.
    """
    header = ffi.new("bk_batch_header *")
    header.producer_size = _name_size(producer)
    header.body_offset = lib.bk_batch_body_offset(header.producer_size)
    size = header.body_offset + len(body)
    if size > SIZE_MAX:
        raise TooLarge("a control entry", size=size, size_max=SIZE_MAX)
    header.body_size = len(body)
    header.last_timestamp = last_timestamp
    header.event_time_min = header.event_time_max = NO_TIME
    _fill(header, kind, -1, epoch, created_ms)
    out = _new_uncleared("uint8_t[]", size)
    ffi.memmove(out + header.body_offset, body, len(body))
    return _finish(header, producer, out, compression)


def stamp(payload: bytes, first_timestamp: int) -> bytes:
    """Return the encoded batch, whose messages get consecutive timestamps instead of former ones.

    Raises:
        ValueError: the payload is no batch of messages, has a column of timestamps, or they would
            not be within 1 to 2**64 - 1.
    """
    if not 0 < first_timestamp < 1 << 64:
        raise ValueError(f"{first_timestamp} is no message's timestamp")
    out = _new_uncleared("uint8_t[]", len(payload))
    ffi.memmove(out, payload, len(payload))
    if lib.bk_batch_stamp(out, len(payload), first_timestamp) != lib.BK_OK:
        raise ValueError("a batch that cannot have these timestamps")
    return bytes(ffi.buffer(out))


def _fill(header: CData, kind: int, sequence: int, epoch: int, created_ms: int) -> None:
    if not -1 <= sequence < 1 << 63:
        raise ValueError(f"{sequence} is no sequence number")
    header.kind = kind
    header.sequence = sequence
    header.epoch = epoch
    header.created_ms = created_ms


def _finish(header: CData, producer: bytes, out: CData, compression: Compression) -> bytes:
    """Compress the body in *out* if that makes it smaller, and write the header before it."""
    if compression != "none":
        body = ffi.buffer(out + header.body_offset, header.body_size)
        smaller = bytes(codec(compression).compress(body, asbytes=True))
        if len(smaller) < header.body_size:
            header.compression = COMPRESSIONS.index(compression)
            lib.bk_batch_write_header(out, header, producer)
            return bytes(ffi.buffer(out, header.body_offset)) + smaller
    lib.bk_batch_write_header(out, header, producer)
    return bytes(ffi.buffer(out))


def _name_size(producer: bytes) -> int:
    producer.decode()  # a ValueError here, rather than an entry that nobody can read
    if len(producer) > _NAME_SIZE_MAX:
        raise ValueError(f"a producer's name of {len(producer)} bytes; {_NAME_SIZE_MAX} at most")
    return len(producer)


@cache
def codec(compression: str) -> pa.Codec:
    """Return pyarrow's codec; the first call imports pyarrow, which takes long."""
    import pyarrow as pa

    return pa.Codec(_CODECS[compression])


def cut(
    columns: Columns,
    *,
    size_max: int,
    count_max: int,
    rows: array[int] | None = None,
    producer: bytes = b"",
) -> array[int]:
    """Return the ends of batches: each batch begins at the previous end and excludes its own.

    A batch has at most *count_max* messages, and at most *size_max* uncompressed bytes unless a
    single message is larger. With *rows*, ends are indexes in *rows*.

    Raises:
        TooLarge: a message does not fit a batch; the error's *index* is its row.
        ValueError: the columns do not fit together.
    """
    total = columns.count if rows is None else len(rows)
    name_size = _name_size(producer)
    limits = min(size_max, SIZE_MAX), max(1, min(count_max, COUNT_MAX))
    room = min(total, _ENDS_MAX)
    some = _new_uncleared("uint32_t[]", room)
    said = ffi.new("uint64_t[3]")
    ends = array("I")
    start = 0
    while start < total:
        which = _rows(columns, start, total, rows)
        result = lib.bk_batch_cut(
            columns.loan.pointer, *which, name_size, *limits, some, room, said, said + 1, said + 2
        )
        if result == lib.BK_SMALL:
            raise TooLarge("a message", size=said[2], size_max=SIZE_MAX, index=said[1])
        check_columns(result)
        ends.frombytes(ffi.buffer(some, 4 * said[0]))
        start = ends[-1]
    return ends


def _rows(
    columns: Columns, start: int, stop: int, rows: array[int] | None
) -> tuple[CData, int, int]:
    """Return the three C arguments that select messages."""
    total = columns.count if rows is None else len(rows)
    if not 0 <= start <= stop <= total:
        raise ValueError(f"messages {start} to {stop} of {total}")
    return ffi.NULL if rows is None else address_of_rows(rows), start, stop


# --- bits and offsets ---------------------------------------------------------------


def pack_bits(flags: bytes) -> bytes:
    """Return a bit for each byte, 1 if the byte is not 0; lowest bit first."""
    bits = ffi.new("uint8_t[]", (len(flags) + 7) // 8)
    lib.bk_bits_pack(flags, len(flags), bits)
    return bytes(ffi.buffer(bits))


def slice_bits(bits: Buffer, first: int, count: int) -> Buffer:
    """Return *count* bits from *first* on; copies unless *first* is a multiple of 8.

    Raises:
        ValueError: there are fewer bits.
    """
    view = memoryview(bits).cast("B")
    if first < 0 or first + count > 8 * len(view):
        raise ValueError(f"bits {first} to {first + count} of {8 * len(view)}")
    if first % 8 == 0:
        return view[first // 8 : (first + count + 7) // 8]
    shifted = ffi.new("uint8_t[]", (count + 7) // 8)
    with ffi.from_buffer(view) as lent:
        lib.bk_bits_copy(lent, first, count, shifted)
    return bytes(ffi.buffer(shifted))


def null_places(validity: Buffer, count: int) -> list[int]:
    """Return the indexes of the zeros among the first *count* bits."""
    bits = memoryview(validity).cast("B")[: (count + 7) // 8]
    found = [
        8 * place + bit
        for place, byte in enumerate(bits)
        if byte != 0xFF
        for bit in range(8)
        if not byte >> bit & 1
    ]
    while found and found[-1] >= count:  # bits after the last message
        found.pop()
    return found


def words_of(
    kind: Literal["q", "Q"], numbers: Sequence[int | None]
) -> tuple[memoryview, bytes | None]:
    """Return *numbers* as a column of 64 bits each, and its validity."""
    if isinstance(numbers, array | memoryview):
        return memoryview(numbers).cast("B").cast(kind), None
    try:
        return memoryview(array(kind, cast("Sequence[int]", numbers))), None
    except TypeError:
        if None not in numbers:
            raise
    validity = pack_bits(bytes([number is not None for number in numbers]))
    return memoryview(array(kind, [number or 0 for number in numbers])), validity


def _offsets(items: Sequence[Sized], size: int) -> memoryview:
    """Return the offsets of *items*, whose lengths add up to *size*."""
    if size > _BYTES_MAX:
        raise TooLarge("a column", size=size, size_max=_BYTES_MAX)
    lengths = array("I", list(map(len, items)))
    offsets = array("i", bytes(4 * len(items) + 4))
    with ffi.from_buffer(lengths) as given, ffi.from_buffer(offsets) as out:
        result = lib.bk_offsets(given, len(lengths), out)
    if result != lib.BK_OK or offsets[-1] != size:
        raise TypeError("items that are no bytes")  # for example, a memoryview with wider items
    return memoryview(offsets)
