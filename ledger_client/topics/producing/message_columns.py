"""The messages of one send_many call, sequences or Arrow arrays, as columns chunk by chunk.

A chunk is a few MiB: so little is held beside the caller's own data, and the first batches
are under way while the rest is encoded. Arrow data is not copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

from ledger_client.topics.producing.encoded_values import not_bytes
from ledger_client.topics.times import event_time_ns
from native.batch import Columns
from native.columns import Buffer, Column, words_of

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_SIZE = 4 << 20
CHUNK_COUNT_MAX = 65536
PLENTY = 4096
"""If this many of the largest message fit a chunk, messages are not weighed one by one."""
HEADER_OVERHEAD = 12
"""Bytes of a header beside its name and value."""
_BYTES = {bytes, bytearray, memoryview, type(None)}

T = TypeVar("T")
Items: TypeAlias = "Sequence[T] | pa.Array | pa.ChunkedArray"
"""A column that can be sliced."""
MessageHeaders = Mapping[str, bytes] | None


class MessageChunk(NamedTuple):
    """Messages from *start* to before *stop*."""

    start: int
    stop: int
    columns: Columns


class MessageColumns:
    """Values, and for each of them a key, an event time and headers, where there are any.

    Attributes:
        count: how many messages.
        largest: bytes of the longest value, the longest key and the largest headers together.
    """

    def __init__(
        self,
        values: Column[Buffer | None],
        *,
        keys: Column[Buffer | None] | None = None,
        event_times: Column[int | datetime | None] | None = None,
        headers: Column[MessageHeaders] | None = None,
    ) -> None:
        """Take sequences, Arrow arrays, chunked or not, or anything that Arrow converts to one.

        Raises:
            TypeError: values or keys are not bytes, or an event time is none.
            ValueError: the columns differ in length.
        """
        self.count = len(values)
        self._values = _sequence(values)
        self._keys = None if keys is None else _sequence(keys)
        self._event_times = None if event_times is None else _event_times(event_times)
        self._headers = None if headers is None else _sequence(headers)
        for name, column in (
            ("keys", self._keys),
            ("event times", self._event_times),
            ("headers", self._headers),
        ):
            if column is not None and len(column) != self.count:
                raise ValueError(f"{len(column)} {name} for {self.count} values")
        self.largest = _largest(self._values)
        if self._keys is not None:
            self.largest += _largest(self._keys)
        if self._headers is not None:
            self.largest += _largest_headers(self._headers)

    @property
    def has_keys(self) -> bool:
        """True if keys were given; each may be None."""
        return self._keys is not None

    def exceeding(self, size_max: int) -> int | None:
        """Return the size of a message that is larger than *size_max*, None if all fit."""
        if self.largest <= size_max:
            return None
        keys = [None] * self.count if self._keys is None else _listed(self._keys)
        headers = [None] * self.count if self._headers is None else _dicts(self._headers)
        for value, key, named in zip(_listed(self._values), keys, headers, strict=True):
            size = len(value or b"") + len(key or b"") + headers_size(named)
            if size > size_max:
                return size
        return None

    def times(self) -> memoryview | None:
        """Return all event times, or None if a message lacks one. Raises as Columns.of."""
        if self._event_times is None:
            return None
        if isinstance(self._event_times, Sequence):
            words, validity = words_of("q", self._event_times)
            return words if validity is None else None
        import pyarrow as pa  # takes long: only when needed

        columns = _columns(pa.nulls(self.count, pa.binary()), None, self._event_times, None)
        return columns.event_times if columns.event_time_validity is None else None

    def check_times(self) -> None:
        """Raise TypeError or ValueError unless all are event times; converts a chunk at a time."""
        times = self._event_times
        if times is None or isinstance(times, array | memoryview):
            return
        for start in range(0, self.count, CHUNK_COUNT_MAX):
            some = times[start : start + CHUNK_COUNT_MAX]
            try:
                if isinstance(some, Sequence):
                    words_of("q", some)
                else:
                    _columns([None] * len(some), None, some, None)
            except OverflowError as wrong:
                raise ValueError("an event time does not fit 64 bits") from wrong

    def keys(self, start: int, stop: int) -> Columns:
        """Return the keys from *start* to before *stop*, as the values of columns."""
        assert self._keys is not None
        return _columns(self._keys[start:stop], None, None, None)

    def chunks(self, start: int = 0) -> Iterator[MessageChunk]:
        """Yield the messages from *start* on, a few MiB at a time. Raises as Columns.of."""
        while start < self.count:
            stop = start + self._count_from(start)
            columns = _columns(
                *(
                    None if column is None else column[start:stop]
                    for column in (self._values, self._keys, self._event_times, self._headers)
                )
            )
            yield MessageChunk(start, stop, columns)
            start = stop

    def _count_from(self, start: int) -> int:
        count = min(CHUNK_COUNT_MAX, self.count - start)
        plenty = CHUNK_SIZE // max(self.largest, 1)
        if plenty >= min(PLENTY, count):
            return min(count, plenty)
        while count > 1 and (size := self._weigh(start, start + count)) > CHUNK_SIZE:
            count = max(1, min(count // 2, count * CHUNK_SIZE // size))
        return count

    def _weigh(self, start: int, stop: int) -> int:
        columns = (self._values, self._keys)
        return sum(_size(column[start:stop]) for column in columns if column is not None)


def headers_size(headers: Mapping[str, bytes] | None) -> int:
    """Return the bytes that a message's headers take. Raises TypeError if they are no headers."""
    if not headers:
        return 0
    size = HEADER_OVERHEAD * len(headers)
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("a header is a name, str, and a value, bytes")
        size += len(name.encode()) + len(value)
    return size


