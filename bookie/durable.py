"""Small files that are replaced as a whole and survive a crash at any point."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Make *data* the content of *path*. Blocks for two syncs.

    A temporary file is synced and renamed, then the folder is synced. A crash in the
    middle leaves the old content or the new one. *mode* is what a new file may be for, less
    the umask.

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


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* last. Blocks for one sync."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
