"""Long work in a thread that ends when its task is cancelled."""

from __future__ import annotations

import trio

from native.store import Stop


async def set_when_cancelled(stop: Stop) -> None:
    """Set *stop* when this task is cancelled; run it beside the work that heeds it."""
    try:
        await trio.sleep_forever()
    finally:
        stop.set()
