"""Rows of many batches gathered as columns of one, as gather.h defines it."""

from __future__ import annotations

from array import array
from typing import Literal

from native._core import ffi, lib
from native.cdata import CData
from native.columns import Binary, Columns, Headers, address_of_rows, check_columns
from native.errors import check


class Gather:
    """The columns of one batch, to which rows of others are added."""

    def __init__(self) -> None:
        out = ffi.new("bk_gather **")
        check(lib.bk_gather_open(out), "gathered columns")
        self._gather = ffi.gc(out[0], lib.bk_gather_close)
        self._view = ffi.new("bk_gather_view *")

    def add(self, columns: Columns, rows: array[int], start: int = 0, *, size_max: int) -> int:
        """Copy messages at *rows*, an array "I", from index *start* on; return the index reached.

        Stops after the last row, or before the gathered messages would exceed *size_max* bytes. The
        first message is always copied.

        Raises:
            ValueError: the columns do not fit together.
        """
        taken = ffi.new("uint64_t *", start)
        lent = columns.loan.pointer
        result = lib.bk_gather_add(
            self._gather, lent, address_of_rows(rows), len(rows), size_max, taken
        )
        if result < 0:
            check(result, "gathered columns")
        check_columns(result)
        return int(taken[0])

    @property
    def count(self) -> int:
        """Messages gathered since the last clear()."""
        return int(self._view_columns().count)

    @property
    def size(self) -> int:
        """Approximate bytes of a batch of these messages."""
        return int(self._view_columns().size)

    def columns(self) -> Columns:
        """Return the gathered messages; their memory is valid until the next add() or clear()."""
        view = self._view_columns()
        count = int(view.count)
        timed, headed = view.event_times != ffi.NULL, view.header_offsets != ffi.NULL
        return Columns(
            count=count,
            values=_strings(view, "value", count),
            keys=_strings(view, "key", count) if view.key_offsets != ffi.NULL else None,
            event_times=_words(view.event_times, count, "q") if timed else None,
            event_time_validity=_bits(view.event_time_validity, count),
            timestamps=_words(view.timestamps, count, "Q") if view.timestamps else None,
            headers=_headers(view, count) if headed else None,
        )

    def clear(self) -> None:
        """Drop all messages; results of columns() become invalid."""
        lib.bk_gather_clear(self._gather)

    def _view_columns(self) -> CData:
        lib.bk_gather_view_columns(self._gather, self._view)
        return self._view


def _headers(view: CData, count: int) -> Headers:
    return Headers(
        _view(view.header_offsets, 4 * count + 4).cast("i"),
        _strings(view, "name", view.header_count),
        _strings(view, "header_value", view.header_count),
    )


def _strings(view: CData, name: str, count: int) -> Binary:
    offsets = _view(getattr(view, f"{name}_offsets"), 4 * count + 4).cast("i")
    data = _view(getattr(view, f"{name}_data"), getattr(view, f"{name}_size"))
    return Binary(offsets, data, _bits(getattr(view, f"{name}_validity", ffi.NULL), count))


def _words(pointer: CData, count: int, kind: Literal["q", "Q"]) -> memoryview:
    return _view(pointer, 8 * count).cast(kind)


def _bits(pointer: CData, count: int) -> memoryview | None:
    return _view(pointer, (count + 7) // 8) if pointer != ffi.NULL else None


def _view(pointer: CData, size: int) -> memoryview:
    return memoryview(ffi.buffer(pointer, size)) if size else memoryview(b"")
