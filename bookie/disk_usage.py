"""The disk space of a bookie's files, by kind.

Space is counted as du counts it: blocks of 512 bytes, not the length of the file. So a
preallocated journal counts in full, and the sum equals the output of du for the folders.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from metadata.calls import FilesOnDisk

BLOCK_SIZE = 512
"""The unit of st_blocks, whatever the file system's own is."""

_KINDS = {
    ".log": "log",
    ".index": "index",
    ".dead": "deleted",
    ".journal": "journal",
    ".table": "table",
}
_METADATA = "metadata.db"


def measure(folders: Iterable[Path]) -> list[FilesOnDisk]:
    """Return the files directly in *folders*, summed by kind; each folder counts once.

    Blocks for a stat of every file. A file deleted meanwhile is left out.

    Raises:
        OSError: a folder cannot be read.
    """
    found: dict[str, FilesOnDisk] = {}
    for name, status in _statuses(set(folders)):
        kind = _kind(name, status)
        before = found.get(kind, FilesOnDisk(kind, 0, 0, 0))
        found[kind] = FilesOnDisk(
            kind,
            before.count + 1,
            before.size + status.st_size,
            before.allocated + status.st_blocks * BLOCK_SIZE,
        )
    return sorted(found.values(), key=lambda files: files.kind)


def _statuses(folders: set[Path]) -> Iterator[tuple[str, os.stat_result]]:
    for folder in folders:
        yield folder.name, folder.stat()
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted meanwhile by garbage collection or a trim of the journal
                if not stat.S_ISDIR(status.st_mode):
                    yield entry.name, status


def _kind(name: str, status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if name.startswith(_METADATA):
        return _METADATA.partition(".")[0]
    return _KINDS.get(Path(name).suffix, "other")
