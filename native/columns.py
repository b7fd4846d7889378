"""Messages by columns, as Apache Arrow lays columns out, in buffers that C reads and writes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from native._core import ffi, lib
from native.errors import TooLarge, check

Buffer = bytes | bytearray | memoryview
_BYTES_MAX = (1 << 31) - 1
_ROW_SIZE = 4


class Binary(NamedTuple):
    """Byte strings as one column.

    *offsets*, a memoryview "i", says where each begins in *data*, and where the last ends;
    the first need not be 0. *validity* has a bit for each, 0 for null, the lowest of a
    byte first; None: none is null.
    """

    offsets: memoryview
    data: memoryview
    validity: Buffer | None = None

    @property
    def length(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Binary:
        """Return *values* as a column; costs a copy of their bytes.

        Raises:
            TypeError: one is neither bytes-like nor None.
            TooLarge: they have 2 GiB or more.
        """
        validity = None
        try:
            data = b"".join(values)  # type: ignore[arg-type] # tried
        except TypeError:
            if None not in values:
                raise
            validity = pack_bits(bytes([value is not None for value in values]))
            values = [b"" if value is None else value for value in values]
            data = b"".join(values)  # type: ignore[arg-type] # no None any more
        return cls(_offsets(values, len(data)), memoryview(data), validity)

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
        """Return the *count* strings from *first* on of a column made elsewhere, as of Arrow.

        *offsets* are 32 bits wide. Nothing is copied but, when *first* is no multiple of 8,
        validity. Offsets are checked when they are used.

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

    def to_list(self) -> list[Any]:
        """Return them as bytes objects, and None for null."""
        data = bytes(self.data)
        found: list[Any] = [data[begin:end] for begin, end in pairwise(self.offsets.tolist())]
        if self.validity is not None:
            for i in null_places(self.validity, self.length):
                found[i] = None
        return found


