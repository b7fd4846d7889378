"""Small files that are replaced as a whole and survive a crash at any point, and folders.

Both are for the bookie's own user alone unless something else is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Make *data* the content of *path*. Blocks for two syncs.

    A temporary file is synced and renamed, then the folder is synced. A crash in the
    middle leaves the old content or the new one. *mode* is the new file's, less the umask.

    Raises:
        OSError: the disk failed; either content may be there.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make *folder*, and those above it, if missing; only its owner may look into it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file for open() to use; one that is made is its owner's alone."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* last. Blocks for one sync."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
