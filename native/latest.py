"""The latest message of each key, as latest.h defines it; and the messages that are left.

    Columns, lane by lane ──► Latest ──► Survivors of each lane ──► rows of each batch

Keys that need more memory than was granted are taken a slice at a time: a Latest for each
slice is shown all messages, and marks the same Survivors.
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
    """What is in a table."""

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
    """A bit for each of some messages of a lane: those from ordinal *first* on, *count* of them."""

    def __init__(self, count: int, *, first: int = 0) -> None:
        self.first = first
        self.count = count
        self.marked = 0
        """How many are left."""
        self.bits = bytearray((count + 7) // 8)

    def rows(self, base: int, count: int) -> array[int]:
        """Return which are left of the messages of ordinals *base* to *base* + *count*, "I".

        Raises:
            ValueError: not all of them are among those of this.
        """
        offset = self._offset(base, count)
        rows = array("I", bytes(_ROW_SIZE * count))
        found = lib.bk_bits_rows(address(self.bits), offset, count, address_of_rows(rows))
        del rows[found:]
        return rows

    def keep_null_keys(self, columns: Columns, base: int) -> None:
        """Let messages without a key be left; *base* is the ordinal of the first of *columns*.

        Raises:
            ValueError: not all of them are among those of this.
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
    """A table of keys, and of each the latest message that was shown.

    Args:
        memory_max: bytes that it may take, MEMORY_MIN at least.
        slices: of the keys only those of the slice *slice_index* of so many are taken.
        slice_index: which slice.
        partitions: keys that are routed to another partition than *partition* of so many are
            counted; 0: none are.
        partition: whose keys these are.

    Raises:
        ValueError: a number is out of bounds.
        MemoryError: the system has not even the smallest table's.
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
        """Show messages of a lane: those of *columns*, with ordinals from *base* on.

        *orders*, one number for all or 8 bytes signed for each, tells which of two messages of
        different lanes is later; it never falls along a lane.

        Raises:
            Full: there are too many keys. This table is good for nothing more.
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
        """Mark which messages of *lane* are the latest of their key; tombstones where asked."""
        survivors.marked += lib.bk_latest_mark(
            self._table, lane, survivors.first, survivors.count, tombstones, address(survivors.bits)
        )

    @property
    def state(self) -> LatestState:
        """What is in the table."""
        raw = ffi.new("bk_latest_state *")
        lib.bk_latest_tell(self._table, raw)
        return LatestState(raw.keys, raw.tombstones, raw.foreign, raw.null_keys, raw.memory)
