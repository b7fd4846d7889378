"""Folders, and small files that are replaced as a whole and survive a crash at any point.

Only the bookie's own user may read them, unless the caller passes another mode. Root may make them
for a bookie of another user, so they belong to who owns the folder that they are in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the content of *path* by *data*. Blocks for two syncs.

    A temporary file is synced and renamed, then the folder is synced. A crash leaves the
    old content or the new one. *mode* applies to the new file, less the umask.

    Raises:
        OSError: the disk failed; either content may be there.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        _give(path.parent, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create *folder* and its missing parents durably; blocks for a sync of each parent.

    Only the owner may read a new folder.
    """
    made = [each for each in folder.parents if not each.exists()]
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (*reversed(made), *([folder] if is_new else ())):
        with _opened(each) as descriptor:
            _give(each.parent, descriptor)
    # An existing folder too: the process that made it may have died before this sync.
    for each in (*reversed(made), folder):
        with contextlib.suppress(PermissionError):  # made by an operator, in an unreadable folder
            sync_folder(each.parent)


def open_private(path: str, flags: int) -> int:
    """An opener for open(): only its owner may read a file that it creates."""
    descriptor = os.open(path, flags, 0o600)
    _give(Path(path).parent, descriptor)
    return descriptor


def _give(folder: Path, descriptor: int) -> None:
    """Let what root has made in *folder* belong to the folder's owner."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def settle_file(path: Path) -> None:
    """Make sure that reads of *path*, if it exists, return what is on disk. Blocks for two syncs.

    Call this before the first read of a file that an earlier process may have replaced before
    it died. Its rename may not be synced yet. Or a sync failed; then the page cache holds data
    that never reached the disk.

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
    """Make the names in *folder* durable. Blocks for one sync."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
