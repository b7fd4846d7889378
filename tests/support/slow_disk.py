"""Disks of bookies in other processes that sync slowly, or hang; see slow_disk.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> str:
    """Return what LD_PRELOAD must name in the bookies' environment."""
    library = folder / "slow_disk.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return str(library)


def hang(bookie_folder: Path) -> None:
    """Let no sync of the bookie's files return, until heal()."""
    _tell(bookie_folder, "hang")


def delay(bookie_folder: Path, ms: int) -> None:
    """Let each of its syncs take so long."""
    _tell(bookie_folder, str(ms))


def heal(bookie_folder: Path) -> None:
    """Let its disk be as it is."""
    _tell(bookie_folder, "0")


def _tell(bookie_folder: Path, text: str) -> None:
    fresh = bookie_folder / "slow.new"
    fresh.write_text(text)
    fresh.rename(bookie_folder / "slow")
