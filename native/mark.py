"""The mark of a checkpoint, as store.h defines it."""

from __future__ import annotations

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """Where journal, entry log, index and ledger table ended at a checkpoint.

    Sizes and offsets are bytes. Replay starts at *journal_offset* of the journal
    file *journal_id*; what lies beyond the three ends is a torn flush.
    """

    journal_id: int
    journal_offset: int
    log_id: int
    next_log_id: int
    log_end: int
    index_end: int
    table_end: int
    table_id: int
