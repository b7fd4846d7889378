"""The disk of a simulated bookie: the real engine over real files, and what befalls them.

The engine has no thread here: a task of the machine commits what gathered, a while
after it came. What was not committed was never written, so closing the engine loses it
as a power cut does. What was written and not synced is lost where a page cache is watched
(page_cache.py). Elsewhere, what a cut in the middle of a write leaves is made by hand:

    TORN_GROUP     a group of the journal was written, not synced: parts of it are there
    TORN_FLUSH     log, index or table were being written: parts of them are there
    NO_MARK        a flush was done and its mark was not written
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio
from machines import MACHINE
from page_cache import CACHES, PageCache

from bookie.config import BookieConfig
from bookie.events import Wakeup
from bookie.mark import read_mark
from native.engine import Connection, Engine, Fed, Reads, Recovery, Request
from native.faults import clear_fault, plan_fault

FLUSH_SITES = [f"{file}_{call}" for file in ("log", "index", "table") for call in ("write", "sync")]
COMMIT_SITES = ["journal_write", "journal_sync"]
LOSS_SHARE = 0.7
"""of the ends of a process takes its machine's memory with it"""
CAPACITY = 1 << 40
MEMTABLE_SIZE = 12 << 20


Read = TypeVar("Read")


class Tail(enum.Enum):
    """The fate of unsynced data when a machine loses power."""

    CLEAN = "clean"
    TORN_GROUP = "torn group"
    TORN_FLUSH = "torn flush"
    NO_MARK = "no mark"


class Usage(NamedTuple):
    """The result of shutil.disk_usage."""

    total: int
    used: int
    free: int


class RingingConnection(Connection):
    """A connection whose machine's disk hears of what it takes in."""

    def feed(self, data: bytes | bytearray | memoryview, *, gathers: bool = False) -> Fed:
        fed = super().feed(data, gathers=gathers)
        _disk().take_note(len(data))
        return fed


class SimulatedEngine(Engine):
    """An engine without a thread, which its machine's disk drives."""

    closed = False
    disk: Disk

    @classmethod
    def open(cls, **options: Any) -> tuple[Engine, Recovery]:  # noqa: ANN401 - as Engine's
        engine, recovery = super().open(**(options | {"threaded": False}))
        assert isinstance(engine, SimulatedEngine)
        engine.disk = _disk()
        engine.disk.mount(engine)
        return engine, recovery

    def fence(self, ledger_id: int, key: bytes, incarnation: int = 0) -> int:
        ticket = super().fence(ledger_id, key, incarnation)
        _disk().take_note(0)
        return ticket

    def renew_ledger(self, ledger_id: int, before: int, after: int) -> bool:
        renewed = super().renew_ledger(ledger_id, before, after)
        _disk().take_note(0)
        return renewed

    def answer(self, request: Request, *, use_disk: bool, size_max: int) -> bytes | None:
        read = partial(super().answer, request, use_disk=use_disk, size_max=size_max)
        return self.disk.read(read) if use_disk else read()

    def answer_reads(self, reads: Reads, *, use_disk: bool, size_max: int) -> bytes:
        read = partial(super().answer_reads, reads, use_disk=use_disk, size_max=size_max)
        return self.disk.read(read) if use_disk else read()

    def flush(self) -> Any:  # noqa: ANN401 - as Engine's
        disk = _disk()
        mark = disk.with_fault(FLUSH_SITES, super().flush)
        if mark is not None:
            disk.note_flush()
        return mark

    def close(self) -> None:
        self.closed = True
        super().close()

    def let_go(self) -> None:
        """Close the engine and its eventfd, if nobody did."""
        if not self.closed:
            self.close()
            os.close(self._event_fd)


