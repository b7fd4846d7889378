"""The disk after a power cut, built from a record of all that a process wrote.

    subprocess.run(program, env=environment(folder, trace))
    for record in read(trace):
        disk.apply(record)  # and at any place disk.image(other_folder, chance)

``disk_trace.c`` is preloaded and records each write, sync, rename and so on below a folder.
``Disk`` replays the record up to a cut. What was synced is on the disk; of the rest anything
may be there, as POSIX has it:

    each page (4096 bytes) that was written since its file was synced: as it was, as any write
        since then left it, or torn: each of its sectors (512 bytes) for itself
    a file's size: that of the last sync, or any since
    each name made, renamed or removed since its folder was synced: done or not

Writes past the page cache are no exception: the disk has a cache of its own. Nothing is
ordered by anything but a sync. SQLite's ``-shm`` files are left out: it makes them anew.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path

PAGE = 4096
SECTOR = 512
SOURCE = Path(__file__).with_name("disk_trace.c")
_MAGIC = 0x4B534944
_HEAD_SIZE = 40


class Kind(Enum):
    """Kinds of events, numbered as in disk_trace.c."""

    CREATE = 1
    WRITE = 2
    ZERO = 3
    SIZE = 4
    SYNC = 5
    RENAME = 6
    UNLINK = 7
    MKDIR = 8
    RMDIR = 9
    READ = 10
    DROP = 11
    LINK = 12
    NOTE = 99


@dataclass(frozen=True)
class Record:
    """One call.

    Attributes:
        kind: what it did.
        inode: to which file, as the system numbers them.
        offset: where; of SIZE the new size.
        size: bytes written or read.
        names: of a file or folder; of a rename or a link both.
        data: what was written, or what a test noted.
    """

    kind: Kind
    inode: int
    offset: int
    size: int
    names: tuple[str, ...]
    data: bytes


@cache
def shim(folder: Path) -> Path:
    """Compile disk_trace.c into *folder*."""
    made = folder / "disk_trace.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(SOURCE)]
    subprocess.run([*command, "-o", str(made), "-ldl", "-lpthread"], check=True)
    return made


def environment(root: Path, trace: Path) -> dict[str, str]:
    """The variables under which a program records in *trace* what it does below *root*."""
    # Before it, whatever is preloaded already: a sanitizer wants to be the first.
    preloaded = [os.environ.get("LD_PRELOAD", ""), str(shim(trace.parent))]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, preloaded)),
        "QUIRE_DISK_ROOT": str(root),
        "QUIRE_DISK_TRACE": str(trace),
    }


def note(trace: Path, data: bytes) -> None:
    """Put *data* behind all that happened so far, for the test that reads the record."""
    numbers = (_MAGIC, Kind.NOTE.value, 0, 0, 0, 0, len(data))
    sizes = (4, 4, 8, 8, 8, 4, 4)
    parts = [n.to_bytes(size, "little") for n, size in zip(numbers, sizes, strict=True)]
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"".join(parts) + data)
    finally:
        os.close(fd)


def read(trace: Path) -> list[Record]:
    """All records, in order; one that a killed process left unfinished is left out."""
    data = trace.read_bytes()
    found: list[Record] = []
    at = 0
    while len(data) - at >= _HEAD_SIZE:
        head = data[at : at + _HEAD_SIZE]
        magic, kind, names, size = (_number(head, i, 4) for i in (0, 4, 32, 36))
        assert magic == _MAGIC, f"the trace is broken at {at}"
        begin = at + _HEAD_SIZE + names
        at = begin + size
        if at > len(data):
            break
        words = tuple(data[begin - names : begin].decode().split("\0")) if names else ()
        inode, offset, count = (_number(head, i, 8) for i in (8, 16, 24))
        found.append(Record(Kind(kind), inode, offset, count, words, data[begin:at]))
    return found


def _number(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "little")


@dataclass
class _File:
    """A file: what the disk holds for certain, and what was done since."""

    pages: dict[int, bytes] = field(default_factory=dict)  # others are zeros
    size: int = 0
    writes: dict[int, list[bytes]] = field(default_factory=dict)  # of a page, each version since
    sizes: list[int] = field(default_factory=list)

    def latest(self, page: int) -> bytes:
        """The page as reads would see it."""
        versions = self.writes.get(page)
        return versions[-1] if versions else self.pages.get(page, bytes(PAGE))

    def write(self, offset: int, data: bytes) -> None:
        """Change pages, as the page cache would."""
        end = offset + len(data)
        for page in range(offset // PAGE, (end + PAGE - 1) // PAGE):
            start = max(offset, page * PAGE)
            piece = data[start - offset : (page + 1) * PAGE - offset]
            old = self.latest(page)
            at = start - page * PAGE
            new = old[:at] + piece + old[at + len(piece) :]
            if new != old:
                self.writes.setdefault(page, []).append(new)
        self.resize(max(end, self.now))

    @property
    def now(self) -> int:
        """The size as the process sees it."""
        return self.sizes[-1] if self.sizes else self.size

    def resize(self, size: int) -> None:
        """Change the size; what is cut off reads as zeros should the file grow again."""
        for page in [p for p in {*self.pages, *self.writes} if (p + 1) * PAGE > size]:
            kept = max(size - page * PAGE, 0)
            if size < self.now and any(self.latest(page)[kept:]):
                zeroed = self.latest(page)[:kept].ljust(PAGE, b"\0")
                self.writes.setdefault(page, []).append(zeroed)
        if size != self.now:
            self.sizes.append(size)

    def synced(self) -> None:
        """All that was done is on the disk."""
        self.pages.update({page: versions[-1] for page, versions in self.writes.items()})
        self.size = self.now
        self.writes.clear()
        self.sizes.clear()

    def settled(self, chance: random.Random | None) -> tuple[int, dict[int, bytes]]:
        """Size and pages after a power cut; without *chance* nothing unsynced."""
        if chance is None:
            return self.size, self.pages
        pages = dict(self.pages)
        for page, versions in self.writes.items():
            all_of_it = [self.pages.get(page, bytes(PAGE)), *versions]
            pages[page] = (
                _torn(chance, all_of_it) if chance.random() < 0.3 else (chance.choice(all_of_it))
            )
        return chance.choice([self.size, *self.sizes]), pages


def _torn(chance: random.Random, versions: list[bytes]) -> bytes:
    sectors = range(0, PAGE, SECTOR)
    return b"".join(chance.choice(versions)[at : at + SECTOR] for at in sectors)


class Disk:
    """A folder's files, after the records that were applied so far.

    Args:
        start: what lies on the disk before the first record; nothing without it.
    """

    def __init__(self, start: Path | None = None) -> None:
        self._files: list[_File] = []
        self._of_inode: dict[int, int] = {}
        # By folder: name -> file; -1 is a folder. Changes: (name, file or None).
        self._durable: dict[str, dict[str, int]] = {".": {}}
        self._now: dict[str, dict[str, int]] = {".": {}}
        self._pending: dict[str, list[list[tuple[str, str, int | None]]]] = {".": []}
        if start is not None:
            self._load(start)

    def _load(self, start: Path) -> None:
        for path in sorted(start.rglob("*")):
            folder, name = _split(str(path.relative_to(start)))
            if path.is_dir():
                number = -1
                for names in (self._durable, self._now):
                    names[str(path.relative_to(start))] = {}
                self._pending[str(path.relative_to(start))] = []
            else:
                number = self._new(path.stat().st_ino)
                self._files[number].write(0, path.read_bytes())
                self._files[number].synced()
            self._durable[folder][name] = self._now[folder][name] = number

    def _new(self, inode: int) -> int:
        self._files.append(_File())
        self._of_inode[inode] = len(self._files) - 1
        return len(self._files) - 1

    def apply(self, record: Record) -> None:
        """Go on by one record."""
        kind = record.kind
        if kind is Kind.CREATE:
            number = self._new(record.inode)
            self._change([(record.names[0], number)])
        elif kind in (Kind.WRITE, Kind.ZERO):
            data = record.data if kind is Kind.WRITE else bytes(record.size)
            self._file(record.inode).write(record.offset, data)
        elif kind is Kind.SIZE:
            self._file(record.inode).resize(record.offset)
        elif kind is Kind.SYNC:
            self._sync(record)
        elif kind is Kind.RENAME:
            folder, name = _split(record.names[0])
            number = self._now[folder][name]
            self._change([(record.names[0], None), (record.names[1], number)])
        elif kind is Kind.LINK:
            folder, name = _split(record.names[0])
            self._change([(record.names[1], self._now[folder][name])])
        elif kind in (Kind.UNLINK, Kind.RMDIR):
            self._change([(record.names[0], None)])
        elif kind is Kind.MKDIR:
            self._durable.setdefault(record.names[0], {})
            self._now[record.names[0]] = {}
            self._pending.setdefault(record.names[0], [])
            self._change([(record.names[0], -1)])

    def _file(self, inode: int) -> _File:
        return self._files[self._of_inode[inode]]

    def _change(self, changes: list[tuple[str, int | None]]) -> None:
        """One call's changes of names: all of them are there after a power cut, or none."""
        step: list[tuple[str, str, int | None]] = []
        for path, number in changes:
            folder, name = _split(path)
            step.append((folder, name, number))
            if number is None:
                self._now[folder].pop(name, None)
            else:
                self._now[folder][name] = number
        self._pending[step[-1][0]].append(step)

    def _sync(self, record: Record) -> None:
        if not record.names:
            self._file(record.inode).synced()
            return
        for step in self._pending[record.names[0]]:
            _take(self._durable, step)
        self._pending[record.names[0]].clear()

    @property
    def folders(self) -> list[str]:
        """All folders there ever were, in order; "." is the one that is recorded."""
        return sorted(self._pending)

    def image(
        self,
        to: Path,
        chance: random.Random | None,
        *,
        names_of: Collection[str] = (),
        last_only: bool = False,
    ) -> None:
        """Write what a power cut might leave to *to*.

        Args:
            to: a folder that is made.
            chance: decides; without it nothing of unsynced data is left.
            names_of: without *chance*, the folders whose unsynced changes of names are all
                there, as where a file system writes its journal before the data.
            last_only: of those folders only the last change is there.
        """
        names = {folder: dict(inside) for folder, inside in self._durable.items()}
        for folder, steps in self._pending.items():
            for step in steps[-1:] if last_only else steps:
                if chance.random() < 0.5 if chance is not None else folder in names_of:
                    _take(names, step)
        self._lay(names, ".", chance, to)

    def _lay(
        self, names: dict[str, dict[str, int]], folder: str, chance: random.Random | None, to: Path
    ) -> None:
        to.mkdir(parents=True, exist_ok=True)
        for name, number in sorted(names[folder].items()):
            if number < 0:
                self._lay(names, f"{folder}/{name}".removeprefix("./"), chance, to / name)
            elif not name.endswith("-shm"):
                size, pages = self._files[number].settled(chance)
                with (to / name).open("wb") as file:
                    for page, data in pages.items():
                        if page * PAGE < size:
                            os.pwrite(file.fileno(), data[: size - page * PAGE], page * PAGE)
                    file.truncate(size)


def _take(names: dict[str, dict[str, int]], step: list[tuple[str, str, int | None]]) -> None:
    for folder, name, number in step:
        if number is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = number


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder or ".", name
