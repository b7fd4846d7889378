"""Whether a bookie's disk moves, as engine.h defines it."""

from __future__ import annotations

from typing import Any

import msgspec

from native._core import ffi, lib


class Progress(msgspec.Struct, frozen=True):
    """What waits for the disk, and how many steps the disk took since the start.

    Where there is work and two looks show the same number of steps, nothing moved between.
    """

    journal_work: bool
    journal_steps: int
    flush_work: bool
    flush_steps: int


def take_progress(engine: Any) -> Progress:  # noqa: ANN401 - a cffi pointer
    """Return the progress of a bk_engine."""
    raw = ffi.new("bk_progress *")
    lib.bk_engine_get_progress(engine, raw)
    return Progress(
        bool(raw.journal_work), raw.journal_steps, bool(raw.flush_work), raw.flush_steps
    )
