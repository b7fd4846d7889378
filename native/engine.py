"""The engine of engine.h: frames in, memtable and journal, acknowledgements out."""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.connection import (
    REQUESTS_MAX,
    Backlog as Backlog,
    Connection as Connection,
    Fed as Fed,
    Reads as Reads,
    Verdict as Verdict,
)
from native.errors import Absent, check, raise_for
from native.frame import Request as Request
from native.mark import Mark, lend_mark, take_mark
from native.progress import Progress, take_progress
from native.store import Store

MEMTABLE_SIZE_MIN = int(lib.BK_MEMTABLE_SIZE_MIN)
"""Bytes of the smallest half of a memtable that takes every entry."""

_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class Event(enum.IntFlag):
    """Events of the engine; engine.h describes the reaction to each."""

    READY = lib.BK_EVENT_READY
    FLUSH = lib.BK_EVENT_FLUSH
    SPACE = lib.BK_EVENT_SPACE
    WOKEN = lib.BK_EVENT_WOKEN
    SYNCED = lib.BK_EVENT_SYNCED
    FAILED = lib.BK_EVENT_FAILED


class Recovery(msgspec.Struct, frozen=True):
    """The result of replaying the journal. *limbo* is set if records are missing."""

    replayed_files: int
    replayed_records: int
    replayed_bytes: int
    damages: int
    limbo: bool


class LedgerState(msgspec.Struct, frozen=True):
    """The engine's state of a ledger; -1 stands for none."""

    ledger_id: int
    last_entry: int
    lac: int
    explicit_lac: int
    fenced: bool
    deleted: bool
    key: bytes | None
    incarnation: int = 0
    """0: not known"""


class Histogram(msgspec.Struct, frozen=True):
    """Bucket i counts values below 2**i microseconds (entries, for group sizes)."""

    count: int
    sum_ns: int
    buckets: list[int]


class EngineStats(msgspec.Struct, frozen=True):
    """Counters since the engine was opened; engine.h describes each."""

    adds: int
    add_bytes: int
    adds_repeated: int
    add_errors: list[int]
    reads_memtable: int
    reads_log: int
    read_bytes: int
    reads_missing: int
    reads_in_limbo: int
    read_errors: int
    fences: int
    groups: int
    group_bytes: int
    group_entries: int
    journal_bytes: int
    journal_id: int
    journal_offset: int
    unsynced_bytes: int
    memtable_bytes: int
    memtable_entries: int
    ledgers: int
    fulls: int
    connections: int
    partial_bytes: int
    add: Histogram
    queue: Histogram
    sync: Histogram
    group_size: Histogram
    flush: Histogram
    read_memtable: Histogram
    read_log: Histogram


class _AnswerBuffers:
    """One thread's buffers for answers, kept because allocating them costs more than an answer."""

    def __init__(self) -> None:
        self.request = ffi.new("bk_request *")
        self.size = ffi.new("size_t *")
        self._memory_size = 0
        self._memory: CData = None

    def set_request(self, request: Request) -> None:
        """Copy *request* into the C struct."""
        raw = self.request
        raw.opcode = request.opcode
        raw.flags = request.flags
        raw.ledger_id = request.ledger_id
        raw.entry_id = request.entry_id
        raw.request_id = request.request_id
        raw.known_lac = request.known_lac
        raw.size_max = request.size_max
        raw.count_max = request.count_max
        raw.wait_ms = request.wait_ms
        raw.incarnation = request.incarnation
        raw.other_code = request.other_code
        raw.has_key = request.key is not None
        if request.key is not None:
            raw.key = request.key

    def reserve(self, size: int) -> CData:
        """Return memory for an answer, of at least *size* bytes."""
        if self._memory_size < size:
            self._memory = _new_uncleared("uint8_t[]", size)
            self._memory_size = size
        return self._memory


