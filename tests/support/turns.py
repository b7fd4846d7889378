"""Turns between processes: many hold one at once, or one holds it alone.

Who waits to be alone is not overtaken: whoever comes later waits behind it, at the gate.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """Turns that all processes share which name the same *folder*."""

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"
        self._room = folder / "room"

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Hold a turn within the block; waits for others to end theirs."""
        with self._room.open("w") as room:
            with self._gate.open("w") as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
                fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
