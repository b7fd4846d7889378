"""Disks of bookies in other processes that sync slowly, or hang; see slow_disk.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> str:
    """Return the value of LD_PRELOAD for the bookies' environment."""
    library = folder / "slow_disk.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return str(library)


def hang(bookie_folder: Path) -> None:
    """Block every sync of the bookie's files until heal()."""
    _tell(bookie_folder, "hang")


def delay(bookie_folder: Path, ms: int) -> None:
    """Delay each of its syncs by so many milliseconds."""
    _tell(bookie_folder, str(ms))


def heal(bookie_folder: Path) -> None:
    """Return its disk to normal speed."""
    _tell(bookie_folder, "0")


def _tell(bookie_folder: Path, text: str) -> None:
    fresh = bookie_folder / "slow.new"
    fresh.write_text(text)
    fresh.rename(bookie_folder / "slow")