class Disk:
    """Files of one bookie, and the engine that is open on them."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        *,
        sync_s_max: float,
        seals: bool,
        forgets: bool,
        happened: Counter[str],
    ) -> None:
        """*seals*: halves of the memtable go long before they are full.

        *forgets*: pages and names that were not synced may be lost.
        """
        self.folder = folder
        folder.mkdir(parents=True)
        self._cache = PageCache(folder) if forgets else None
        if self._cache is not None:
            CACHES.append(self._cache)
        self.work = Wakeup()
        self.engine: SimulatedEngine | None = None
        self.full = False
        self.flushed = trio.Event()
        """set, and replaced by another, at the next flush"""
        self.next_fault = ""
        """a site of native.engine.plan_fault, hit when it is next come by"""
        self.sync_s_min = 0.0
        self.hanging = 0
        """how many faults let it hang"""
        self.flush_hanging = 0
        """how many let flushes hang, and nothing else"""
        self.unreadable_share = 0.0
        """of reads, this much fails"""
        self._chance = chance
        self._sync_s_max = sync_s_max
        self._half_size = chance.choice([4, 16, 64]) << 10
        self._seals = seals
        self._happened = happened
        self._gathered = 0
        self._unflushed = 0
        self._group = (-1, 0)
        """the last group of the journal: its file's id, and where it begins"""
        self._journal_end = (-1, 0)
        """the end of the journal: its last file's id, and that file's size"""
        self._moves = trio.lowlevel.ParkingLot()

    @property
    def journal_folder(self) -> Path:
        return self.folder / "journal"

    @property
    def ledger_folder(self) -> Path:
        return self.folder / "ledgers"

    def mount(self, engine: SimulatedEngine) -> None:
        """Take the engine that was opened on this disk."""
        self.engine = engine
        self._gathered = self._unflushed = 0
        stats = engine.stats()
        self._journal_end = (stats.journal_id, stats.journal_offset)

    def note_flush(self) -> None:
        """A flush was done, and its mark is about to be written."""
        self._happened["memtables full"] += self._unflushed > MEMTABLE_SIZE
        self._unflushed = 0
        self.flushed.set()
        self.flushed = trio.Event()

    def take_note(self, size: int) -> None:
        """The engine took in *size* bytes, or a fence."""
        self._gathered += size
        self._unflushed += size
        self.work.set()

    async def drive(self) -> None:
        """Commit what gathers, for as long as the process runs."""
        while True:
            await self.work.wait()
            await trio.sleep(self.sync_s())
            await self._hang()
            if self.engine is not None and not self.engine.closed:
                self.commit(self.engine)
                self._seal(self.engine)

    def _seal(self, engine: SimulatedEngine) -> None:
        """Seal the active half as if it were full: it holds more than is ever sent here."""
        if self._seals and self._gathered >= self._half_size:
            self._gathered = 0
            try:
                engine.seal()
            except OSError:
                return  # the engine failed, and its events tell

    def commit(self, engine: SimulatedEngine) -> None:
        """Write and sync all that gathered; a failure is told by the engine's events."""
        try:
            while self.with_fault(COMMIT_SITES, engine.commit):
                stats = engine.stats()  # dear: it copies histograms
                file_id, end = self._journal_end
                self._group = (stats.journal_id, end if stats.journal_id == file_id else 0)
                self._journal_end = (stats.journal_id, stats.journal_offset)
        except OSError:
            return

    def sync_s(self) -> float:
        """Return how long the next sync takes."""
        slow = self._chance.random() < 0.02
        sync_s = self._sync_s_max * (20 if slow else 1) * self._chance.random() ** 2
        self._happened["slow disks"] += self.sync_s_min > sync_s
        return max(sync_s, self.sync_s_min)

    async def _hang(self) -> None:
        self._happened["disks that hang"] += self.hanging > 0
        while self.hanging:
            await self._moves.park()

    async def hang_flush(self, engine: Engine) -> None:
        """Let a half of the memtable that is sealed wait for as long as flushes hang."""
        if not self.flush_hanging:
            return
        with contextlib.suppress(OSError):  # it failed before, and its events tell
            engine.seal()
        self._happened["flushes that hang"] += 1
        while self.flush_hanging:
            await self._moves.park()

    def go_on(self) -> None:
        """Let what hangs go on."""
        self._moves.unpark_all()

    def read(self, read: Callable[[], Read]) -> Read:
        """Read entries, or fail."""
        if not self.unreadable_share or self._chance.random() >= self.unreadable_share:
            return read()
        self._happened["read errors"] += 1
        plan_fault("entry_read", 1, errno.EIO)
        try:
            return read()
        finally:
            clear_fault()

    def with_fault(self, sites: list[str], work: Any) -> Any:  # noqa: ANN401 - any call
        """Do *work*, with the fault that is planned for one of *sites*."""
        if self.next_fault not in sites:
            return work()
        plan_fault(self.next_fault, 1, errno.EIO)
        try:
            return work()
        finally:
            self.next_fault = ""
            clear_fault()

    def usage(self, _folder: Path) -> Usage:
        """How full it is, for the bookie's guard."""
        free = 0 if self.full else CAPACITY // 2
        return Usage(CAPACITY, CAPACITY - free, free)

    # --- what a power cut leaves -----------------------------------------------------

    def cut_power(self, tail: Tail) -> None:
        """Close the engine with nothing written that was not synced, but for *tail*."""
        engine, self.engine = self.engine, None
        self.next_fault = ""
        try:
            if engine is not None and not engine.closed:
                self._leave(engine, tail)
        finally:
            if engine is not None:
                engine.let_go()
        if self._cache is not None and self._chance.random() < LOSS_SHARE:
            self._happened["lost pages"] += self._cache.lose(self._chance) > 0

    def _leave(self, engine: SimulatedEngine, tail: Tail) -> None:
        if tail is Tail.TORN_GROUP:
            self._tear_group(engine)
        elif tail is Tail.TORN_FLUSH:
            self._tear_flush(engine)
        elif tail is Tail.NO_MARK:
            self._flush(engine)

    def _flush(self, engine: SimulatedEngine) -> None:
        try:
            if engine.seal():
                Engine.flush(engine)
        except OSError:
            return  # it failed before; nothing follows a failure

    def _tear_group(self, engine: SimulatedEngine) -> None:
        stats = engine.stats()
        path = self.journal_folder / f"{stats.journal_id:016x}.journal"
        self.next_fault = "journal_sync"
        self.commit(engine)
        engine.let_go()
        if path.exists() and self._cache is None:
            _scribble(path, stats.journal_offset, self._chance)

    def _tear_flush(self, engine: SimulatedEngine) -> None:
        plan_fault(self._chance.choice(FLUSH_SITES), 1, errno.EIO)
        try:
            self._flush(engine)
        finally:
            clear_fault()
        engine.let_go()
        mark = read_mark(self.ledger_folder)
        if mark is not None and self._cache is None:
            log = self.ledger_folder / f"{mark.log_id:08x}"
            _scribble(log.with_suffix(".log"), mark.log_end, self._chance)
            _scribble(log.with_suffix(".index"), mark.index_end, self._chance)

    def heal(self) -> None:
        """End all faults."""
        self.full = False
        self.next_fault = ""
        self.sync_s_min = self.unreadable_share = 0.0
        self.hanging = self.flush_hanging = 0
        self.go_on()

    def wipe(self) -> None:
        """Put an empty disk in its place."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self._cache is not None:
            self._cache.settle()

    # --- damage ------------------------------------------------------------------------

    def damage(self, *, misdirected: bool = False) -> str:
        """Flip a bit in a file that was synced; return where, or nothing if there is none.

        *misdirected*: instead let what was written to one place lie at another.
        """
        found = self._spot()
        if found is None:
            return ""
        told = self._damage(*found, misdirected=misdirected)
        if self._cache is not None:
            self._cache.note_sync(found[0])
        return told

    def _damage(self, path: Path, at: int, *, misdirected: bool) -> str:
        if not misdirected:
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << self._chance.randrange(8)]))
            return f"{path.name} at {at}"
        other, came_from = self._spot() or (path, at)
        with other.open("rb") as file:
            file.seek(came_from // 4096 * 4096)
            block = file.read(4096)
        with path.open("r+b") as file:
            file.seek(at // 4096 * 4096)
            same = file.read(len(block)) == block
            file.seek(at // 4096 * 4096)
            file.write(block)
        self._happened["misdirected writes"] += not same
        return f"{path.name} at {at}, with what belongs to {other.name} at {came_from}"

    def _spot(self) -> tuple[Path, int] | None:
        """Choose a place in a file that holds entries, but in the last group of the journal.

        Damage there looks like a group that a power cut tore (native/journal.h): nobody can
        tell that its entries were acknowledged.
        """
        logs = sorted(self.ledger_folder.glob("*.log"))
        journals = sorted(self.journal_folder.glob("*.journal"))
        if not logs + journals:
            return None
        path = self._chance.choice(logs + journals)
        end = path.stat().st_size
        if path.name == f"{self._group[0]:016x}.journal":
            end = min(end, self._group[1] // 4096 * 4096)
        if end <= 8192:
            return None
        return path, self._chance.randrange(4096, end)


def _scribble(path: Path, start: int, chance: random.Random) -> None:
    """Let some of the blocks from *start* on be what they were before they were written."""
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(start, size, 4096):
            if chance.random() < 0.5:
                file.seek(at)
                file.write(bytes(min(4096, size - at)))
        if size > start and chance.random() < 0.5:
            file.truncate(chance.randrange(start, size))


def _disk() -> Disk:
    machine = MACHINE.get()
    assert machine is not None
    machine.check_alive()
    disk = getattr(machine.owner, "disk", None)
    assert isinstance(disk, Disk)
    return disk


def config_of(
    name: str, disk: Disk, chance: random.Random, *, narrow: bool = False
) -> BookieConfig:
    """Return the settings of a bookie: everything small, so that all of it happens.

    *narrow*: the limits on clients too.
    """
    config = BookieConfig(
        bookie_id=name,
        advertised_address=f"{name}:1",
        data_folder=str(disk.folder),
        journal_folder=str(disk.journal_folder),
        ledger_folder=str(disk.ledger_folder),
        memtable_size=MEMTABLE_SIZE,  # the engine wants room for two of the largest entries
        journal_size_max=chance.choice([16, 64]) << 10,
        journal_spares=chance.choice([0, 2]),
        log_size_max=chance.choice([32, 128]) << 10,
        index_cache_size=chance.choice([0, 1 << 20]),
        checkpoint_interval_s=chance.choice([2.0, 5.0, 20.0]),
        gc_interval_s=chance.choice([5.0, 20.0]),
        disk_reserve=1 << 20,
        disk_check_s=2.0,
        peer_timeout_s=10.0,
        lost_after_s=chance.choice([2.0, 5.0, 15.0]),
        open_grace_s=chance.choice([1.0, 5.0]),
        lease_ttl_s=3.0,
        stop_timeout_s=5.0,
    )
    if not narrow:
        return config
    return msgspec.structs.replace(
        config,
        connections_max=30,
        connection_bytes_max=1 << 20,
        bytes_in_flight_max=4 << 20,
        peer_timeout_s=2.0,
        read_workers=1,
    )
