"""The placement check: ledgers whose copies are on fewer racks than the bookies allow.

The leader's passes over the ledgers bring records here, and changes of records afterwards. A ledger
violates the placement if a write set of some fragment spans fewer racks than the worst write set of
a new ledger of this shape would. That happens when racks are stated later, when a rack was
away while a ledger was written or repaired, or when a bookie moved to another rack.

A bookie that is down counts where it was last seen; one that was never seen violates nothing.
"""

from __future__ import annotations

from collections import Counter

from ledger_client.cluster.repair.survey import Census
from ledger_client.ledgers.racks import best_spread, spread_of
from metadata.records import LedgerRecord, RackReport

EXAMPLES_MAX = 20
KEPT_MAX = 100_000
"""Violating ledgers that are kept by id. The others are counted until the next pass."""


class RackCheck:
    """Counts the ledgers that violate the placement, in memory of a leader.

    Attributes:
        ledgers: number of ledgers that the last pass came by.
    """

    def __init__(self, census: Census) -> None:
        self._census = census
        self._rack_of: dict[str, str] = {}
        self._sizes: Counter[str] = Counter()
        self._best: dict[tuple[int, int], int] = {}
        self._met_unknown: set[str] = set()
        self._found: dict[int, int] = {}
        """violating fragments, by ledger"""
        self._more = self._more_fragments = self.ledgers = 0

    @property
    def stated(self) -> bool:
        """True if some bookie states a rack: without any, all ledgers are placed right."""
        return any(self._rack_of.values())

    def learn(self) -> bool:
        """Take over the racks of the census; return True if all ledgers must be checked again."""
        census, was_stated = self._census, self.stated
        racks = {name: bookie.rack for name, bookie in census.live.items()}
        moved = any(self._rack_of.get(name, rack) != rack for name, rack in racks.items())
        met = not self._met_unknown.isdisjoint(racks)
        self._rack_of.update(racks)
        self._sizes = Counter(
            bookie.rack
            for name, bookie in census.live.items()
            if census.stays(name) and not (bookie.read_only or bookie.limbo)
        )
        best = {shape: self._least(*shape) for shape in self._best}
        other, self._best = best != self._best, best
        return moved or met or other or self.stated != was_stated

    def begin(self) -> None:
        """Forget all ledgers, as a pass over all of them begins."""
        self._found.clear()
        self._met_unknown.clear()
        self._more = self._more_fragments = self.ledgers = 0

    def count(self, record: LedgerRecord) -> None:
        """Check a ledger that a pass came by."""
        self.ledgers += 1
        self.note(record)

    def note(self, record: LedgerRecord) -> None:
        """Check a ledger again, as it is new or was changed."""
        fragments = self._violations(record) if self.stated else 0
        if not fragments:
            self._found.pop(record.ledger_id, None)
        elif len(self._found) < KEPT_MAX or record.ledger_id in self._found:
            self._found[record.ledger_id] = fragments
        else:
            self._more += 1
            self._more_fragments += fragments

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger that was deleted."""
        self._found.pop(ledger_id, None)

    def report(self, now_ms: int) -> RackReport:
        """Return the counts as the row to publish."""
        return RackReport(
            now_ms,
            self.ledgers,
            len(self._found) + self._more,
            sum(self._found.values()) + self._more_fragments,
            sorted(self._found)[:EXAMPLES_MAX],
        )

    def _violations(self, record: LedgerRecord) -> int:
        shape = record.ensemble_size, record.write_quorum
        if shape not in self._best:
            self._best[shape] = self._least(*shape)
        best = self._best[shape]
        return sum(self._span(f.bookies, record.write_quorum) < best for f in record.fragments)

    def _span(self, bookies: list[str], write_quorum: int) -> int:
        self._met_unknown.update(bookie for bookie in bookies if bookie not in self._rack_of)
        return spread_of([self._rack_of.get(bookie) for bookie in bookies], write_quorum).least

    def _least(self, ensemble_size: int, write_quorum: int) -> int:
        return best_spread(self._sizes.values(), ensemble_size, write_quorum).least
