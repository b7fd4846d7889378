"""Detects a disk that hangs.

A disk that fails ends the bookie at once. A disk that hangs raises no error: the thread that writes
or syncs never returns, while the event loop still runs. So the loop watches the progress of
journal and flush. While there is work without progress, the bookie is

    2 s    not ready: /ready says 503, and the registration keeps new ledgers away
    10 s   read-only: it refuses adds, those of a recovery too; reads continue
    60 s   ended: its journal has all acknowledged entries, and a supervisor restarts it

and it recovers by itself from the first two. A slow disk makes progress (one step for up to 4 MiB,
one for each sync), even with a long queue, and has no consequence. A hanging flush has the same
three consequences, counted from when the memtable takes no more adds.

While the disk makes progress, peers whose adds wait get a PULSE (native/frame.h). A peer that
gets neither a pulse nor an acknowledgement turns to another bookie within two seconds.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import NoReturn

import trio

from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.server import Server
from bookie.storage import Storage
from metadata.stall_timer import StallTimer

_log = logging.getLogger(__name__)

TICK_S = 0.25
NOT_READY_S = 2.0
READ_ONLY_S = 10.0
END_S = 60.0


def raise_stall(failure: OSError) -> None:
    """Fail like any other failure of the disk.

    The exit waits for worker threads, and one may hang, so a program should end its process.
    """
    raise failure


class StallWatch:
    """Watches the journal and the flush of one bookie.

    Attributes:
        lasted_s: seconds without progress, of the worse of the two.
    """

    def __init__(
        self,
        storage: Storage,
        server: Server,
        disk: DiskGuard,
        config: BookieConfig,
        *,
        give_up: Callable[[OSError], None] = raise_stall,
    ) -> None:
        """*give_up* is called after END_S, with the failure to report."""
        self._storage = storage
        self._server = server
        self._disk = disk
        self._give_up = give_up
        self._journal = StallTimer(TICK_S)
        self._flush = StallTimer(TICK_S)
        self._journal_name = f"the journal in {config.journal_folder}"
        self._flush_name = f"the flush to {config.ledger_folder}"
        self._was_stalled = False
        self.lasted_s = 0.0

    @property
    def is_stalled(self) -> bool:
        """True while the bookie is not ready because its disk hangs."""
        return self.lasted_s >= NOT_READY_S

    async def run(self) -> NoReturn:
        """Look at the disk's progress until cancelled.

        Raises:
            OSError: it made none for END_S, and *give_up* returned.
        """
        while True:
            self.look()
            await trio.sleep(TICK_S)

    def look(self) -> None:
        """Check once and act on the result; send pulses if the disk makes progress."""
        now, seen = trio.current_time(), self._storage.progress()
        journal_s = self._journal.look(now, works=seen.journal_work, steps=seen.journal_steps)
        flush_s = self._flush.look(now, works=seen.flush_work, steps=seen.flush_steps)
        self._note(max(journal_s, flush_s))
        if journal_s == 0:
            self._server.pulse(flushes=flush_s == 0)

    def _note(self, lasted_s: float) -> None:
        before_s, self.lasted_s = self.lasted_s, lasted_s
        if self.is_stalled != self._was_stalled:
            self._was_stalled = self.is_stalled
            if self.is_stalled:
                _log.warning("%s made no progress for %g s; not ready", self._name, lasted_s)
            else:
                _log.warning("the disk moves again after %g s", before_s)
            self._disk.changed.set()
        self._disk.refuse_stalled(lasted_s >= READ_ONLY_S)
        if lasted_s >= END_S:
            failure = OSError(
                errno.ETIMEDOUT,
                f"{self._name} made no progress for {END_S:g} s; the bookie ends, nothing unsynced "
                "was acknowledged. Look at the disk (dmesg, SMART) before you start it again",
            )
            self._give_up(failure)
            raise failure

    @property
    def _name(self) -> str:
        is_journal = self._journal.lasted_s >= self._flush.lasted_s
        return self._journal_name if is_journal else self._flush_name
