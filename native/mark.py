"""The mark of a checkpoint, as store.h defines it."""

from __future__ import annotations

import msgspec

from native._core import ffi
from native.cdata import CData


class Mark(msgspec.Struct, frozen=True):
    """The ends of journal, entry log, index and ledger table at a checkpoint.

    Sizes and offsets are bytes. Replay starts at *journal_offset* of the journal
    file *journal_id*; anything beyond the three ends is a torn flush.
    """

    journal_id: int
    journal_offset: int
    log_id: int
    next_log_id: int
    log_end: int
    index_end: int
    table_end: int
    table_id: int


def lend_mark(mark: Mark) -> CData:
    """Return *mark* as the C struct, for the bindings of this package."""
    return ffi.new("bk_mark *", {name: getattr(mark, name) for name in Mark.__struct_fields__})


def take_mark(raw: CData) -> Mark:
    """Return the C struct as a Mark."""
    return Mark(*(getattr(raw, name) for name in Mark.__struct_fields__))