def nulls(count: int) -> Binary:
    """Return so many nulls."""
    return Binary(
        memoryview(bytes(4 * count + 4)).cast("i"), memoryview(b""), bytes(count // 8 + 1)
    )


class Headers(NamedTuple):
    """The headers of messages as columns: names and values, and for each message which."""

    offsets: memoryview
    """An "i" more than there are messages: places in the two below."""
    names: Binary
    values: Binary

    @classmethod
    def of(cls, headers: Sequence[Mapping[str, bytes] | None]) -> Headers:
        """Return the headers of each message as columns; None is the same as no headers.

        Raises:
            TypeError: a name is no str, or a value no bytes.
        """
        given = [one or {} for one in headers]
        names = [name.encode() for name in chain.from_iterable(given)]
        values = list(chain.from_iterable(one.values() for one in given))
        return cls(_offsets(given, len(names)), Binary.of(names), Binary.of(values))

    def to_list(self) -> list[dict[str, bytes]]:
        """Return the headers of each message; of a name that comes twice, the last."""
        pairs = list(
            zip(map(bytes.decode, self.names.to_list()), self.values.to_list(), strict=True)
        )
        return [dict(pairs[begin:end]) for begin, end in pairwise(self.offsets.tolist())]


class Columns(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """Messages by columns. A column that is None is null in each of them."""

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
        """Check that the columns are as long as they say.

        Raises:
            ValueError: one is not.
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
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Columns:
        """Return messages given by sequences, as columns.

        Raises:
            ValueError: the sequences differ in length.
            TypeError: an item is of a wrong type.
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
        """Return the event time of each message, None for none."""
        if self.event_times is None:
            return [None] * self.count
        times: list[int | None] = list(self.event_times)
        if self.event_time_validity is not None:
            for i in null_places(self.event_time_validity, self.count):
                times[i] = None
        return times

    @cached_property
    def loan(self) -> Loan:
        """This as a bk_columns, for the other modules of this package."""
        return Loan(self)


class Loan:
    """Buffers lent to C: *pointer* is good for as long as this lives."""

    def __init__(self, lender: Columns | Binary) -> None:
        self._kept: list[memoryview] = []
        if isinstance(lender, Binary):
            self.pointer = ffi.new("bk_binary *", self._strings(lender))
        else:
            self.pointer = ffi.new("bk_columns *", self._columns(lender))

    def _columns(self, columns: Columns) -> dict[str, Any]:
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

    def _strings(self, strings: Binary) -> dict[str, Any]:
        return {
            "offsets": self._lend(strings.offsets, 4 * strings.length + 4),
            "data": self._lend(strings.data, 0),
            "size": strings.data.nbytes,
            "validity": self._lend(strings.validity, (strings.length + 7) // 8),
        }

    def _lend(self, buffer: Buffer | None, size_min: int) -> Any:  # noqa: ANN401 - a cffi pointer
        if buffer is None:
            return ffi.NULL
        view = memoryview(buffer)
        if view.nbytes < size_min:
            raise ValueError(f"a column of {view.nbytes} bytes; it takes {size_min}")
        self._kept.append(view)
        return address(view)


def address(buffer: Buffer | array[int]) -> Any:  # noqa: ANN401 - a cffi pointer
    """Return where a buffer lies; the caller keeps it alive.

    The pointer does not: an object that holds a buffer of a memoryview, both of them in a
    cycle of garbage, brings CPython down before 3.12.7.
    """
    with ffi.from_buffer(buffer) as lent:
        return ffi.cast("uint8_t *", lent)


def address_of_rows(rows: array[int]) -> Any:  # noqa: ANN401 - a cffi pointer
    """Return where an array "I" lies; the caller keeps it. Raises ValueError for another."""
    if rows.itemsize != _ROW_SIZE:
        raise ValueError(f"an array {rows.typecode!r} where 'I' is needed")
    return ffi.cast("uint32_t *", address(rows))


def check_columns(result: int) -> None:
    """Return when C found the columns sound, else raise ValueError."""
    if result == lib.BK_CORRUPT:
        raise ValueError("columns do not fit together: an offset, a row or a time is out of bounds")
    check(result, "columns of messages")


# --- bits and offsets ---------------------------------------------------------------


def pack_bits(flags: bytes) -> bytes:
    """Return a bit for each byte, 1 where it is not 0; the lowest of a byte is the first."""
    bits = ffi.new("uint8_t[]", (len(flags) + 7) // 8)
    lib.bk_bits_pack(flags, len(flags), bits)
    return bytes(ffi.buffer(bits))


def slice_bits(bits: Buffer, first: int, count: int) -> Buffer:
    """Return *count* bits from *first* on; copies unless *first* is a multiple of 8.

    Raises:
        ValueError: there are not so many.
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
    """Return which of the first *count* bits are 0."""
    bits = memoryview(validity).cast("B")[: (count + 7) // 8]
    found = [
        8 * place + bit
        for place, byte in enumerate(bits)
        if byte != 0xFF
        for bit in range(8)
        if not byte >> bit & 1
    ]
    while found and found[-1] >= count:  # the bits behind the last message
        found.pop()
    return found


def words_of(
    kind: Literal["q", "Q"], numbers: Sequence[int | None]
) -> tuple[memoryview, bytes | None]:
    """Return *numbers* as a column of 64 bits each, and which are not None."""
    if isinstance(numbers, array | memoryview):
        return memoryview(numbers).cast("B").cast(kind), None
    try:
        return memoryview(array(kind, numbers)), None  # type: ignore[arg-type] # tried
    except TypeError:
        if None not in numbers:
            raise
    validity = pack_bits(bytes([number is not None for number in numbers]))
    return memoryview(array(kind, [number or 0 for number in numbers])), validity


def _offsets(items: Sequence[Any], size: int) -> memoryview:
    """Return where each of *items* begins, all of them having *size* parts."""
    if size > _BYTES_MAX:
        raise TooLarge("a column", size=size, size_max=_BYTES_MAX)
    lengths = array("I", list(map(len, items)))
    offsets = array("i", bytes(4 * len(items) + 4))
    with ffi.from_buffer(lengths) as given, ffi.from_buffer(offsets) as out:
        result = lib.bk_offsets(given, len(lengths), out)
    if result != lib.BK_OK or offsets[-1] != size:
        raise TypeError("items that are no bytes")  # a memoryview of longer items
    return memoryview(offsets)
