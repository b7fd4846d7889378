"""Entry logs and the index behind Python, as store.h lays them out.

`Store` is a bookie's store, its own or an engine's. The functions read the files
without one: what a log or an index says, and an index built anew from its log.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.errors import Corrupt, check, raise_for
from native.mark import Mark, lend_mark, take_mark

_Fields = TypeVar("_Fields", bound=msgspec.Struct)
_DAMAGES = 64
_READ_SIZE = 64 * 1024
_new = ffi.new_allocator(should_clear_after_alloc=False)
MAP = lib.BK_RECORD_MAP


class LogRecord(msgspec.Struct, frozen=True):
    """A record of an entry log. The ledger map has ledger id -1 and entry id MAP."""

    offset: int
    ledger_id: int
    entry_id: int
    body: bytes


class Extent(msgspec.Struct, frozen=True):
    """A run of one ledger's entries in a log; *offset* is that of its row in the index."""

    offset: int
    ledger_id: int
    first_entry: int
    last_entry: int
    page_offset: int
    log_offset: int
    log_size: int
    entries: int
    sparse: bool


class Place(msgspec.Struct, frozen=True):
    """The place of an entry's record. *record_size* includes its header."""

    log_id: int
    offset: int
    record_size: int


class LedgerUsage(msgspec.Struct, frozen=True):
    """A ledger's entries in the entry logs. *bytes* is the size of their records."""

    ledger_id: int
    first_entry: int
    last_entry: int
    entries: int
    bytes: int
    extents: int


class LogUsage(msgspec.Struct, frozen=True):
    """An entry log: *size* of the file and *live* bytes of wanted records in it.

    Of an entry that is stored twice, the copy in the log of the greater *origin* is newer.
    """

    log_id: int
    open: bool
    size: int
    live: int
    damaged: bool
    extents: int
    origin: int


class Damage(msgspec.Struct, frozen=True):
    """A damaged place in *path*; ids are -1 if unknown.

    *last_entry*: if entries after *entry_id* are damaged, too, the last of them; otherwise -1.
    """

    path: Path
    offset: int
    ledger_id: int = -1
    entry_id: int = -1
    last_entry: int = -1


class NewIndex(msgspec.Struct, frozen=True):
    """What an index that was built from its log has, and how many damaged places it has not."""

    entries: int
    damaged: int
    first_damage: int
    """offset in the log; 0 if its header is damaged, or nothing"""


class LogHead(msgspec.Struct, frozen=True):
    """The header of an entry log."""

    log_id: int
    closed: bool


class StoreStats(msgspec.Struct, frozen=True):
    """Counters since the store was opened, and current sizes in bytes."""

    flushes: int
    flushed_entries: int
    flushed_bytes: int
    log_reads: int
    index_reads: int
    index_cache_hits: int
    index_cache_bytes: int
    directory_bytes: int
    extents: int
    ledgers: int
    logs: int
    log_bytes: int
    live_bytes: int
    index_bytes: int
    damaged: int
    dead_bytes: int


class Stop:
    """Ends a compaction or a check early, from any thread."""

    def __init__(self) -> None:
        self.flag = ffi.new("int32_t *")

    def set(self) -> None:
        """End it within a fraction of a second; nothing is lost."""
        self.flag[0] = 1


