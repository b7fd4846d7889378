"""Which copies the faults of a simulation have destroyed, and which they may destroy yet.

An acknowledged entry is on as many bookies as its ledger's ack quorum, and outlives the loss
of all but one. Ledgers of one cluster differ: what a topic keeps for itself may have fewer
copies than the topic's messages. So the question is asked of every ledger when a copy is to
be lost, not when the faults are planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from metadata.records import LedgerRecord


class LostCopies:
    """The bookies that lost their copy of a ledger, by ledger."""

    def __init__(self) -> None:
        self._lost: defaultdict[int, set[str]] = defaultdict(set)

    def lose(self, bookie: str, ledgers: Iterable[LedgerRecord]) -> int | None:
        """Take note that *bookie* loses what it has of *ledgers*, unless a ledger would be lost.

        A bookie whose copy was made anew in its place still counts as one that lost it.

        Returns:
            A ledger that might be lost then, and nothing is noted; or None.
        """
        held = [record for record in ledgers if _holds(bookie, record)]
        for record in held:
            if not self._bears(record, bookie):
                return record.ledger_id
        for record in held:
            self._lost[record.ledger_id].add(bookie)
        return None

    def _bears(self, record: LedgerRecord, bookie: str) -> bool:
        lost = self._lost[record.ledger_id] | {bookie}
        fragments = (fragment for fragment in record.fragments if bookie in fragment.bookies)
        return all(len(lost.intersection(f.bookies)) < record.ack_quorum for f in fragments)


def _holds(bookie: str, record: LedgerRecord) -> bool:
    return any(bookie in fragment.bookies for fragment in record.fragments)
