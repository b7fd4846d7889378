"""The engine of engine.h: frames in, memtable and journal, acknowledgements out."""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from native._core import ffi, lib
from native.connection import (
    REQUESTS_MAX,
    Backlog as Backlog,
    Connection as Connection,
    Fed as Fed,
    Verdict as Verdict,
)
from native.errors import NoLedger, check, raise_for
from native.frame import Request as Request
from native.mark import Mark, lend_mark, take_mark
from native.progress import Progress, take_progress
from native.store import Store

MEMTABLE_SIZE_MIN = int(lib.BK_MEMTABLE_SIZE_MIN)
"""Bytes of the smallest half of a memtable that takes every entry."""

_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)
_FAULT_SITES = {
    "journal_write": lib.BK_FAULT_JOURNAL_WRITE,
    "journal_sync": lib.BK_FAULT_JOURNAL_SYNC,
    "log_write": lib.BK_FAULT_LOG_WRITE,
    "log_sync": lib.BK_FAULT_LOG_SYNC,
    "index_write": lib.BK_FAULT_INDEX_WRITE,
    "index_sync": lib.BK_FAULT_INDEX_SYNC,
    "table_write": lib.BK_FAULT_TABLE_WRITE,
    "table_sync": lib.BK_FAULT_TABLE_SYNC,
    "entry_read": lib.BK_FAULT_ENTRY_READ,
}


class Event(enum.IntFlag):
    """News of the engine; engine.h says what each asks for."""

    READY = lib.BK_EVENT_READY
    FLUSH = lib.BK_EVENT_FLUSH
    SPACE = lib.BK_EVENT_SPACE
    WOKEN = lib.BK_EVENT_WOKEN
    SYNCED = lib.BK_EVENT_SYNCED
    FAILED = lib.BK_EVENT_FAILED


class Recovery(msgspec.Struct, frozen=True):
    """What opening found in the journal. *limbo*: records are missing."""

    replayed_files: int
    replayed_records: int
    replayed_bytes: int
    damages: int
    limbo: bool


class LedgerState(msgspec.Struct, frozen=True):
    """What the engine knows of a ledger; -1 stands for none."""

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


def plan_fault(site: str, nth: int = 1, error_number: int = 5, count: int = 1) -> None:
    """Make the *nth* call of *site* from now on, and *count* - 1 after it, fail.

    For tests. *site* is one of journal_write, journal_sync, log_write, log_sync,
    index_write, index_sync, table_write, table_sync.
    """
    lib.bk_fault_plan(_FAULT_SITES[site], nth, error_number, count)


def clear_fault() -> None:
    """Forget what plan_fault planned."""
    lib.bk_fault_plan(lib.BK_FAULT_NONE, 0, 0, 0)


@contextmanager
def syncs_heard(heard: Callable[[int], None]) -> Iterator[None]:
    """Call *heard* with the descriptor behind each sync of the core that succeeded. For tests.

    Whatever *heard* raises is raised when the block ends. No engine may be in use when the
    block begins or ends.
    """
    failures: list[BaseException] = []

    def note(_type: object, failure: BaseException, _trace: object) -> None:
        failures.append(failure)

    lib.bk_io_on_sync(callback := ffi.callback("void(int)", heard, onerror=note))
    try:
        yield
    finally:
        lib.bk_io_on_sync(ffi.NULL)
        del callback
    for failure in failures:
        raise failure


class _Desk:
    """Where one thread works on answers: kept, because making these costs more than an answer."""

    def __init__(self) -> None:
        self.request = ffi.new("bk_request *")
        self.size = ffi.new("size_t *")
        self._room = 0
        self._paper: Any = None

    def lay(self, request: Request) -> None:
        """Put *request* there in the form in which C takes it."""
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

    def paper(self, size: int) -> Any:  # noqa: ANN401 - a cffi array
        """Return memory for an answer, of at least *size* bytes."""
        if self._room < size:
            self._paper = _new_uncleared("uint8_t[]", size)
            self._room = size
        return self._paper