class Store:
    """Entry logs and index of one folder. Any thread may read; store.h has the rules.

    All calls but the listings touch the disk.
    """

    def __init__(self, pointer: CData, *, owned: bool) -> None:
        self._pointer = pointer
        self._owned = owned
        self._taken: deque[Damage] = deque()  # by check_log, which may run in another thread

    @classmethod
    def open(
        cls, folder: Path, mark: Mark | None, log_size_max: int, index_cache_size: int
    ) -> Store:
        """Open *folder* and truncate its files to *mark*.

        Damage is no error: `take_damage` reports it, and a damaged index is rebuilt.

        Args:
            folder: holds logs and indexes.
            mark: the last checkpoint; None keeps all sound records.
            log_size_max: begin a new log after this many bytes, at most 2 GiB.
            index_cache_size: bytes of index pages kept in memory.

        Raises:
            OSError: a file could not be read or written; if the disk could not read one, its
                *filename* names it.
        """
        out = ffi.new("bk_store **")
        lent = ffi.NULL if mark is None else lend_mark(mark)
        failed = ffi.new("char[]", lib.BK_PATH_SIZE_MAX)
        result = lib.bk_store_open(
            os.fsencode(folder), lent, log_size_max, index_cache_size, failed, out
        )
        check(result, f"opening the store {folder}", ffi.string(failed))
        return cls(out[0], owned=True)

    @classmethod
    def wrap(cls, pointer: CData) -> Store:
        """Return a Store for a *pointer* that its owner closes, as an engine does."""
        return cls(pointer, owned=False)

    def close(self) -> None:
        """Close the store if open() made it. Closing twice is harmless."""
        if self._owned and self._pointer != ffi.NULL:
            lib.bk_store_close(self._pointer)
        self._pointer = ffi.NULL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- flushes --------------------------------------------------------------------------

    def flush(
        self, ledgers: Mapping[int, Mapping[int, bytes]], mark: Mark, *, salt: int = 0
    ) -> Mark:
        """Store entries durably; return *mark* with the logs' new ends.

        The engine flushes by itself; this is for tools and tests. *ledgers* gives,
        for each ledger id, stored entries (digest.h) by entry id. *salt* is
        that of the journal file the entries come from; records are stored with salt 0.

        Raises:
            OSError: no entry of this flush is visible, and every later flush fails.
        """
        self.flush_begin()
        for ledger_id, entries in sorted(ledgers.items()):
            self.flush_ledger(ledger_id, entries, salt=salt)
        return self.flush_commit(mark)

    def flush_begin(self) -> None:
        """Begin a flush; waits for one that is under way."""
        check(lib.bk_store_flush_begin(self._pointer), "beginning a flush")

    def flush_ledger(
        self,
        ledger_id: int,
        entries: Mapping[int, bytes],
        *,
        salt: int = 0,
        first_log: int = 0,
        incarnation: int = 0,
    ) -> None:
        """Write a ledger's entries to logs from *first_log* on. Ledgers come in rising order."""
        bodies = [entries[entry_id] for entry_id in sorted(entries)]
        sizes = [len(body) + lib.BK_RECORD_HEADER_SIZE for body in bodies]
        arena = ffi.new("uint8_t[]", sum(sizes))
        slots = ffi.new("bk_slot[]", len(bodies))
        offset = 0
        for i, entry_id in enumerate(sorted(entries)):
            lib.bk_record_write(arena + offset, salt, bodies[i], len(bodies[i]))
            slots[i] = (entry_id, offset, sizes[i])
            offset += sizes[i]
        check(
            lib.bk_store_flush_ledger(
                self._pointer,
                ledger_id,
                incarnation,
                first_log,
                slots,
                len(bodies),
                arena,
                salt,
            ),
            f"flushing ledger {ledger_id}",
        )

    def flush_commit(self, mark: Mark) -> Mark:
        """Sync the flushed entries and make them visible; return *mark* with the logs' new ends."""
        raw = lend_mark(mark)
        check(lib.bk_store_flush_commit(self._pointer, raw), "ending a flush")
        return take_mark(raw)

    def roll(self, mark: Mark) -> Mark:
        """Close the open log; return *mark* with the logs' new ends.

        The log can be compacted and deleted once that mark is durable: see `marked`.

        Raises:
            OSError: every later flush fails.
        """
        raw = lend_mark(mark)
        check(lib.bk_store_roll(self._pointer, raw), "closing the open entry log")
        return take_mark(raw)

    def marked(self, mark: Mark) -> None:
        """Release the logs that only the mark before *mark* needed; *mark* is durable now.

        The engine's trim does this too.
        """
        lib.bk_store_marked(self._pointer, lend_mark(mark))

    # --- reading --------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        """Return the stored entry (digest.h).

        Raises:
            Absent: it is not stored here.
            Corrupt: it is damaged; `take_damage` reports that.
        """
        size = ffi.new("uint32_t *")
        room = _READ_SIZE
        while True:
            out = _new("uint8_t[]", room)
            result = lib.bk_store_read(self._pointer, ledger_id, entry_id, out, room, size)
            if result == lib.BK_OK:
                return bytes(ffi.buffer(out, size[0]))
            if result != lib.BK_SMALL:
                raise_for(result, f"entry {entry_id} of ledger {ledger_id}")
            room = size[0]

    def read_run(
        self,
        ledger_id: int,
        start_id: int,
        *,
        last_id: int = 2**63 - 1,
        count_max: int = 2**32 - 1,
        size_max: int = 1 << 20,
    ) -> tuple[int, bytes]:
        """Return a count, and so many entries as ``{size 4 big-endian, entry}``.

        These are the entries from *start_id* on without a gap, as many as fit *size_max*
        bytes. The count is 0 if the first one does not fit.

        Raises:
            Absent, Corrupt: as `read`, of the first entry.
        """
        out = _new("uint8_t[]", size_max)
        count = ffi.new("uint32_t *")
        size = ffi.new("size_t *")
        result = lib.bk_store_read_run(
            self._pointer, ledger_id, start_id, last_id, count_max, out, size_max, count, size
        )
        if result not in (lib.BK_OK, lib.BK_SMALL):
            raise_for(result, f"entry {start_id} of ledger {ledger_id}")
        return int(count[0]), bytes(ffi.buffer(out, size[0]))

    def last(self, ledger_id: int) -> int:
        """Return the ledger's greatest entry id. Raises Absent if it has no entry."""
        out = ffi.new("int64_t *")
        check(lib.bk_store_last(self._pointer, ledger_id, out), f"ledger {ledger_id}")
        return int(out[0])

    def find(self, ledger_id: int, entry_id: int) -> Place:
        """Return the entry's place without reading it. Raises as `read`."""
        log_id = ffi.new("uint32_t *")
        offset = ffi.new("uint64_t *")
        size = ffi.new("uint32_t *")
        check(
            lib.bk_store_find(self._pointer, ledger_id, entry_id, log_id, offset, size),
            f"entry {entry_id} of ledger {ledger_id}",
        )
        return Place(log_id[0], offset[0], size[0])

    # --- ledgers and logs -----------------------------------------------------------------

    def ledgers(self, after: int = -1, count: int = 1000) -> list[LedgerUsage]:
        """Return up to *count* ledgers with ids above *after*, in rising order."""
        rows = ffi.new("bk_ledger_usage[]", count)
        n = lib.bk_store_ledgers(self._pointer, after, rows, count)
        return [_fields(LedgerUsage, rows[i]) for i in range(n)]

    def logs(self, after: int = -1, count: int = 1000) -> list[LogUsage]:
        """Return up to *count* logs with ids above *after*, in rising order."""
        rows = ffi.new("bk_log_usage[]", count)
        n = lib.bk_store_logs(self._pointer, after, rows, count)
        return [
            LogUsage(r.log_id, bool(r.open), r.size, r.live, bool(r.damaged), r.extents, r.origin)
            for r in (rows[i] for i in range(n))
        ]

    def delete_ledger(self, ledger_id: int) -> None:
        """Drop a ledger until the store is opened again; its bytes become dead.

        Raises:
            Absent: it is not stored here.
        """
        check(lib.bk_store_delete_ledger(self._pointer, ledger_id), f"ledger {ledger_id}")

    def delete_log(self, log_id: int) -> int:
        """Delete a log without live bytes; return the bytes freed.

        Raises:
            Full: it is open, or has live bytes.
            FileNotFoundError: there is no such log.
        """
        freed = ffi.new("uint64_t *")
        check(lib.bk_store_delete_log(self._pointer, log_id, freed), f"entry log {log_id}")
        return int(freed[0])

    def compact(self, *log_ids: int, bytes_per_s: int = 0, stop: Stop | None = None) -> int | None:
        """Rewrite closed logs as one, without their dead records; return the bytes copied.

        Returns None when *stop* ended it early; the logs stay as they were.

        Args:
            log_ids: which logs, by rising origin; no other log's origin lies between theirs.
            bytes_per_s: copy no faster; 0 for as fast as it goes.
            stop: ends it early.

        Raises:
            Corrupt: a record is damaged. The logs stay, its one marked damaged.
            Full: a log is open.
            FileNotFoundError: there is no such log.
            OSError: the copy failed, or the logs are no neighbours; they stay as they were.
        """
        copied = ffi.new("uint64_t *")
        flag = ffi.NULL if stop is None else stop.flag
        result = lib.bk_store_compact(
            self._pointer, log_ids, len(log_ids), bytes_per_s, flag, copied
        )
        if result == lib.BK_END:
            return None
        check(result, f"entry log {', '.join(map(str, log_ids))}")
        return int(copied[0])

    def check_log(self, log_id: int, *, bytes_per_s: int = 0, stop: Stop | None = None) -> int:
        """Check every live record of a log; return the bytes checked.

        `take_damage` returns the damage, with ledger and entry if known. A damaged record
        of an entry that was stored again does not count. Reads, flushes and compactions
        continue meanwhile. Blocks.

        Args:
            log_id: which log; of the open one, only flushed records are checked.
            bytes_per_s: read no faster; 0 for as fast as it goes.
            stop: ends it early.

        Raises:
            FileNotFoundError: there is no such log.
            OSError: the files could not be opened.
        """
        checked, after = ffi.new("uint64_t *"), ffi.new("int64_t *", -1)
        flag = ffi.NULL if stop is None else stop.flag
        size, result = 0, lib.BK_FULL
        while result == lib.BK_FULL:
            self._taken += self._take()  # the core has no room for more
            result = lib.bk_store_check_log(
                self._pointer, log_id, bytes_per_s, flag, after, checked
            )
            size += checked[0]
        if result not in (lib.BK_OK, lib.BK_CORRUPT, lib.BK_END):
            raise_for(result, f"entry log {log_id}")
        return size

    # --- damage and figures ---------------------------------------------------------------

    def take_damage(self) -> list[Damage]:
        """Return the damage found since the last call, oldest first.

        Beyond 1000 places, only `check_log` keeps all of them.
        """
        taken = [self._taken.popleft() for _ in range(len(self._taken))]
        return taken + self._take()

    def _take(self) -> list[Damage]:
        taken: list[Damage] = []
        rows = ffi.new("bk_damage[]", _DAMAGES)
        while n := lib.bk_store_take_damage(self._pointer, rows, _DAMAGES):
            taken += [_damage(rows[i]) for i in range(n)]
        return taken

    def stats(self) -> StoreStats:
        """Return the counters since open, without touching the disk."""
        out = ffi.new("bk_store_stats *")
        lib.bk_store_get_stats(self._pointer, out)
        return _fields(StoreStats, out)


