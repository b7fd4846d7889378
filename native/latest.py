"""The latest message of each key, as latest.h defines it, and the messages that survive.

    Columns, lane by lane ──► Latest ──► Survivors of each lane ──► rows of each batch

Keys that need more memory than granted are processed a slice at a time: each slice has a Latest,
which reads all messages and marks the same Survivors.
"""

from __future__ import annotations

import errno
from array import array

import msgspec

from native._core import ffi, lib
from native.columns import Buffer, Columns, address, address_of_rows, check_columns
from native.errors import Full, check

MEMORY_MIN = int(lib.BK_LATEST_MEMORY_MIN)
"""Bytes of the smallest table."""
_ROW_SIZE = 4


class LatestState(msgspec.Struct, frozen=True):
    """Counts of a table: keys, tombstones, bytes."""

    keys: int
    """with those whose latest message is a tombstone"""
    tombstones: int
    foreign: int
    """keys that their hash does not route to this partition"""
    null_keys: int
    """messages without a key, whatever the slice"""
    memory: int
    """bytes"""


class Survivors:
    """A bit for each of *count* messages of a lane, from ordinal *first* on."""

    def __init__(self, count: int, *, first: int = 0) -> None:
        self.first = first
        self.count = count
        self.marked = 0
        """How many are left."""
        self.bits = bytearray((count + 7) // 8)

    def rows(self, base: int, count: int) -> array[int]:
        """Return the survivors among *count* messages from ordinal *base* on, as rows "I".

        Raises:
            ValueError: some of the messages are outside this range.
        """
        offset = self._offset(base, count)
        rows = array("I", bytes(_ROW_SIZE * count))
        found = lib.bk_bits_rows(address(self.bits), offset, count, address_of_rows(rows))
        del rows[found:]
        return rows

    def keep_null_keys(self, columns: Columns, base: int) -> None:
        """Mark messages without a key as survivors; *base* is the first ordinal of *columns*.

        Raises:
            ValueError: some of the messages are outside this range.
        """
        offset = self._offset(base, columns.count)
        lent = address(self.bits)
        self.marked += lib.bk_bits_mark_null_keys(columns.loan.pointer, offset, lent)

    def _offset(self, base: int, count: int) -> int:
        offset = base - self.first
        if count < 0 or offset < 0 or offset + count > self.count:
            raise ValueError(f"messages {base} + {count} of {self.first} + {self.count}")
        return offset


class Latest:
    """A table of keys with the latest message of each that was added.

    Args:
        memory_max: the most bytes that it may use, at least MEMORY_MIN.
        slices: number of slices; only keys of the slice *slice_index* are added.
        slice_index: the slice, from 0.
        partitions: of the topic, to count keys that are routed to another partition than
            *partition*; 0 counts none.
        partition: the partition that the messages are from.

    Raises:
        ValueError: a number is out of bounds.
        MemoryError: the smallest table could not be allocated.
    """

    def __init__(
        self,
        *,
        memory_max: int,
        slices: int = 1,
        slice_index: int = 0,
        partitions: int = 0,
        partition: int = 0,
    ) -> None:
        out = ffi.new("bk_latest **")
        result = lib.bk_latest_open(memory_max, slices, slice_index, partitions, partition, out)
        if result == -errno.ENOMEM:
            raise MemoryError("no memory for a table of keys")
        if result != lib.BK_OK:
            raise ValueError(
                f"{memory_max} bytes, slice {slice_index} of {slices}, "
                f"partition {partition} of {partitions}"
            )
        self._table = ffi.gc(out[0], lib.bk_latest_close)

    def add(
        self, columns: Columns, *, base: int, lane: int, orders: Buffer | array[int] | int
    ) -> None:
        """Add messages of a lane: those of *columns*, with ordinals from *base* on.

        *orders*, one number for all or 8 signed bytes for each, decides which of two messages of
        different lanes is later; it must never fall along a lane.

        Raises:
            Full: there are too many keys. The table cannot be used any more.
            ValueError: the columns do not fit together.
        """
        given, order = ffi.NULL, 0
        if isinstance(orders, int):
            order = orders
        else:
            if memoryview(orders).nbytes != 8 * columns.count:
                raise ValueError(f"{memoryview(orders).nbytes} bytes of orders")
            given = address(orders)
        result = lib.bk_latest_add(self._table, columns.loan.pointer, given, order, base, lane)
        if result == lib.BK_FULL:
            raise Full("too many keys for the memory given")
        if result < 0:
            check(result, "a table of keys")
        check_columns(result)

    def mark(self, survivors: Survivors, *, lane: int, tombstones: bool = False) -> None:
        """Mark the messages of *lane* that are the latest of their key, tombstones if asked."""
        survivors.marked += lib.bk_latest_mark(
            self._table, lane, survivors.first, survivors.count, tombstones, address(survivors.bits)
        )

    @property
    def state(self) -> LatestState:
        """The counts so far; costs no pass over the table."""
        raw = ffi.new("bk_latest_state *")
        lib.bk_latest_get_state(self._table, raw)
        return LatestState(raw.keys, raw.tombstones, raw.foreign, raw.null_keys, raw.memory)