class Engine:
    """A bookie's journal, memtable and store. engine.h holds the rules.

    Calls that touch the disk say so; run those in a worker thread.
    """

    def __init__(self, pointer: Any, event_fd: int) -> None:  # noqa: ANN401 - a cffi pointer
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
    ) -> tuple[Engine, Recovery]:
        """Open the folders at *mark* and replay the journal. Blocks.

        After opening without a mark (a new bookie), seal, flush and persist the
        mark before anything is taken in.

        Raises:
            FileNotFoundError: the journal file that the mark names is missing.
            FileExistsError: there is no mark, but there are entries.
            OSError: a file could not be read or written.
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
            },
        )
        recovery = ffi.new("bk_recovery *")
        out = ffi.new("bk_engine **")
        lent = ffi.NULL if mark is None else lend_mark(mark)
        _plan_fault_of_environment()
        check(
            lib.bk_engine_open(options, lent, recovery, out),
            f"opening the bookie's folders {journal_folder} and {ledger_folder}",
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

        What was not flushed stays in the journal. Close connections first.
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
        """Begin a connection; `ready` tells its news by *token*."""
        out = ffi.new("bk_connection **")
        check(lib.bk_connection_open(self._pointer, token, out), "a new connection")
        return Connection(out[0], self._requests)

    def poll(self) -> Event:
        """Return the events since the last poll.

        Raises:
            OSError: the journal failed. Nothing will be acknowledged any more;
                end the process.
        """
        error = ffi.new("int32_t *")
        events = Event(lib.bk_engine_poll(self._pointer, error))
        if Event.FAILED in events:
            raise_for(-error[0], "writing the journal failed; the bookie must stop")
        return events

    def ready(self) -> list[int]:
        """Return the tokens of connections that have responses to send."""
        return list(_drain(lib.bk_engine_ready, self._pointer, self._tokens))

    def woken(self) -> list[int]:
        """Return the ids of ledgers whose watch came true, and is over."""
        return list(_drain(lib.bk_engine_woken, self._pointer, self._ids))

    def watch(self, ledger_id: int, known_lac: int) -> bool:
        """Watch the ledger's LAC; False when it is past *known_lac* already.

        Raises:
            NoLedger: it is not known here.
        """
        result = lib.bk_engine_watch(self._pointer, ledger_id, known_lac)
        if result not in (lib.BK_OK, lib.BK_END):
            raise_for(result, f"ledger {ledger_id}")
        return bool(result == lib.BK_OK)

    def notify(self, ticket: int) -> None:
        """Ask for Event.SYNCED once everything up to *ticket* is synced."""
        lib.bk_engine_notify(self._pointer, ticket)

    def synced(self) -> int:
        """Return the ticket up to which everything is synced."""
        return int(lib.bk_engine_synced(self._pointer))

    def gathered(self) -> int:
        """Return the ticket with which all that the memtable holds now is durable."""
        return int(lib.bk_engine_gathered(self._pointer))

    # --- requests -------------------------------------------------------------------

    def fence(self, ledger_id: int, key: bytes, incarnation: int = 0) -> int:
        """Fence the ledger; the fence is durable when the ticket returned is synced.

        Raises:
            BadKey: *key* is not the ledger's master key.
            OtherLedger: the one here is of another incarnation; with 0, any is meant.
            Full: the memtable is full; try again after Event.SPACE.
        """
        ticket = ffi.new("uint64_t *")
        check(
            lib.bk_engine_fence(self._pointer, ledger_id, incarnation, key, ticket),
            f"fencing ledger {ledger_id}",
        )
        return int(ticket[0])

    def answer(self, request: Request, *, use_disk: bool, size_max: int) -> bytes | None:
        """Return the response frame of a read, or None when the disk is needed.

        An error is a response too. With *use_disk* it blocks. The frame has at
        most *size_max* bytes, but for a single entry that is larger.
        """
        desk = self._desk()
        desk.lay(request)
        room = max(4096, min(size_max, lib.BK_FRAME_SIZE_MAX + 4))
        while True:
            out = desk.paper(room)
            result = lib.bk_engine_answer(
                self._pointer, desk.request, use_disk, out, room, desk.size
            )
            if result == lib.BK_OK:
                return bytes(ffi.buffer(out, desk.size[0]))
            if result == lib.BK_AGAIN:
                return None
            if result != lib.BK_SMALL or desk.size[0] <= room:
                raise_for(result, f"reading ledger {request.ledger_id}")
            room = desk.size[0]

    def _desk(self) -> _Desk:
        desk: _Desk | None = getattr(self._answers, "desk", None)
        if desk is None:
            desk = self._answers.desk = _Desk()
        return desk

    def set_limbo(self, limbo: bool) -> None:
        """Answer I/O error instead of "no entry": the entry may have been here."""
        lib.bk_engine_set_limbo(self._pointer, limbo)

    def set_read_only(self, read_only: bool, priority_allowed: bool) -> None:
        """Refuse adds; those with the priority flag only unless *priority_allowed*."""
        lib.bk_engine_set_read_only(self._pointer, read_only, priority_allowed)

    # --- ledgers -----------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerState | None:
        """Return what is known of a ledger, a deleted one too, or None."""
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
        """Return which entries above *after* are here, as up to *count* runs (first, last).

        Runs rise and are maximal; to go on, ask again with the last one's end. It
        reads no records, only index pages where entries are missing. Blocks. What was
        just added may not be durable before the ticket gathered() is synced.

        Raises:
            NoLedger: the ledger is not known here, or was deleted.
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
            NoLedger: it is not known here, or of another *incarnation*.
        """
        meant = -1 if incarnation is None else incarnation
        result = lib.bk_engine_delete_ledger(self._pointer, ledger_id, meant, now_ms)
        if result == lib.BK_NO_LEDGER:
            raise NoLedger(f"ledger {ledger_id}")
        check(result, f"deleting ledger {ledger_id}")

    def renew_ledger(self, ledger_id: int, before: int, after: int) -> bool:
        """Let the ledger of incarnation *after* begin, with nothing, in the place of *before*.

        Returns False when the one here is not *before*.

        Raises:
            Full: the memtable is full; try again after Event.SPACE.
        """
        result = lib.bk_engine_renew_ledger(self._pointer, ledger_id, before, after)
        if result not in (lib.BK_OK, lib.BK_NO_LEDGER):
            raise_for(result, f"renewing ledger {ledger_id}")
        return bool(result == lib.BK_OK)

    def forget_tombstones(self, now_ms: int) -> None:
        """Drop the tombstones that are older than seven days, and of which no log has entries."""
        lib.bk_engine_forget_tombstones(self._pointer, now_ms)

    def fence_all(self) -> None:
        """Fence every ledger, durably at the next flush."""
        lib.bk_engine_fence_all(self._pointer)

    # --- journal and flush ----------------------------------------------------------------

    def commit(self) -> bool:
        """Without a journal thread: write and sync what gathered. Blocks.

        Returns False when nothing had.
        """
        result = lib.bk_engine_commit(self._pointer)
        if result not in (lib.BK_OK, lib.BK_END):
            raise_for(result, "writing the journal")
        return bool(result == lib.BK_OK)

    def seal(self) -> bool:
        """Seal the active half of the memtable, so that flush finds it.

        Returns False when there is nothing to flush, or a flush is under way.
        """
        result = lib.bk_engine_seal(self._pointer)
        if result not in (lib.BK_OK, lib.BK_END, lib.BK_FULL):
            raise_for(result, "sealing the memtable")
        return bool(result == lib.BK_OK)

    def flush(self) -> Mark | None:
        """Write the sealed half to log, index and table. Blocks.

        Returns the mark to persist, or None when no half is sealed.

        Raises:
            OSError: a write or sync failed. The journal keeps everything; end
                the process.
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
        """Return what waits for the disk, and whether that moves; never blocks."""
        return take_progress(self._pointer)

    def release_memory(self) -> None:
        """Give the memory of unused memtable halves back to the system."""
        lib.bk_engine_release_memory(self._pointer)

    def stats(self) -> EngineStats:
        """Return the counters; cheap enough for every scrape."""
        out = ffi.new("bk_engine_stats *")
        lib.bk_engine_get_stats(self._pointer, out)
        values: dict[str, Any] = {}
        for name in EngineStats.__struct_fields__:
            value = getattr(out, name)
            if name == "add_errors":
                value = list(value)
            elif not isinstance(value, int):
                value = Histogram(value.count, value.sum_ns, list(value.buckets))
            values[name] = value
        return EngineStats(**values)


def _drain(call: Any, engine: Any, buffer: Any) -> Iterator[int]:  # noqa: ANN401 - cffi
    while True:
        count = call(engine, buffer, len(buffer))
        yield from ffi.unpack(buffer, count)
        if count < len(buffer):
            return


def _ledger_state(row: Any) -> LedgerState:  # noqa: ANN401 - a cffi struct
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


def _plan_fault_of_environment() -> None:
    """Plan the fault that a test names in QUIRE_FAULT, as site:nth:errno[:count]."""
    plan = os.environ.get("QUIRE_FAULT")
    if plan:
        site, *numbers = plan.split(":")
        plan_fault(site, *_numbers_of(numbers))


def _numbers_of(texts: Sequence[str]) -> list[int]:
    return [int(text) for text in texts]