def read_head(path: Path) -> LogHead:
    """Return the header of an entry log.

    Raises:
        Corrupt: it is damaged.
    """
    scan, head = _open_log(path, 0)
    lib.bk_log_scan_close(scan)
    return head


def scan_log(path: Path, end: int = 0) -> Iterator[LogRecord | Damage]:
    """Yield the records of an entry log in file order, with the ledger map. Blocks.

    Args:
        path: the file.
        end: stop here; 0 for the end in its header, or else of the file.

    Raises:
        Corrupt: the header is damaged.
    """
    scan, _ = _open_log(path, end)
    record = ffi.new("bk_record *")
    try:
        while True:
            result = lib.bk_log_scan_next(scan, record)
            if result == lib.BK_END:
                return
            if result == lib.BK_CORRUPT:
                yield Damage(path, record.offset)
            else:
                check(result, f"entry log {path}")
                body = bytes(ffi.buffer(record.body, record.body_size))
                yield LogRecord(record.offset, record.ledger_id, record.entry_id, body)
    finally:
        lib.bk_log_scan_close(scan)


def scan_index(path: Path, *, pages: bool = False) -> Iterator[Extent | Damage]:
    """Yield the extents of an index file, up to damage in its directory. Blocks.

    Args:
        path: the file.
        pages: also check the pages, nearly all of the file. An extent is followed by
            its first damaged page.

    Raises:
        Corrupt: the header is damaged.
    """
    out = ffi.new("bk_index_scan **")
    log_id = ffi.new("uint32_t *")
    check(lib.bk_index_scan_open(os.fsencode(path), out, log_id), f"index {path}")
    extent = ffi.new("bk_extent *")
    offset = ffi.new("uint64_t *")
    try:
        while True:
            result = lib.bk_index_scan_next(out[0], extent, offset)
            if result == lib.BK_END:
                return
            if result == lib.BK_CORRUPT:
                yield Damage(path, offset[0])
                return
            check(result, f"index {path}")
            yield _extent(offset[0], extent)
            result = lib.bk_index_scan_pages(out[0], extent, offset) if pages else lib.BK_OK
            if result == lib.BK_CORRUPT:
                yield Damage(path, offset[0])
            else:
                check(result, f"index {path}")
    finally:
        lib.bk_index_scan_close(out[0])


