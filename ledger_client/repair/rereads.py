"""Marked entries, read once more on the bookie that reported them.

A disk that could not read an entry may read it the next time, and a report of damage may
span sound entries. Where no other bookie has a copy, nothing else ends such a mark.

Only a copy in an entry log counts, with a sound digest. What a bookie has in its memtable
says nothing about its disk, and may not even be synced. An entry that the bookie denies, or
does not answer for, stays damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ledger_client.bookies import Bookies
from ledger_client.errors import EntryLost, LedgerError, NoSuchEntry
from ledger_client.options import Options
from ledger_client.questions import BatchQuestion
from ledger_client.repair.copier import CopySource
from ledger_client.repair.runs import Runs, without
from ledger_client.repair.throttle import Throttle
from ledger_client.replicas import ReplicaRead
from ledger_client.source import BATCH_COUNT_MAX
from metadata.records import DamagedRun, LedgerRecord

FAILURES_MAX = 1000
"""Reads that fail on one bookie in one attempt; after that the rest stays damaged."""


class Rereads:
    """Reads marked entries for one worker, at the worker's rate."""

    def __init__(self, bookies: Bookies, throttle: Throttle, options: Options) -> None:
        self._bookies = bookies
        self._throttle = throttle
        self._options = options

    async def still_damaged(
        self, record: LedgerRecord, damaged: Sequence[DamagedRun]
    ) -> list[DamagedRun]:
        """Return *damaged* without the entries whose own copy is sound on disk."""
        failures: Counter[str] = Counter()
        left: list[DamagedRun] = []
        for run in damaged:
            sound = await self._sound(record, run, failures)
            rest = without([(run.first_entry, run.last_entry)], sound)
            left += [DamagedRun(run.bookie_id, first, last) for first, last in rest]
        return left

    async def _sound(self, record: LedgerRecord, run: DamagedRun, failures: Counter[str]) -> Runs:
        name = run.bookie_id
        source = CopySource(
            record, {name: None}, target="", bookies=self._bookies, options=self._options
        )
        sound: Runs = []
        first = run.first_entry
        while first <= run.last_entry and failures[name] < FAILURES_MAX:
            count = min(run.last_entry - first + 1, BATCH_COUNT_MAX)
            question = BatchQuestion(source.name, first, count, source.digest, from_log=True)
            try:
                batch = await ReplicaRead(source, question).result()
            except (EntryLost, NoSuchEntry):
                failures[name] += 1
                first += 1
            except LedgerError:
                failures[name] = FAILURES_MAX  # it does not answer, or has another ledger
            else:
                sound.append((first, batch.last_entry))
                first = batch.last_entry + 1
                await self._throttle.take(batch.size)
        return sound
