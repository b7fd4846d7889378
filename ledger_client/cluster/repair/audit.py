"""The leader's part in repair: detect lost bookies and missing copies, and mark ledgers.

    all ledgers once, then those that change ──► index: which ledgers name a bookie; racks
    bookie without a lease for lost_after_s ──┐
    bookie being decommissioned ──────────────┴──► every ledger that names it is marked; while
                                                   there is one, all are read again now and then
    once a day: every ledger is checked ─────────► ledgers that lack copies are marked

What happens every second costs as much as has changed, not as there are ledgers. A pass over all
ledgers rests as long as it works, and the daily check takes half a day if there are many.

Each mark is written in a transaction that checks the leader's term, so a deposed leader
changes nothing. Marking is idempotent: a new leader simply starts over.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from functools import partial
from itertools import islice

import msgspec
import trio

from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.repair.ledger_index import LedgerIndex
from ledger_client.cluster.repair.marks import add_mark, size_on
from ledger_client.cluster.repair.rack_check import RackCheck
from ledger_client.cluster.repair.survey import Census, Survey
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.records import Reason, new_mark
from metadata.errors import BadRecord, LeaseLost, MetadataError, VersionConflict
from metadata.leadership import Term
from metadata.ledger_changes import LedgerChanges
from metadata.listings import ledger_records, ledger_values, list_marked
from metadata.records import (
    RACKS,
    LedgerRecord,
    LedgerState,
    RackReport,
    UnderReplicated,
    decode_ledger,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import ABSENT, Delete, MetadataStore, Put, together

MARKS_S = 5.0
"""How often draining marks and cookies are read. What a bookie itself says is read each time."""
RESCAN_S = 60.0
"""How often the ledgers of a bookie that is lost or draining are looked at again."""
RESCAN_REST_RATIO = 20
"""And a pause lasts at least this many times as long as that took."""
TOGETHER = 100
"""Marks that one transaction adds."""
READS_MAX = 64
"""Ledgers that are read at once."""
PASS_COUNT = 100
"""A pass over all ledgers rests after this many, for as long as they took."""
REPASS_S = 10.0
"""Least time between two passes because racks changed, and ten times as long as the last took."""
FIRST_CHECK_PART = 1 / 24
"""A new leader first checks every ledger after this fraction of the interval."""
CHECK_PART = 0.5
"""The check of every ledger may take this fraction of the interval, so that it disturbs nobody."""
CHECK_PAUSE_S = 0.05
"""The longest pause between two ledgers of it."""
_log = logging.getLogger(__name__)


class Auditor:
    """Marks ledgers for as long as its bookie leads."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        options: RepairOptions,
        *,
        census: Census | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._census = census or Census(store, lost_after_s=options.lost_after_s)
        self._survey = Survey(ledgers, self._census, chance or random.Random())
        self._unreadable: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self._gone: dict[str, Reason] = {}
        self._changes = LedgerChanges(self._store)
        self._changed: set[int] = set()
        self._index = LedgerIndex()
        self._racks = RackCheck(self._census)
        self._met = trio.Event()  # once the bookies were seen
        self._known = trio.Event()  # once every ledger was seen
        self._gone_at = float("-inf")  # when a bookie was given up last
        self._passed_at = float("-inf")
        self._pass_s = 0.0
        self._published: RackReport | None = RackReport(1)  # an earlier leader's, unlike any
        self._must_pass = True

    async def lead(self, term: Term) -> None:
        """Mark ledgers until cancelled, waiting out outages of the metadata store.

        Raises:
            LeaseLost: the term is over. It may come inside an exception group.
        """
        self._clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_bookies, term)
            nursery.start_soon(self._follow_ledgers, term)
            nursery.start_soon(self._check_ledgers, term)

    # --- bookies ----------------------------------------------------------------------------

    async def _watch_bookies(self, term: Term) -> None:
        marked: dict[str, Reason] = {}
        rescan_at = trio.current_time() + RESCAN_S
        while True:
            try:
                await self._census.refresh(marks_age_max_s=MARKS_S)
                self._met.set()
                self._gone = self._leaving()
                due = trio.current_time() >= rescan_at
                fresh = {b: why for b, why in self._gone.items() if marked.get(b) != why}
                if fresh:
                    self._gone_at = trio.current_time()
                if fresh or (self._gone and due):
                    began_at = trio.current_time()
                    await self._mark_all(term, self._gone if due else fresh)
                    took_s = trio.current_time() - began_at
                    rescan_at = trio.current_time() + max(RESCAN_S, took_s * RESCAN_REST_RATIO)
                marked = self._gone
            except LeaseLost:
                raise
            except (MetadataError, LedgerError) as failure:
                _log.warning("audit of bookies interrupted, trying again: %s", failure)
            await trio.sleep(self._options.poll_s)

    def _leaving(self) -> dict[str, Reason]:
        """Return draining and lost bookies, each with the reason for its marks."""
        gone: dict[str, Reason] = dict.fromkeys(sorted(self._census.all_lost()), "bookie lost")
        return gone | dict.fromkeys(sorted(self._census.draining), "draining")

    async def _mark_all(self, term: Term, gone: dict[str, Reason]) -> None:
        """Mark every ledger that names a bookie in *gone*."""
        _log.warning("marking the ledgers of %s for repair", ", ".join(sorted(gone)))
        await self._known.wait()
        marked = await list_marked(self._store)
        fresh: list[UnderReplicated] = []
        async for values in ledger_values(self._store, self._index.of(gone)):
            for ledger_id, value in values.items():
                record = self._decoded(ledger_id, value)
                mark = None if record is None else _mark_of(record, gone)
                if mark is not None and ledger_id in marked:
                    await add_mark(self._store, mark, term.check)
                elif mark is not None:
                    fresh.append(mark)
            while len(fresh) >= TOGETHER:
                await self._add_marks(term, fresh[:TOGETHER])
                del fresh[:TOGETHER]
        await self._add_marks(term, fresh)

    async def _add_marks(self, term: Term, marks: Sequence[UnderReplicated]) -> None:
        """Add marks of ledgers that had none, in one transaction."""
        puts = [Put(underreplicated_key(m.ledger_id), encode_record(m), ABSENT) for m in marks]
        try:
            await self._store.transact([term.check, *puts])
        except VersionConflict:  # some were marked meanwhile
            for mark in marks:
                await add_mark(self._store, mark, term.check)

    async def _mark(self, term: Term, record: LedgerRecord) -> None:
        """Mark *record* if it names a bookie that is lost or draining."""
        mark = _mark_of(record, self._gone) if self._gone else None
        if mark is not None:
            await add_mark(self._store, mark, term.check)

    async def _read(self, ledger_id: int) -> LedgerRecord | None:
        """Return a ledger's record; `None` if it is gone, or unreadable, which is logged once."""
        found = await self._store.get(ledger_key(ledger_id))
        return self._decoded(ledger_id, None if found is None else found.value)

    def _decoded(self, ledger_id: int, value: bytes | None) -> LedgerRecord | None:
        key = ledger_key(ledger_id)
        if value is None:
            return None
        try:
            return decode_ledger(key, value)
        except BadRecord as wrong:
            if key not in self._unreadable:
                self._unreadable.add(key)
                _log.warning("passed over: %s", wrong)
            return None

    # --- which ledgers there are ------------------------------------------------------------

    async def _follow_ledgers(self, term: Term) -> None:
        """Keep the index and the check of racks up to date, and mark what names a lost bookie."""
        await self._met.wait()
        while True:
            try:
                await self._take_changes()
                if self._must_pass or self._pass_is_due():
                    await self._pass(term)
                await self._look_again(term)
                await self._publish_racks(term)
            except LeaseLost:
                raise
            except (MetadataError, LedgerError) as failure:
                _log.warning("audit of ledgers interrupted, trying again: %s", failure)
            await trio.sleep(self._options.poll_s)

    async def _take_changes(self) -> None:
        changed = await self._changes.take()
        if changed is None:
            self._must_pass = True
        else:
            self._changed |= changed

    def _pass_is_due(self) -> bool:
        since_s = trio.current_time() - self._passed_at
        if since_s >= self._options.audit_interval_s:
            return True
        # BookKeeper's clients change ledgers without a trace in the change log.
        waited_s = min(since_s, trio.current_time() - self._gone_at)
        if self._gone and waited_s >= max(RESCAN_S, self._pass_s * RESCAN_REST_RATIO):
            return True
        again = since_s >= max(REPASS_S, 10 * self._pass_s)
        return again and self._racks.learn() and self._racks.stated

    async def _pass(self, term: Term) -> None:
        """Read every ledger into a new index. Changes are taken meanwhile: their log is short."""
        began_at = rested_at = trio.current_time()
        self._must_pass = False
        index, count = LedgerIndex(), 0
        self._racks.learn()
        self._racks.begin()
        try:
            async for record in ledger_records(self._store, unreadable=self._unreadable):
                index.note(record)
                self._racks.count(record)
                await self._mark(term, record)
                count += 1
                if count % PASS_COUNT == 0:
                    await self._take_changes()
                    await trio.sleep(trio.current_time() - rested_at)
                    rested_at = trio.current_time()
        except MetadataError:
            self._must_pass = True
            raise
        self._index = index
        self._passed_at = trio.current_time()
        self._pass_s = self._passed_at - began_at
        if not self._must_pass:
            await self._look_again(term)
            self._known.set()

    async def _look_again(self, term: Term) -> None:
        """Read the ledgers that changed."""
        rest = iter(sorted(self._changed))
        while ledger_ids := list(islice(rest, READS_MAX)):
            records = await together([partial(self._read, each) for each in ledger_ids])
            for ledger_id, record in zip(ledger_ids, records, strict=True):
                if record is None:
                    self._racks.drop(ledger_id)
                else:
                    self._index.note(record)
                    self._racks.note(record)
                    await self._mark(term, record)
                self._changed.discard(ledger_id)

    async def _publish_racks(self, term: Term) -> None:
        """Store the count of ledgers on too few racks, if it changed, for operators."""
        if not self._known.is_set():
            return
        counted = self._racks.report(0) if self._racks.stated else None
        if counted == self._published:
            return
        if counted is None:
            await self._store.transact([term.check, Delete(RACKS)])
        else:
            dated = self._racks.report(await self._store.now_ms())
            await self._store.transact([term.check, Put(RACKS, encode_record(dated))])
        self._published = counted

    # --- ledgers ----------------------------------------------------------------------------

    async def _check_ledgers(self, term: Term) -> None:
        interval_s = self._options.audit_interval_s
        await trio.sleep(interval_s * FIRST_CHECK_PART)
        while True:
            await self._check_all(term)
            await trio.sleep(interval_s)

    async def _check_all(self, term: Term) -> None:
        """Compare every ledger with what its bookies hold, and mark those that lack copies."""
        await self._known.wait()
        spread_s = self._options.audit_interval_s * CHECK_PART
        pause_s = min(spread_s / max(self._racks.ledgers, 1), CHECK_PAUSE_S)
        try:
            async for record in ledger_records(self._store, unreadable=self._unreadable):
                if not await self._is_whole(record):
                    mark = new_mark(record.ledger_id, "check", [], [])
                    await add_mark(self._store, mark, term.check)
                await trio.sleep(pause_s)
        except LeaseLost:
            raise
        except (MetadataError, LedgerError) as failure:
            _log.warning("check of all ledgers ended early: %s", failure)

    async def _is_whole(self, record: LedgerRecord) -> bool:
        if record.state is LedgerState.IN_RECOVERY:
            return False  # its recoverer may be dead; a worker finishes the job if so
        plan = (await self._survey.look(record)).plan
        return not (plan.copies or plan.blocked) and plan.fragments == record.fragments


def _mark_of(record: LedgerRecord, gone: dict[str, Reason]) -> UnderReplicated | None:
    """Return the mark of a ledger that names a bookie in *gone*, or `None`."""
    hit = {b for f in record.fragments for b in f.bookies if b in gone}
    if not hit:
        return None
    mark = new_mark(record.ledger_id, gone[min(hit)], hit, [])
    return msgspec.structs.replace(mark, size=size_on(record, hit))
