"""Storage: opens and closes the engine, and takes its checkpoints.

    open     lastMark ─► engine replays the journal from there
    run      what was replayed ┐
             a half is sealed ─┤
             the timer ────────┼─► flush: log, index, table ─► lastMark ─► trim journal
             FlushNow ─────────┘        (worker thread, one at a time)
    stop     one more checkpoint, so that the next start replays nothing

The mark is written after the flush is synced and before the journal is trimmed. After a crash in
between, the next start only replays more.

The worker thread is none of trio's default ones. Look-ups of names that were given up hold those
until the resolver gives up too, and a flush without a thread looks like a disk that hangs.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from bookie.config import BookieConfig
from bookie.damage import DamageLog
from bookie.durable import make_folder
from bookie.errors import BookieError, unreadable
from bookie.events import Events
from bookie.limbo import Limbo, enter_limbo
from bookie.mark import read_mark, settle_mark, write_mark
from native.engine import Engine, Recovery
from native.mark import Mark
from native.progress import Progress

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# Journal files kept although entry logs have their entries, to investigate a loss.
JOURNALS_KEPT = 1


class Storage:
    """The engine of one bookie, with its events and checkpoints.

    Attributes:
        engine: the engine; closed by stop().
        events: its events.
        recovery: the result of the replay.
        limbo: whether "no such entry" is answered as an I/O error.
        damage: the damaged places that were found.
        mark: the checkpoint on disk; None only while a new bookie is opened.
        checkpoints: how many were taken since opening.
        on_flushed: called after each flush.
    """

    def __init__(
        self,
        config: BookieConfig,
        engine: Engine,
        recovery: Recovery,
        mark: Mark | None,
        event_fd: int,
    ) -> None:
        self._config = config
        self._ledger_folder = Path(config.ledger_folder)
        self._event_fd = event_fd
        self._flushing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._flushed_at = trio.current_time()
        self._adds = 0
        self._failed = False
        self._steps = 0  # finished writes of the mark, and finished trims of the journal
        self.engine = engine
        self.events = Events(engine, event_fd)
        self.events.on_failed = self._fail
        self.recovery = recovery
        self.limbo = Limbo(self._ledger_folder, engine)
        self.damage = DamageLog(engine.store)
        self.mark = mark
        self.checkpoints = 0
        self.on_flushed: Callable[[], None] = lambda: None

    @property
    def own_folders(self) -> tuple[Path, Path]:
        """Folder of the journal, and of entry logs and indexes."""
        return Path(self._config.journal_folder), self._ledger_folder

    @property
    def folders(self) -> list[Path]:
        """Folders with files of this bookie."""
        own = [*self.own_folders]
        data = Path(self._config.data_folder)
        return [data, *own] if self._config.data_folder and data.is_dir() else own

    def progress(self) -> Progress:
        """Return the progress of journal and flush; mark and trim belong to the flush."""
        seen = self.engine.progress()
        return Progress(
            journal_work=seen.journal_work,
            journal_steps=seen.journal_steps,
            flush_work=seen.flush_work or self._flushing.locked(),
            flush_steps=seen.flush_steps + self._steps,
        )

    @classmethod
    async def open(cls, config: BookieConfig, *, threaded: bool = True) -> Storage:
        """Open the folders of *config* and replay the journal.

        A new bookie takes its first checkpoint; run() flushes replayed entries.

        Raises:
            BookieError: the mark is damaged.
            BookieError: the folders hold data and no mark, or lack the journal file that the
                mark names.
            BookieError: the disk cannot read a file.
            OSError: the disk failed.
        """
        event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            opened = await trio.to_thread.run_sync(_open, config, event_fd, threaded)
        except BaseException:
            os.close(event_fd)
            raise
        storage = cls(config, *opened, event_fd)
        try:
            await storage._begin()
        except BaseException:
            storage._failed = True
            with trio.CancelScope(shield=True):
                await storage.stop()
            raise
        return storage

    async def _begin(self) -> None:
        await self._in_thread(self._note_recovery)
        if self.mark is None:
            # Entries without a mark would make the next start fail.
            await self.checkpoint()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish events and flush until cancelled.

        Raises:
            OSError: journal or flush failed. The entries that failed are not acknowledged.
                Let it end the process: a bookie that cannot sync must not look alive.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.events.run)
            nursery.start_soon(self._flush_when_sealed)
            if self.recovery.replayed_records:
                nursery.start_soon(self.checkpoint)  # while serving, so the next start is fast
            if self._config.checkpoint_interval_s > 0:
                nursery.start_soon(self._checkpoint_regularly)
            task_status.started()

    async def checkpoint(self) -> bool:
        """Flush everything stored so far and move the mark; False if there was nothing.

        Raises:
            OSError: the disk failed; the mark on disk stays where it was.
        """
        return await self._flush(self._checkpoint)

    async def roll_log(self) -> None:
        """Close the open entry log, so that compaction may take it."""
        await self._flush(self._roll_log)

    async def stop(self) -> None:
        """Take a last checkpoint unless the disk failed, and close the engine.

        What cannot be flushed within stop_timeout_s stays in the journal, for the next
        start to replay; the engine is then left to the end of the process.
        """
        flushed = True
        try:
            if not self._failed:
                with trio.move_on_after(self._config.stop_timeout_s) as patience:
                    await trio.to_thread.run_sync(
                        self._checkpoint, limiter=self._thread, abandon_on_cancel=True
                    )
                flushed = not patience.cancelled_caught
        finally:
            if flushed:
                with trio.CancelScope(shield=True):
                    await self._in_thread(self.engine.close)
                os.close(self._event_fd)
            else:
                _log.warning("the last flush takes too long; the next start replays the journal")

    def _fail(self, cause: OSError) -> None:
        self._failed = True
        raise _failure(cause, f"the journal in {self._config.journal_folder}") from cause

    async def _flush_when_sealed(self) -> None:
        while True:
            await self.events.sealed.wait()
            await self._flush(self._flush_sealed)

    async def _checkpoint_regularly(self) -> None:
        interval_s = self._config.checkpoint_interval_s
        while True:
            await trio.sleep_until(self._flushed_at + interval_s)
            await self.checkpoint()
            # Without new entries there was no flush; check again in an interval.
            self._flushed_at = trio.current_time()
            self._rest_when_idle()

    def _rest_when_idle(self) -> None:
        adds = self.engine.stats().adds
        if adds == self._adds:
            self.engine.release_memory()
        self._adds = adds

    async def _flush(self, work: Callable[[], bool]) -> bool:
        async with self._flushing:
            try:
                flushed = await self._in_thread(work)
            except OSError as cause:
                self._failed = True
                raise _failure(cause, f"the flush to {self._ledger_folder}") from cause
            if flushed:
                self._flushed_at = trio.current_time()
                self.on_flushed()
            return flushed

    def _checkpoint(self) -> bool:
        # A half that is already sealed comes first. If the other one fills up and is sealed
        # meanwhile, it contains all entries that this checkpoint must flush.
        flushed = self._flush_sealed()
        self.engine.seal()
        return self._flush_sealed() or flushed

    def _flush_sealed(self) -> bool:
        mark = self.engine.flush()
        if mark is None:
            return False
        self._keep(mark)
        return True

    def _roll_log(self) -> bool:
        assert self.mark is not None  # opening wrote one
        self._keep(self.engine.store.roll(self.mark))
        return True

    def _keep(self, mark: Mark) -> None:
        write_mark(self._ledger_folder, mark, self.mark)
        self.mark = mark
        self.checkpoints += 1
        self._steps += 1
        self.engine.trim(mark, JOURNALS_KEPT)
        self._steps += 1

    def _note_recovery(self) -> None:
        found = self.recovery
        _log.info(
            "replayed %d records, %d bytes, of %d journal files",
            found.replayed_records,
            found.replayed_bytes,
            found.replayed_files,
        )
        damaged = self.damage.fetch()
        # If an index had to be built from a damaged log, entries may be missing in it.
        if found.limbo or any(place.file.endswith(".log") for place in damaged):
            enter_limbo(self._ledger_folder, damaged)
        self.limbo.resume()

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await trio.to_thread.run_sync(work, limiter=self._thread)


def _open(
    config: BookieConfig, event_fd: int, threaded: bool
) -> tuple[Engine, Recovery, Mark | None]:
    journal_folder, ledger_folder = Path(config.journal_folder), Path(config.ledger_folder)
    make_folder(journal_folder)
    make_folder(ledger_folder)
    settle_mark(ledger_folder)
    mark = read_mark(ledger_folder)
    try:
        engine, recovery = Engine.open(
            journal_folder=journal_folder,
            ledger_folder=ledger_folder,
            mark=mark,
            memtable_size=config.memtable_size,
            journal_size_max=config.journal_size_max,
            journal_spares=config.journal_spares,
            log_size_max=config.log_size_max,
            index_cache_size=config.index_cache_size,
            event_fd=event_fd,
            threaded=threaded,
        )
    except FileExistsError as cause:
        if mark is not None:
            raise
        raise BookieError(
            f"{ledger_folder / 'lastMark'}: missing, though there are journals or entry logs; "
            "restore it or run `bookie rebuild-index` on this bookie"
        ) from cause
    except FileNotFoundError as cause:
        journal_id = mark.journal_id if mark else 0
        raise BookieError(
            f"{journal_folder}/{journal_id:016x}.journal: missing, though lastMark names it; "
            "restore it or run `bookie rebuild-index` on this bookie"
        ) from cause
    except OSError as cause:
        if told := unreadable(cause):
            raise told from cause
        raise
    return engine, recovery, mark


def _failure(cause: OSError, what: str) -> OSError:
    reason = os.strerror(cause.errno) if cause.errno else str(cause)
    return OSError(
        cause.errno or errno.EIO,
        f"{what} failed ({reason}); the bookie stops, nothing unsynced was acknowledged",
    )
