"""A bookie's files, on the disk or only in memory; a power cut loses the latter.

After each sync the files are looked at: what was written is known to last then. At a power
cut the rest is there or not, as the seed has it:

    each page (4096 bytes) that differs from what was synced: as it was, or as it is
    a file's size: that of the last sync, or today's
    each name made, removed or changed since its folder was synced: done or not

Nothing is ordered by anything but a sync. A file whose name was removed and comes back has what
was synced of it. Files are told apart by inodes, which tmpfs does not use again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replaced import replaced

from native.faults import syncs_heard

PAGE = 4096
Names = dict[str, int]
"""of files and folders below the folder, with their inodes"""


class PageCache:
    """The files below a *folder*. What is there now is on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[int, bytes] = {}
        self._names: Names = {}
        self.settle()

    def settle(self) -> None:
        """Take all that is there for synced."""
        self._names = self._found()
        self._contents = {
            inode: self._file(name).read_bytes()
            for name, inode in self._names.items()
            if self._file(name).is_file()
        }

    def note_sync(self, path: Path) -> None:
        """A file or folder was synced; one without a name matters to nobody."""
        if not path.exists():
            return
        if not path.is_dir():
            self._contents[path.stat().st_ino] = path.read_bytes()
            return
        now, folder = self._found(), self._relative(path)
        inside = {name for name in {*now, *self._names} if _parent(name) == folder}
        for name in inside:
            if name in now:
                self._names[name] = now[name]
            else:
                del self._names[name]
        kept = {*now.values(), *self._names.values()}
        self._contents = {i: data for i, data in self._contents.items() if i in kept}

    def lose(self, chance: random.Random) -> int:
        """Cut the power; return how many files and names are not as they were."""
        now = self._found()
        names = self._names_left(now, chance)
        contents = {
            name: self._content_left(name, now, inode, chance) for name, inode in names.items()
        }
        changed = len({*now} ^ {*names})
        for name in sorted(now.keys() - names.keys(), reverse=True):
            path = self._file(name)
            path.rmdir() if path.is_dir() else path.unlink()
        for name, data in sorted(contents.items()):
            path = self._file(name)
            if data is not None and (name not in now or path.read_bytes() != data):
                changed += name in now
                path.write_bytes(data)
        self.settle()
        return changed

    def _names_left(self, now: Names, chance: random.Random) -> Names:
        """Decide about names: those that one inode has had at a time change together."""
        left = dict(now)
        for group in _groups(self._names, now):
            if chance.random() < 0.5:
                for name in group:
                    left.pop(name, None)
                    if name in self._names:
                        left[name] = self._names[name]
        folders = {name for name in now if self._file(name).is_dir()}
        return {name: inode for name, inode in left.items() if _is_reached(name, left, folders)}

    def _content_left(
        self, name: str, now: Names, inode: int, chance: random.Random
    ) -> bytes | None:
        """Return a file's bytes; None for a folder."""
        found = next((each for each in (name, *sorted(now)) if now.get(each) == inode), None)
        if found is None:
            return self._contents.get(inode, b"")
        path = self._file(found)
        if path.is_dir():
            return None
        return _mixed(self._contents.get(inode, b""), path.read_bytes(), chance)

    def _found(self) -> Names:
        """Return all there is now."""
        found: Names = {}
        folders = [self.folder] if self.folder.is_dir() else []
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found[self._relative(Path(entry.path))] = entry.inode()
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        return found

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _relative(self, path: Path) -> str:
        return "" if path == self.folder else str(path.relative_to(self.folder))


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_reached(name: str, names: Names, folders: set[str]) -> bool:
    parent = _parent(name)
    return not parent or (
        parent in names and parent in folders and _is_reached(parent, names, folders)
    )


def _groups(before: Names, now: Names) -> list[list[str]]:
    """Return the names that changed, those together that belong to one change."""
    of_inode: dict[int, list[str]] = {}
    group_of: dict[str, list[str]] = {}
    for name in sorted({*before, *now}):
        if before.get(name) == now.get(name):
            continue
        group_of[name] = [name]
        for inode in {before.get(name), now.get(name)} - {None}:
            assert inode is not None
            of_inode.setdefault(inode, []).append(name)
    for names in of_inode.values():
        joined = sorted({each for name in names for each in group_of[name]})
        for each in joined:
            group_of[each] = joined
    return [group for name, group in sorted(group_of.items()) if group[0] == name]


def _mixed(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """Return each page as it was, or as it is."""
    if old == new:
        return new
    size = chance.choice([len(old), len(new)])
    pages = []
    for at in range(0, size, PAGE):
        was, is_now = (data[at : at + PAGE].ljust(PAGE, b"\0") for data in (old, new))
        pages.append(was if was == is_now or chance.random() < 0.5 else is_now)
    return b"".join(pages)[:size]


CACHES: list[PageCache] = []
"""of all bookies that lose what was not synced"""


@contextmanager
def syncs_noted() -> Iterator[None]:
    """Report the syncs of this process to page caches within the block."""

    def note(fd: int) -> None:
        if not CACHES:
            return
        path = Path(f"/proc/self/fd/{fd}").readlink()
        for cache in CACHES:
            if path.is_relative_to(cache.folder):
                cache.note_sync(path)

    def sync(fd: int) -> None:
        fsync(fd)
        note(fd)

    fsync = os.fsync
    try:
        with syncs_heard(note), replaced(os, "fsync", sync):
            yield
    finally:
        CACHES.clear()
