"""Rows of many batches gathered as columns of one, as gather.h defines it."""

from __future__ import annotations

from array import array
from typing import Any, Literal

from native._core import ffi, lib
from native.columns import Binary, Columns, Headers, address_of_rows, check_columns
from native.errors import check


class Gather:
    """Growing columns."""

    def __init__(self) -> None:
        out = ffi.new("bk_gather **")
        check(lib.bk_gather_open(out), "gathered columns")
        self._gather = ffi.gc(out[0], lib.bk_gather_close)
        self._told = ffi.new("bk_gather_view *")

    def add(self, columns: Columns, rows: array[int], start: int = 0, *, size_max: int) -> int:
        """Copy the messages that *rows* names, "I", from place *start* on; return where it ended.

        It ends with the rows, or where all that was gathered would have more than *size_max*
        bytes. The first message is taken in any case.

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
        """How many messages were gathered."""
        return int(self._tell().count)

    @property
    def size(self) -> int:
        """Bytes that a batch of them takes, nearly."""
        return int(self._tell().size)

    def columns(self) -> Columns:
        """Return what was gathered, lent until the next add() or clear()."""
        told = self._tell()
        count = int(told.count)
        timed, headed = told.event_times != ffi.NULL, told.header_offsets != ffi.NULL
        return Columns(
            count=count,
            values=_strings(told, "value", count),
            keys=_strings(told, "key", count) if told.key_offsets != ffi.NULL else None,
            event_times=_words(told.event_times, count, "q") if timed else None,
            event_time_validity=_bits(told.event_time_validity, count),
            timestamps=_words(told.timestamps, count, "Q") if told.timestamps else None,
            headers=_headers(told, count) if headed else None,
        )

    def clear(self) -> None:
        """Begin anew; what columns() lent is void."""
        lib.bk_gather_clear(self._gather)

    def _tell(self) -> Any:  # noqa: ANN401 - a cffi pointer
        lib.bk_gather_tell(self._gather, self._told)
        return self._told


def _headers(told: Any, count: int) -> Headers:  # noqa: ANN401 - a cffi pointer
    return Headers(
        _view(told.header_offsets, 4 * count + 4).cast("i"),
        _strings(told, "name", told.header_count),
        _strings(told, "header_value", told.header_count),
    )


def _strings(told: Any, name: str, count: int) -> Binary:  # noqa: ANN401 - a cffi pointer
    offsets = _view(getattr(told, f"{name}_offsets"), 4 * count + 4).cast("i")
    data = _view(getattr(told, f"{name}_data"), getattr(told, f"{name}_size"))
    return Binary(offsets, data, _bits(getattr(told, f"{name}_validity", ffi.NULL), count))


def _words(pointer: Any, count: int, kind: Literal["q", "Q"]) -> memoryview:  # noqa: ANN401
    return _view(pointer, 8 * count).cast(kind)


def _bits(pointer: Any, count: int) -> memoryview | None:  # noqa: ANN401 - a cffi pointer
    return _view(pointer, (count + 7) // 8) if pointer != ffi.NULL else None


def _view(pointer: Any, size: int) -> memoryview:  # noqa: ANN401 - a cffi pointer
    return memoryview(ffi.buffer(pointer, size)) if size else memoryview(b"")