def rebuild_index(log_path: Path, index_path: Path) -> NewIndex:
    """Rebuild the index of a log, without the records that are damaged.

    Blocks for as long as reading the log takes. The old index is replaced at the end,
    atomically.
    """
    out = ffi.new("bk_rebuilt *")
    result = lib.bk_index_rebuild(os.fsencode(log_path), os.fsencode(index_path), out)
    check(result, f"building {index_path} from {log_path}")
    return _fields(NewIndex, out)


def _open_log(path: Path, end: int) -> tuple[CData, LogHead]:
    out = ffi.new("bk_log_scan **")
    log_id = ffi.new("uint32_t *")
    closed = ffi.new("uint32_t *")
    result = lib.bk_log_scan_open(os.fsencode(path), end, out, log_id, closed)
    if result == lib.BK_CORRUPT:
        raise Corrupt(f"the header of entry log {path}")
    check(result, f"entry log {path}")
    return out[0], LogHead(log_id[0], bool(closed[0]))


def _extent(offset: int, raw: CData) -> Extent:
    return Extent(
        offset,
        raw.ledger_id,
        raw.first_entry,
        raw.last_entry,
        raw.page_offset,
        raw.log_offset,
        raw.log_size,
        raw.entries,
        raw.kind == 1,
    )


def _fields(kind: type[_Fields], raw: CData) -> _Fields:
    return kind(*(getattr(raw, name) for name in kind.__struct_fields__))


def _damage(raw: CData) -> Damage:
    last = raw.last_entry if raw.last_entry > raw.entry_id else -1
    return Damage(_path(raw.path), raw.offset, raw.ledger_id, raw.entry_id, last)


def _path(raw: CData) -> Path:
    return Path(os.fsdecode(ffi.string(raw)))
