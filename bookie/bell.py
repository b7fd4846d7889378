"""A bell: wakes the one task that listens, and remembers a ring that came too early."""

from __future__ import annotations

import trio


class Bell:
    """Rings from any task of the event loop; heard by one. Rings before that are one."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Wake the listener, now or when it next listens."""
        self._rung.set()

    async def heard(self) -> None:
        """Wait for a ring since the last one heard."""
        await self._rung.wait()
        self._rung = trio.Event()
