"""Wall clocks of single processes that are wrong, and are set while these run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClocks:
    """A wall clock for each name, in *folder*: see wall_clock.c."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "wall_clock.so"
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def set(self, name: str, ahead: timedelta) -> None:
        """Set a clock, which counts at once for the processes that have it."""
        offset = int(ahead.total_seconds() * 1e9).to_bytes(8, "little", signed=True)
        with self._offset(name).open("r+b") as file:  # in place, because they have mapped it
            file.write(offset)

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the variables of a process with this clock."""
        return os.environ | self._variables(name)

    def prefix(self, name: str) -> Sequence[str]:
        """Return words that start the command of a process with this clock."""
        return ["env", *(f"{key}={value}" for key, value in self._variables(name).items())]

    def _variables(self, name: str) -> dict[str, str]:
        variable = str(self._offset(name))
        return {"LD_PRELOAD": str(self._library), "QUIRE_WALL_CLOCK": variable}

    def _offset(self, name: str) -> Path:
        path = self._folder / f"{name}.offset"
        if not path.exists():
            path.write_bytes(bytes(8))
        return path
