"""Where the entries of one ledger are: fragments, replicas, and their condition.

A read tries the replicas of an entry one after the other, beginning with the
last of the list; one that lately failed, was late or lacked an entry is moved
to the end for a while, so that a dead bookie costs one delay and not one a read.
"""

from __future__ import annotations

import bisect

import trio

from ledger_client.bookies import Bookies
from ledger_client.connection import BookieConnection
from ledger_client.options import Options
from ledger_client.statements import LedgerName
from metadata.records import Fragment, LedgerRecord
from native.digest import Digest

SHUN_S = 10.0
GUESSED_ENTRY_SIZE = 1024
BATCH_COUNT_MAX = 16384
STRIPED_COUNT_MAX = 128
"""Single reads asked for at once, where a bookie has not all of the entries."""


class LedgerSource:
    """The replicas of one ledger's entries, as its record states them.

    *last_confirmed* is the greatest entry known to be acknowledged.
    """

    def __init__(
        self, record: LedgerRecord, *, digest: Digest, bookies: Bookies, options: Options
    ) -> None:
        self.record = record
        self.digest = digest
        self.options = options
        self.last_confirmed = record.last_entry
        self._bookies = bookies
        self._shunned: dict[str, float] = {}
        self._entry_size = float(GUESSED_ENTRY_SIZE)
        if record.last_entry >= 0:
            self._entry_size = record.length / (record.last_entry + 1)

    @property
    def ledger_id(self) -> int:
        """Id of the ledger."""
        return self.record.ledger_id

    @property
    def name(self) -> LedgerName:
        """The ledger, and no other that may have its id."""
        return LedgerName(self.record.ledger_id, self.record.incarnation)

    @property
    def striped(self) -> bool:
        """True when no bookie has all of the entries."""
        return self.record.ensemble_size > self.record.write_quorum

    def replicas(self, entry_id: int) -> list[BookieConnection]:
        """Return the bookies that should hold the entry, the best to ask first."""
        bookies = self._fragment(entry_id).bookies
        start = entry_id % len(bookies)
        count = self.record.write_quorum
        chosen = [bookies[(start + i) % len(bookies)] for i in reversed(range(count))]
        if not self.striped:
            chosen = bookies[::-1]  # the same one for every entry: it can read ahead
        return self._by_condition(chosen)

    def newest_ensemble(self) -> list[BookieConnection]:
        """Return the bookies of the last fragment, the best to ask first."""
        return self._by_condition(self.record.fragments[-1].bookies[::-1])

    def shun(self, bookie_id: str) -> None:
        """Ask this bookie last for a while."""
        self._shunned[bookie_id] = trio.current_time() + SHUN_S

    def suspect(self, bookie_id: str, since: float) -> None:
        """Drop the connection to a bookie from which nothing came after *since*."""
        self._bookies.connection(bookie_id).suspect(since)

    def learn_sizes(self, size: int, count: int) -> None:
        """Expect the next entries to be as large as these."""
        if count > 0:
            self._entry_size = size / count

    def part_end(self, first: int, last: int) -> int:
        """Return where a part that begins at *first* should end, at most *last*.

        A part lies in one fragment and has about read_batch_size bytes.
        """
        size = min(self.options.read_batch_size, 2 << 20)
        count = int(size / max(self._entry_size, 1.0))
        count_max = STRIPED_COUNT_MAX if self.striped else BATCH_COUNT_MAX
        end = first + max(1, min(count, count_max)) - 1
        after = bisect.bisect_right(self._starts(), first)
        if after < len(self.record.fragments):
            end = min(end, self.record.fragments[after].first_entry - 1)
        return min(end, last)

    def _fragment(self, entry_id: int) -> Fragment:
        return self.record.fragments[max(bisect.bisect_right(self._starts(), entry_id) - 1, 0)]

    def _starts(self) -> list[int]:
        return [fragment.first_entry for fragment in self.record.fragments]

    def _by_condition(self, bookie_ids: list[str]) -> list[BookieConnection]:
        connections = [self._bookies.connection(bookie_id) for bookie_id in bookie_ids]
        if not self._shunned and all(connection.standing for connection in connections):
            return connections  # as a rule; and it is asked for each entry of a striped ledger
        now = trio.current_time()
        return sorted(
            connections, key=lambda c: c.paused or self._shunned.get(c.bookie_id, 0.0) > now
        )
