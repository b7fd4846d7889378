"""The oracle's rows.

key or lease   value
-------------  ------------------------------------------------------------------
time           a lease, held by the bookie that hands out timestamps: Leader
time/window    WindowRecord: no timestamp was issued at saved_ms or later

The window is changed only together with a check of the lease, and never goes back. The rows of
ticks are in tick_rows.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from metadata.records import decode_row
from metadata.time.timestamps import PHYSICAL_MAX

TIME = "time"
WINDOW = "time/window"


class WindowRecord(msgspec.Struct, frozen=True):
    """The stored window: it ends at *saved_ms*, in milliseconds since 1970."""

    saved_ms: Annotated[int, msgspec.Meta(ge=0, le=PHYSICAL_MAX)]


def decode_window(value: bytes) -> WindowRecord:
    """Return the stored window. Raises BadRecord."""
    return decode_row(WINDOW, value, WindowRecord)
