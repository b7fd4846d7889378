"""The progress of a bookie's disk, as engine.h defines it."""

from __future__ import annotations

import msgspec

from native._core import ffi, lib
from native.cdata import CData


class Progress(msgspec.Struct, frozen=True):
    """The work waiting for the disk, and the steps that the disk completed since the start.

    If work waits and two readings have the same number of steps, the disk hung in between.
    """

    journal_work: bool
    journal_steps: int
    flush_work: bool
    flush_steps: int


def take_progress(engine: CData) -> Progress:
    """Return the progress of a bk_engine."""
    raw = ffi.new("bk_progress *")
    lib.bk_engine_get_progress(engine, raw)
    return Progress(
        bool(raw.journal_work), raw.journal_steps, bool(raw.flush_work), raw.flush_steps
    )