def _columns(
    values: Items[Buffer | None],
    keys: Items[Buffer | None] | None,
    event_times: Items[int | None] | None,
    headers: Items[MessageHeaders] | None,
) -> Columns:
    columns = (values, keys, event_times, headers)
    if all(column is None or isinstance(column, Sequence | memoryview) for column in columns):
        return Columns.of(values, keys=keys, event_times=event_times, headers=headers)
    from ledger_client.topics.arrow import columns_of  # takes long: only when needed

    return columns_of(values, keys=keys, event_times=event_times, headers=headers)


def _sequence(column: Column[T]) -> Items[T]:
    if isinstance(column, Sequence):
        return column
    import pyarrow as pa  # takes long: only when needed

    return column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)


def _event_times(column: Column[int | datetime | None]) -> Items[int | None]:
    """Return the column with nanoseconds in place of datetimes, if one of them is a datetime."""
    items = _sequence(column)
    if isinstance(items, array | memoryview) or not isinstance(items, Sequence):
        return cast("Items[int | None]", items)
    if set(map(type, items)) <= {int, type(None)}:
        return cast("Sequence[int | None]", items)
    return [None if time is None else event_time_ns(time) for time in items]


def _listed(column: Items[T]) -> Sequence[T]:
    if isinstance(column, Sequence):
        return column
    listed: list[T] = column.to_pylist()
    return listed


def _dicts(column: Items[MessageHeaders]) -> Sequence[MessageHeaders]:
    if isinstance(column, Sequence):
        return column
    from ledger_client.topics.arrow import dict_of  # takes long: only when needed

    return [dict_of(item) if isinstance(item, list) else item for item in column.to_pylist()]


def _largest(column: Items[Buffer | None]) -> int:
    """Return the bytes of the longest value. Raises TypeError if one is not bytes."""
    if isinstance(column, Sequence):
        kinds = set(map(type, column))
        if not kinds <= _BYTES:
            names = ", ".join(sorted(kind.__name__ for kind in kinds - _BYTES))
            raise not_bytes(names)
        return max(map(len, filter(None, column)), default=0)
    import pyarrow as pa  # takes long: only when needed
    import pyarrow.compute as pc  # takes long: only when needed

    try:
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    except pa.ArrowNotImplementedError as wrong:  # the column's type has no length in bytes
        raise TypeError(f"values and keys are bytes, not {column.type}") from wrong


def _largest_headers(column: Items[MessageHeaders]) -> int:
    """Return a bound in bytes of any message's headers."""
    if not isinstance(column, Sequence):
        import pyarrow.compute as pc  # takes long: only when needed

        from ledger_client.topics.arrow import HEADERS

        if column.type == HEADERS:
            count = pc.max(pc.list_value_length(column)).as_py() or 0
            pairs = pc.list_flatten(column)
            names, values = (_largest(pc.struct_field(pairs, place)) for place in (0, 1))
            return int(count) * (HEADER_OVERHEAD + names + values)
    return max(map(headers_size, _dicts(column)), default=0)


def _size(column: Items[Buffer | None]) -> int:
    if isinstance(column, Sequence):
        return sum(map(len, filter(None, column)))
    return int(column.nbytes)