class Engine:
    """A bookie's journal, memtable and store. engine.h holds the rules.

    Calls that touch the disk say so; run those in a worker thread.
    """

    def __init__(self, pointer: CData, event_fd: int) -> None:
        self._pointer = pointer
        self._event_fd = event_fd
        self._tokens = ffi.new("uint64_t[]", 1024)
        self._ids = ffi.new("int64_t[]", 1024)
        self._requests = ffi.new("bk_request[]", REQUESTS_MAX)
        self._answers = threading.local()
        self.store = Store.wrap(lib.bk_engine_store(pointer))

    @classmethod
    def open(
        cls,
        *,
        journal_folder: Path,
        ledger_folder: Path,
        mark: Mark | None,
        memtable_size: int,
        journal_size_max: int,
        journal_spares: int,
        log_size_max: int,
        index_cache_size: int,
        event_fd: int = -1,
        threaded: bool = True,
        searches_logs: bool = False,
        table_is_whole: bool = False,
    ) -> tuple[Engine, Recovery]:
        """Open the folders at *mark* and replay the journal. Blocks.

        *searches_logs*: look in logs for the incarnations of ledgers, too, because the ledger table
        may be an old one, unless *table_is_whole*. That costs a read for each extent. And go on, in
        limbo, without what the disk cannot read of a journal's header and of these incarnations.

        After opening without a mark (a new bookie), seal, flush and persist the mark before feeding
        any request.

        Raises:
            FileNotFoundError: the journal file that the mark names is missing.
            FileExistsError: there is no mark, but there are entries.
            OSError: a file could not be read or written; if the disk could not read one, its
                *filename* names it.
        """
        journal = ffi.new("char[]", os.fsencode(journal_folder))
        ledgers = ffi.new("char[]", os.fsencode(ledger_folder))
        options = ffi.new(
            "bk_engine_options *",
            {
                "journal_folder": journal,
                "ledger_folder": ledgers,
                "memtable_size": memtable_size,
                "journal_size_max": journal_size_max,
                "journal_spares": journal_spares,
                "threaded": threaded,
                "log_size_max": log_size_max,
                "index_cache_size": index_cache_size,
                "event_fd": event_fd,
                "searches_logs": lib.BK_SEARCH_BESIDE_TABLE if table_is_whole else searches_logs,
            },
        )
        recovery = ffi.new("bk_recovery *")
        out = ffi.new("bk_engine **")
        lent = ffi.NULL if mark is None else lend_mark(mark)
        result = lib.bk_engine_open(options, lent, recovery, out)
        check(
            result,
            f"opening the bookie's folders {journal_folder} and {ledger_folder}",
            ffi.string(recovery.failed),
        )
        return cls(out[0], event_fd), Recovery(
            recovery.replayed_files,
            recovery.replayed_records,
            recovery.replayed_bytes,
            recovery.damages,
            bool(recovery.limbo),
        )

    def close(self) -> None:
        """Stop the journal thread and free everything. Blocks; harmless twice.

        Unflushed entries stay in the journal. Close connections first.
        """
        if self._pointer != ffi.NULL:
            lib.bk_engine_close(self._pointer)
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

    # --- connections and events ---------------------------------------------------

    def connect(self, token: int) -> Connection:
        """Open a connection, which ready() reports by its *token*."""
        out = ffi.new("bk_connection **")
        check(lib.bk_connection_open(self._pointer, token, out), "a new connection")
        return Connection(out[0], self._requests)

    def poll(self) -> Event:
        """Return the events since the last poll.

        Raises:
            OSError: the journal failed. Nothing more will be acknowledged: end the process.
        """
        error = ffi.new("int32_t *")
        events = Event(lib.bk_engine_poll(self._pointer, error))
        if Event.FAILED in events:
            raise_for(-error[0], "writing the journal failed; the bookie must stop")
        return events

    def ready(self) -> list[int]:
        """Return the tokens of connections that have responses to send."""
        return list(_drain(lib.bk_engine_take_ready, self._pointer, self._tokens))

    def woken(self) -> list[int]:
        """Return the ids of ledgers whose LAC has passed the watched one; these watches end."""
        return list(_drain(lib.bk_engine_take_woken, self._pointer, self._ids))

    def watch(self, ledger_id: int, known_lac: int) -> bool:
        """Watch the ledger's LAC; return False if it is past *known_lac* already.

        Raises:
            Absent: it is not known here.
        """
        result = lib.bk_engine_watch(self._pointer, ledger_id, known_lac)
        if result not in (lib.BK_OK, lib.BK_END):
            raise_for(result, f"ledger {ledger_id}")
        return bool(result == lib.BK_OK)

    def notify(self, ticket: int) -> None:
        """Request Event.SYNCED once everything up to *ticket* is synced."""
        lib.bk_engine_notify(self._pointer, ticket)

    def synced(self) -> int:
        """Return the ticket up to which everything is synced."""
        return int(lib.bk_engine_get_synced(self._pointer))

    def gathered(self) -> int:
        """Return the ticket that, once synced, makes everything in the memtable durable."""
        return int(lib.bk_engine_get_gathered(self._pointer))

    # --- requests -------------------------------------------------------------------

    def fence(self, ledger_id: int, key: bytes, incarnation: int = 0) -> int:
        """Fence the ledger; the fence is durable once the returned ticket is synced.

        Raises:
            Refused: *key* is not the ledger's master key.
            OtherLedger: the ledger here has another incarnation; 0 accepts any.
            Full: the memtable is full; try again after Event.SPACE.
        """
        ticket = ffi.new("uint64_t *")
        check(
            lib.bk_engine_fence(self._pointer, ledger_id, incarnation, key, ticket),
            f"fencing ledger {ledger_id}",
        )
        return int(ticket[0])

    def answer(self, request: Request, *, use_disk: bool, size_max: int) -> bytes | None:
        """Return the response frame of a read, or `None` if the disk is needed.

        An error is a response too. With *use_disk* it blocks. The frame has at most *size_max*
        bytes, unless a single entry is larger.
        """
        buffers = self._buffers()
        buffers.set_request(request)
        room = max(4096, min(size_max, lib.BK_FRAME_SIZE_MAX + 4))
        while True:
            out = buffers.reserve(room)
            result = lib.bk_engine_answer(
                self._pointer, buffers.request, use_disk, out, room, buffers.size
            )
            if result == lib.BK_OK:
                return bytes(ffi.buffer(out, buffers.size[0]))
            if result == lib.BK_AGAIN:
                return None
            if result != lib.BK_SMALL or buffers.size[0] <= room:
                raise_for(result, f"reading ledger {request.ledger_id}")
            room = buffers.size[0]

    def answer_reads(self, reads: Reads, *, use_disk: bool, size_max: int) -> bytes:
        """Return the response frames of as many READs as fit; *reads* keeps the others.

        An error is a response too. Without *use_disk* those that need the disk are kept; with it,
        this blocks.

        Raises:
            OSError: no memory.
        """
        buffers = self._buffers()
        room = max(4096, size_max)
        out = buffers.reserve(room)
        check(
            lib.bk_engine_answer_reads(
                self._pointer, reads.rows, reads.left, use_disk, out, room, buffers.size
            ),
            "reading entries",
        )
        return bytes(ffi.buffer(out, buffers.size[0]))

    def _buffers(self) -> _AnswerBuffers:
        buffers: _AnswerBuffers | None = getattr(self._answers, "buffers", None)
        if buffers is None:
            buffers = self._answers.buffers = _AnswerBuffers()
        return buffers

    def set_limbo(self, limbo: bool) -> None:
        """Answer I/O error instead of "no entry": the entry may have been here."""
        lib.bk_engine_set_limbo(self._pointer, limbo)

    def set_guarded(self, guarded: bool) -> None:
        """Let feed() ask before a peer that declares no incarnation creates a ledger."""
        lib.bk_engine_set_guarded(self._pointer, guarded)

    def set_read_only(self, read_only: bool, priority_allowed: bool) -> None:
        """Refuse adds; those with the priority flag only unless *priority_allowed*."""
        lib.bk_engine_set_read_only(self._pointer, read_only, priority_allowed)

    # --- ledgers -----------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerState | None:
        """Return the state of a ledger, deleted or not, or `None` if it is unknown."""
        out = ffi.new("bk_ledger_state *")
        if lib.bk_engine_ledger(self._pointer, ledger_id, out) != lib.BK_OK:
            return None
        return _ledger_state(out)

    def ledgers(self, after: int = -1, count: int = 1000) -> list[LedgerState]:
        """Return up to *count* ledgers with ids above *after*, in rising order."""
        rows = ffi.new("bk_ledger_state[]", count)
        n = lib.bk_engine_ledgers(self._pointer, after, rows, count)
        return [_ledger_state(rows[i]) for i in range(n)]

    def runs(self, ledger_id: int, after: int = -1, count: int = 1000) -> list[tuple[int, int]]:
        """Return the stored entries above *after*, as up to *count* runs (first, last).

        Runs rise and are maximal; to go on, call again with the end of the last one. Reads no
        records, only index pages where entries are missing. Blocks. Recent entries may not be
        durable before the ticket of gathered() is synced.

        Raises:
            Absent: the ledger is not known here, or was deleted.
            Corrupt: the index is damaged.
        """
        rows = ffi.new("bk_entry_run[]", count)
        found = ffi.new("uint32_t *")
        check(
            lib.bk_engine_runs(self._pointer, ledger_id, after, rows, count, found),
            f"the entries of ledger {ledger_id}",
        )
        return [(row.first, row.last) for row in rows[0 : found[0]]]

    def delete_ledger(self, ledger_id: int, now_ms: int, incarnation: int | None = None) -> None:
        """Forget a ledger's entries; a tombstone keeps late writers away.

        Raises:
            Absent: the ledger is not known here, or has another *incarnation*.
        """
        meant = -1 if incarnation is None else incarnation
        result = lib.bk_engine_delete_ledger(self._pointer, ledger_id, meant, now_ms)
        if result == lib.BK_NO_LEDGER:
            raise Absent(f"ledger {ledger_id}")
        check(result, f"deleting ledger {ledger_id}")

    def renew_ledger(self, ledger_id: int, before: int, after: int) -> bool:
        """Replace the ledger of incarnation *before* by an empty one of incarnation *after*.

        Returns False if the ledger here is not of incarnation *before*, or if that is 0 and it is
        not deleted.

        Raises:
            Full: the memtable is full; try again after Event.SPACE.
        """
        result = lib.bk_engine_renew_ledger(self._pointer, ledger_id, before, after)
        if result not in (lib.BK_OK, lib.BK_NO_LEDGER):
            raise_for(result, f"renewing ledger {ledger_id}")
        return bool(result == lib.BK_OK)

    def forget_tombstones(self, now_ms: int) -> None:
        """Drop tombstones that are older than seven days and have no entries left in any log."""
        lib.bk_engine_forget_tombstones(self._pointer, now_ms)

    def fence_all(self) -> None:
        """Fence every ledger, durably at the next flush."""
        lib.bk_engine_fence_all(self._pointer)

    # --- journal and flush ----------------------------------------------------------------

    def commit(self) -> bool:
        """Write and sync the gathered entries, if there is no journal thread. Blocks.

        Returns False if there were none.
        """
        result = lib.bk_engine_commit(self._pointer)
        if result not in (lib.BK_OK, lib.BK_END):
            raise_for(result, "writing the journal")
        return bool(result == lib.BK_OK)

    def seal(self) -> bool:
        """Seal the active half of the memtable for the next flush().

        Returns False if there is nothing to flush, or a flush is under way.
        """
        result = lib.bk_engine_seal(self._pointer)
        if result not in (lib.BK_OK, lib.BK_END, lib.BK_FULL):
            raise_for(result, "sealing the memtable")
        return bool(result == lib.BK_OK)

    def flush(self) -> Mark | None:
        """Write the sealed half to log, index and table. Blocks.

        Returns the mark to persist, or `None` if no half is sealed.

        Raises:
            OSError: a write or sync failed. The journal keeps everything: end the process.
        """
        mark = ffi.new("bk_mark *")
        result = lib.bk_engine_flush(self._pointer, mark)
        if result == lib.BK_END:
            return None
        check(result, "flushing the memtable")
        return take_mark(mark)

    def trim(self, mark: Mark, backups: int) -> None:
        """Once *mark* is durable: drop journal files before it. Blocks."""
        check(lib.bk_engine_trim(self._pointer, lend_mark(mark), backups), "trimming the journal")

    def progress(self) -> Progress:
        """Return the amount of work waiting for the disk, and its steps so far; never blocks."""
        return take_progress(self._pointer)

    def release_memory(self) -> None:
        """Give the memory of unused memtable halves back to the system."""
        lib.bk_engine_release_memory(self._pointer)

    def stats(self) -> EngineStats:
        """Return the counters; cheap enough for every scrape."""
        out = ffi.new("bk_engine_stats *")
        lib.bk_engine_get_stats(self._pointer, out)
        values: dict[str, CData] = {}
        for name in EngineStats.__struct_fields__:
            value = getattr(out, name)
            if name == "add_errors":
                value = list(value)
            elif not isinstance(value, int):
                value = Histogram(value.count, value.sum_ns, list(value.buckets))
            values[name] = value
        return EngineStats(**values)


def _drain(call: CData, engine: CData, buffer: CData) -> Iterator[int]:
    while True:
        count = call(engine, buffer, len(buffer))
        yield from ffi.unpack(buffer, count)
        if count < len(buffer):
            return


def _ledger_state(row: CData) -> LedgerState:
    return LedgerState(
        row.ledger_id,
        row.last_entry,
        row.lac,
        row.explicit_lac,
        bool(row.fenced),
        bool(row.deleted),
        bytes(row.key) if row.key_known else None,
        row.incarnation,
    )
