"""Small files that are replaced as a whole and survive a crash at any point, and folders.

Both are for the bookie's own user alone unless something else is asked for.
"""

from __future__ import annotations

import contextlib
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
    """Make *folder*, and those above it, if missing, durably; blocks for a sync of each parent.

    Only its owner may look into a new one.
    """
    made = [each for each in folder.parents if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Also one that was there: the process that made it may have died before this.
    for each in (*reversed(made), folder):
        with contextlib.suppress(PermissionError):  # an operator made it, where we may not look
            sync_folder(each.parent)


def open_private(path: str, flags: int) -> int:
    """Open a file for open() to use; one that is made is its owner's alone."""
    return os.open(path, flags, 0o600)


def settle_file(path: Path) -> None:
    """Make *path*, if it is there, be read as the disk has it. Blocks for two syncs.

    Call this before the first read of a file that a process replaced which then died. Its
    rename may not have been synced yet; or a sync failed, after which the page cache shows
    what never reached the disk.

    Raises:
        OSError: the disk failed.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* last. Blocks for one sync."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
