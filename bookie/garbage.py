"""Garbage collection: frees the space of deleted ledgers.

    local ledgers, listed first
      └► those whose turn it is (ledger_walk.py)
           └► metadata: without a record?    ─► forget them
                        another incarnation? ─► forget them (incarnations.py)
                        copies elsewhere?    ─► surplus.py
    entry logs without a live byte ─► delete
    closed logs with few live bytes ─► copy what lives to a new log, delete the old one

The order matters: a ledger created after the local listing is not in it, so its missing record
does no harm. In doubt nothing is deleted: if the store does not answer, or does not have this
bookie (another cluster's store, or an emptied one), a collection only frees space of ledgers
that earlier ones forgot.

Any peer may ask for collections. So they keep a distance, those who wait share one, and none
closes an open log of less than ROLL_SIZE_MIN.

`bookie gc` frees space on bookies; `topic compact` and `purge` are different operations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import trio

from bookie.compaction import Compactor
from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.foreign import ForeignLedgers
from bookie.ledger_walk import LedgerWalk
from bookie.storage import Storage
from bookie.surplus import SurplusLedgers
from metadata.calls import GarbageReport
from metadata.errors import BadRecord, MetadataError
from metadata.listings import ledger_values
from metadata.records import cookie_key, decode_ledger, ledger_key
from metadata.store import MetadataStore
from native.engine import LedgerState
from native.errors import Absent

_log = logging.getLogger(__name__)

PAUSE_S = 1.0
ROLL_SIZE_MIN = 4 << 20
_PAGE = 1000
_COUNTS = ("ledgers_deleted", "ledgers_moved_away", "logs_deleted", "logs_compacted")


class Collector:
    """Collects the garbage of one bookie, one collection at a time.

    Attributes:
        runs: collections by "ok" and "failed", when the metadata could not be asked.
        total: sum of all their reports.
        pause_s: time from the end of a collection to the next one, at least.
    """

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        config: BookieConfig,
        disk: DiskGuard,
        *,
        bookie_id: str,
    ) -> None:
        self._storage = storage
        self._store = store
        self._config = config
        self._bookie_id = bookie_id
        self._foreign = ForeignLedgers(Path(config.ledger_folder))
        self._surplus = SurplusLedgers(storage.engine, store, bookie_id)
        self._compactor = Compactor(storage.engine.store, config, disk)
        self._one_at_a_time = trio.Lock()
        self._walk = LedgerWalk(store)
        self._begun = 0
        self._last: dict[bool | None, tuple[int, GarbageReport]] = {}
        """by *major*: the number of the last one among all that begun, and its report"""
        self._resting_until = -math.inf
        self.pause_s = PAUSE_S
        self.runs = {"ok": 0, "failed": 0}
        self.total = GarbageReport()

    async def run(self) -> NoReturn:
        """Collect every gc_interval_s until cancelled; never if that is 0."""
        interval_s = self._config.gc_interval_s
        while True:
            await self._walk.pause(interval_s if interval_s > 0 else float("inf"))
            await self.collect()

    async def collect(self, *, major: bool | None = None) -> GarbageReport:
        """Collect once, or wait for a collection of the same kind that begins after this call.

        Args:
            major: look at all ledgers and compact now, with the threshold of major or minor
                compaction; the memtable is flushed first, and the open log closed unless it is
                small, so that all other space counts. None looks at those whose turn it is
                (ledger_walk.py), and runs the compaction that is due.

        Returns:
            A report. If the store does not answer or a log is damaged, that is logged and the
            rest is done.
        """
        begun = self._begun
        async with self._one_at_a_time:
            number, report = self._last.get(major, (0, GarbageReport()))
            if number > begun:
                return report
            await trio.sleep_until(self._resting_until)
            self._begun = number = self._begun + 1
            try:
                report = await self._collect(major)
            finally:
                self._resting_until = trio.current_time() + self.pause_s
            self._last[major] = number, report
            return report

    async def _collect(self, major: bool | None) -> GarbageReport:
        deleted, moved = await self._delete_ledgers(every=major is not None)
        if major is not None:
            await self._storage.checkpoint()
            if self._open_size() >= ROLL_SIZE_MIN:
                await self._storage.roll_log()
        freed = await self._compactor.free(self._compactor.threshold(major))
        report = msgspec.structs.replace(freed, ledgers_deleted=deleted, ledgers_moved_away=moved)
        self._count(report)
        return report

    def _open_size(self) -> int:
        """Return the bytes of the log that flushes go to, 0 if there is none."""
        return next((log.size for log in reversed(self._compactor.logs()) if log.open), 0)

    def _count(self, report: GarbageReport) -> None:
        counts = ((name, getattr(self.total, name) + getattr(report, name)) for name in _COUNTS)
        self.total = msgspec.structs.replace(
            self.total,
            freed_size=self.total.freed_size + report.freed_size,
            copied_size=self.total.copied_size + report.copied_size,
            **dict(counts),
        )

    async def _delete_ledgers(self, *, every: bool) -> tuple[int, int]:
        """Forget unneeded ledgers; return the numbers of deleted and of moved ones."""
        deleted = moved = 0
        stays: list[int] = []
        try:
            # The store's time, so that a host's clock that is set ahead ages no tombstone.
            self._storage.engine.forget_tombstones(await self._store.now_ms())
            await self._walk.begin()
            absent, elsewhere = await self._survey(every=every)
            for ledger_id in sorted(absent):
                deleted += await self._delete_absent(ledger_id, absent[ledger_id])
            for ledger_id in sorted(elsewhere):
                if await self._surplus.delete(ledger_id):
                    moved += 1
                else:
                    stays.append(ledger_id)
            self._walk.done(stays)
        except (MetadataError, msgspec.MsgspecError) as error:
            self.runs["failed"] += 1
            _log.warning("no further ledger is deleted: %s", error)
        else:
            self.runs["ok"] += 1
        if deleted:
            _log.info("%d ledgers are gone from the metadata and were deleted here", deleted)
        return deleted, moved

    async def _delete_absent(self, ledger_id: int, incarnation: int) -> bool:
        now_ms = await self._store.now_ms()
        # A last check, because a listing of many pages is not one moment.
        found = await self._store.get(ledger_key(ledger_id))
        if found is not None and not _is_another(found.value, incarnation):
            return False
        try:
            self._storage.engine.delete_ledger(ledger_id, now_ms, incarnation)
        except Absent:  # its id was reused meanwhile
            return False
        return True

    def _local_ledgers(self) -> Iterator[LedgerState]:
        after = -1
        while states := self._storage.engine.ledgers(after, _PAGE):
            yield from states
            after = states[-1].ledger_id

    async def _survey(self, *, every: bool) -> tuple[dict[int, int], set[int]]:
        """Return local ledgers without a record, and some with all copies elsewhere.

        The first come with their incarnations; a reused id counts as without a record. Unless it
        is to be *every* ledger, they are among those whose turn it is.
        """
        local = list(self._local_ledgers())
        if not local:
            return {}, set()
        if await self._store.get(cookie_key(self._bookie_id)) is None:
            _log.warning("the metadata store does not know this bookie: no ledger is deleted")
            return {}, set()
        incarnations = {state.ledger_id: state.incarnation for state in local}
        chosen = self._walk.choose(incarnations, every=every, foreign=await self._foreign.known())
        absent, replaced = set(chosen), set[int]()
        # A ledger without entries takes no space, and keeps its fence.
        filled = {state.ledger_id for state in local if state.last_entry >= 0}
        elsewhere = set[int]()
        async for values in ledger_values(self._store, chosen):
            known = {each: value for each, value in values.items() if value is not None}
            replaced |= {
                each
                for each in known.keys() & absent
                if _is_another(known[each], incarnations[each])
            }
            absent -= known.keys()
            elsewhere |= {
                each for each in known.keys() & filled if self._surplus.is_surplus(known[each])
            }
        if absent and self._config.gc_foreign_ledgers == "keep":
            absent -= await self._foreign.among(absent, self._store)
        gone = absent | replaced
        return {each: incarnations[each] for each in gone}, elsewhere - replaced


def _is_another(record: bytes, incarnation: int) -> bool:
    """Return True if *record* is certainly of another ledger than the local one."""
    try:
        return decode_ledger("the record", record).is_another(incarnation)
    except BadRecord:
        return False
