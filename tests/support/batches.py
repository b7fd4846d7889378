"""Batches for tests: a short model of batch.h in Python, and messages of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hypothesis import strategies as st

from native.batch import Columns

NO_TIME = -(1 << 63)


class Sent(NamedTuple):
    """A message, as a producer gives it."""

    value: bytes | None
    key: bytes | None = None
    event_time: int | None = None
    timestamp: int = 0
    headers: dict[str, bytes] = {}  # noqa: RUF012 - nobody changes it


def columns_of(messages: Sequence[Sent]) -> Columns:
    """Return messages as columns, also those in which all have null."""
    return Columns.of(
        [m.value for m in messages],
        keys=[m.key for m in messages],
        event_times=[m.event_time for m in messages],
        timestamps=[m.timestamp for m in messages],
        headers=[m.headers for m in messages],
    )


def messages_of(columns: Columns) -> list[Sent]:
    """Return columns as messages."""
    count = columns.count
    return [
        Sent(*cells)
        for cells in zip(
            columns.values.to_list(),
            columns.keys.to_list() if columns.keys else [None] * count,
            columns.event_times_list(),
            columns.timestamps.tolist() if columns.timestamps else [0] * count,
            columns.headers.to_list() if columns.headers else [{}] * count,
            strict=True,
        )
    ]


class _Model:
    """A body as it grows: columns with a width, then bytes."""

    def __init__(self) -> None:
        self.flags = 1
        self.fixed = self.packed = b""

    def words(self, cells: Sequence[int | None], size: int = 8, *, signed: bool = True) -> None:
        column = b"".join((cell or 0).to_bytes(size, "little", signed=signed) for cell in cells)
        self.fixed += bytes(-len(self.fixed) % 8) + column

    def validity(self, cells: Sequence[object], flag: int) -> bool:
        if all(cell is None for cell in cells):
            return False
        self.flags |= flag
        if None in cells:
            self.flags |= flag << 1
            bits = sum((cell is not None) << i for i, cell in enumerate(cells))
            self.fixed += bytes(-len(self.fixed) % 8)
            self.fixed += bits.to_bytes((len(cells) + 7) // 8, "little")
        return True

    def offsets(self, cells: Sequence[bytes | str | None] | Sequence[dict[str, bytes]]) -> None:
        self.words([0, *accumulate(len(cell or b"") for cell in cells)], 4)

    def pack(self, cells: Sequence[bytes | None]) -> None:
        if column := b"".join(cell or b"" for cell in cells):
            self.packed += bytes(-len(self.fixed + self.packed) % 8) + column

    def write(self, messages: Sequence[Sent]) -> None:
        values, keys, times, timestamps, headers = zip(*messages, strict=True)
        if self.validity(values, 2):
            self.offsets(values)
        if self.validity(keys, 8):
            self.offsets(keys)
        if self.validity(times, 32):
            self.words(times)
        if any(timestamps):
            self.flags |= 128
            self.words(timestamps, signed=False)
        names = [name.encode() for one in headers for name in one]
        header_values = [value for one in headers for value in one.values()]
        if names:
            self.flags |= 256
            for column in (headers, names, header_values):
                self.offsets(column)
        for cells in (keys, names, header_values, values):
            self.pack(cells)


def model(messages: Sequence[Sent], producer: bytes = b"", sequence: int = -1) -> bytes:
    """Return the payload that batch.h describes for these messages, in one batch."""
    body = _Model()
    body.write(messages)
    times = [m.event_time for m in messages if m.event_time is not None]
    fields = [
        (body.flags, 2),
        (len(producer), 4),
        (len(messages), 4),
        (len(body.fixed + body.packed), 4),
        (0, 12),
        (max(m.timestamp for m in messages), 8),
        (min(times, default=NO_TIME) % (1 << 64), 8),
        (max(times, default=NO_TIME) % (1 << 64), 8),
        (sequence % (1 << 64), 8),
    ]
    head = b"QB" + bytes([1, 0, 0, 0]) + b"".join(n.to_bytes(size, "little") for n, size in fields)
    return head + producer + bytes(-len(producer) % 8) + body.fixed + body.packed


names = st.text(st.characters(codec="utf-8"), max_size=4)
sent = st.builds(
    Sent,
    value=st.none() | st.binary(max_size=20),
    key=st.none() | st.binary(max_size=6),
    event_time=st.none() | st.integers(NO_TIME + 1, -NO_TIME - 1),
    timestamp=st.just(0) | st.integers(0, (1 << 64) - 1),
    headers=st.dictionaries(names, st.binary(max_size=5), max_size=3),
)
batches = st.lists(sent, min_size=1, max_size=20)
"""Messages for one batch, of every kind, few of them alike."""


def plain(count: int) -> list[Sent]:
    """Return messages with everything a message can have."""
    return [
        Sent(
            None if i % 5 == 4 else b"v%d" % i * i,
            None if i % 3 == 2 else b"k%d" % (i % 4),
            None if i % 4 == 3 else 1000 - 7 * i,
            100 + i,
            {"näme": b"x" * i, "": b""} if i % 2 else {},
        )
        for i in range(count)
    ]
