"""The ledgers that name a bookie, in memory: found at once when the bookie is lost.

    bookie ──► base     ids of a whole pass over the ledgers, sorted, 8 bytes each
           └─► recent   ids of records changed since; merged into the base now and then

It may name ledgers that are gone or have moved, and names all others: the record decides. So a
ledger costs 8 bytes for each bookie that it names, and a change costs no search for the past.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from metadata.records import LedgerRecord

RECENT_MAX = 1000
"""A bookie's recent ids are merged into its base above this, and above an eighth of the base."""


class LedgerIndex:
    """Ids of ledgers by the bookies that their records name."""

    def __init__(self) -> None:
        self._base: dict[str, array[int]] = {}
        self._recent: dict[str, set[int]] = {}

    def note(self, record: LedgerRecord) -> None:
        """Note that *record* names its bookies. Ids need not rise; rising ones cost least."""
        for bookie_id in {name for fragment in record.fragments for name in fragment.bookies}:
            base = self._base.setdefault(bookie_id, array("Q"))
            if not base or base[-1] < record.ledger_id:
                base.append(record.ledger_id)
            elif not _holds(base, record.ledger_id):
                self._add_recent(bookie_id, record.ledger_id)

    def of(self, bookie_ids: Iterable[str]) -> list[int]:
        """Return the ledgers that name one of these bookies, or named it, by rising id."""
        found: set[int] = set()
        for bookie_id in bookie_ids:
            found.update(self._base.get(bookie_id, ()), self._recent.get(bookie_id, ()))
        return sorted(found)

    @property
    def size(self) -> int:
        """Number of ids held."""
        return sum(map(len, self._base.values())) + sum(map(len, self._recent.values()))

    def _add_recent(self, bookie_id: str, ledger_id: int) -> None:
        recent = self._recent.setdefault(bookie_id, set())
        recent.add(ledger_id)
        base = self._base[bookie_id]
        if len(recent) > max(RECENT_MAX, len(base) // 8):
            self._base[bookie_id] = array("Q", sorted({*base, *recent}))
            recent.clear()


def _holds(base: array[int], ledger_id: int) -> bool:
    place = bisect_left(base, ledger_id)
    return place < len(base) and base[place] == ledger_id
