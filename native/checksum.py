"""Checksums of messages, as checksum.h defines them: one depends on the order, one does not."""

from __future__ import annotations

from array import array

import msgspec

from native._core import ffi, lib
from native.columns import Columns, address_of_rows, check_columns

_WORD = (1 << 64) - 1
FACTOR = int(lib.BK_CHECKSUM_FACTOR)


class Checksum(msgspec.Struct, frozen=True):
    """A checksum over the key, value, event time and headers of each message.

    *total* is the same for any order of the messages, *chain* only for the same order.
    """

    count: int = 0
    total: int = 0
    chain: int = 0

    def add(self, columns: Columns, rows: array[int] | None = None) -> Checksum:
        """Return the checksum of these messages followed by those of *columns*.

        With *rows*, an array "I" of row numbers, only these rows, in that order.

        Raises:
            ValueError: the columns do not fit together, or a row is out of bounds.
        """
        stop = columns.count if rows is None else len(rows)
        which = ffi.NULL if rows is None else address_of_rows(rows)
        raw = ffi.new("bk_checksum *", (self.count, self.total, self.chain))
        check_columns(lib.bk_checksum_messages(columns.loan.pointer, which, 0, stop, raw))
        return Checksum(raw.count, raw.total, raw.chain)

    def join(self, behind: Checksum) -> Checksum:
        """Return the checksum of these messages followed by those of another checksum."""
        return Checksum(
            self.count + behind.count,
            (self.total + behind.total) & _WORD,
            (self.chain * pow(FACTOR, behind.count, _WORD + 1) + behind.chain) & _WORD,
        )

    @property
    def text(self) -> str:
        """Both parts for people to compare: "5f…:03…", 16 hexadecimal digits each."""
        return f"{self.total_text}:{self.chain:016x}"

    @property
    def total_text(self) -> str:
        """The total alone, for messages without a single order: "5f…"."""
        return f"{self.total:016x}"
