"""Comparing every copy of every entry of a closed ledger.

All bookies of a fragment are read side by side, a window of entries at a time, each
payload is reduced to a fingerprint, and the fingerprints of an entry are compared. What
most bookies hold is taken for right; when none has a majority, nobody can tell, and all
of these copies count as different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.creation import DIGESTS
from ledger_client.operations.errors import LedgerNotClosed
from ledger_client.operations.own_copy import Fault, OwnCopy, Seen
from ledger_client.repair.runs import Runs, striped
from ledger_client.source import LedgerSource
from metadata.records import LedgerRecord, LedgerState
from native.digest import Digest

FAULTS_MAX = 10_000


class FaultyRun(msgspec.Struct, frozen=True):
    """Entries that follow each other, with the same fault on the same bookie."""

    bookie_id: str
    fault: Fault
    first_entry: int
    last_entry: int


class CopyReport(msgspec.Struct):
    """What one bookie holds of the entries that it should hold, in numbers of entries."""

    bookie_id: str
    expected: int = 0
    sound: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unknown: int = 0
    silent: str = ""
    """why the bookie could not be asked"""

    @property
    def whole(self) -> bool:
        """True when every entry is there, sound, and what the others hold."""
        return self.sound == self.expected


class Verification(msgspec.Struct, kw_only=True):
    """The copies of one ledger.

    *faults* names the first thousands of runs; the numbers count all. An entry's faults are
    named all or none, so what is named can be judged.
    """

    ledger_id: int
    entries: int
    copies: dict[str, CopyReport] = {}
    faults: list[FaultyRun] = []
    lost: int = 0
    """entries of which no copy is known to be right"""

    @property
    def whole(self) -> bool:
        """True when every copy is whole."""
        return all(copy.whole for copy in self.copies.values())


async def verify(
    client: Client,
    record: LedgerRecord,
    *,
    advance: Callable[[int], None] = lambda _entries: None,
) -> Verification:
    """Return how the copies of a closed ledger are.

    Reads every copy of the whole ledger. A bookie that cannot be asked for the client's
    read_timeout_s counts as unknown from there on.

    Args:
        client: of the cluster.
        record: the ledger, as its metadata is now.
        advance: is told how many more entries were compared.

    Raises:
        LedgerNotClosed: its entries are not final.
    """
    if record.state is not LedgerState.CLOSED:
        raise LedgerNotClosed(record.ledger_id)
    return await _Comparison(client, record).run(advance)


class _Comparison:
    def __init__(self, client: Client, record: LedgerRecord) -> None:
        digest = Digest(DIGESTS[record.digest], record.password_bytes)
        self._record = record
        self._source = LedgerSource(
            record, digest=digest, bookies=client.bookies, options=client.options
        )
        self._naming = True
        self._newest: dict[str, int] = {}
        names = sorted({name for fragment in record.fragments for name in fragment.bookies})
        self._asked = {name: OwnCopy(client, name, self._source.name, digest) for name in names}
        self._found = Verification(
            ledger_id=record.ledger_id,
            entries=record.last_entry + 1,
            copies={name: CopyReport(name) for name in names},
        )

    async def run(self, advance: Callable[[int], None]) -> Verification:
        first, last = 0, self._record.last_entry
        while first <= last:
            end = self._source.part_end(first, last)
            await self._compare(first, end)
            advance(end - first + 1)
            first = end + 1
        for name, copy in self._asked.items():
            self._found.copies[name].silent = copy.silent
        return self._found

    async def _compare(self, first: int, last: int) -> None:
        wanted = _write_sets(self._record, first, last)
        seen: dict[str, dict[int, Seen]] = {}

        async def look(name: str) -> None:
            seen[name] = await self._asked[name].look(wanted[name])

        async with trio.open_nursery() as nursery:
            for name in wanted:
                nursery.start_soon(look, name)
        if _all_alike(list(seen.values())):
            for name, found in seen.items():
                self._found.copies[name].expected += len(found)
                self._found.copies[name].sound += len(found)
            return
        for entry_id in range(first, last + 1):
            self._judge(
                entry_id, {n: each[entry_id] for n, each in seen.items() if entry_id in each}
            )

    def _judge(self, entry_id: int, copies: Mapping[str, Seen]) -> None:
        right = majority(copies.values())
        self._found.lost += right is None
        self._naming &= len(self._found.faults) + len(copies) <= FAULTS_MAX
        for name, seen in copies.items():
            report = self._found.copies[name]
            report.expected += 1
            if seen == right:
                report.sound += 1
                continue
            fault = seen if isinstance(seen, Fault) else Fault.DIFFERENT
            setattr(report, fault.value, getattr(report, fault.value) + 1)
            if self._naming:
                self._note(name, fault, entry_id)

    def _note(self, bookie_id: str, fault: Fault, entry_id: int) -> None:
        """Name the fault, as part of the run before it if it goes on."""
        faults = self._found.faults
        at = self._newest.get(bookie_id)
        run = faults[at] if at is not None else None
        if (
            at is not None
            and run is not None
            and (run.fault, run.last_entry + 1) == (fault, entry_id)
        ):
            faults[at] = msgspec.structs.replace(run, last_entry=entry_id)
        else:
            self._newest[bookie_id] = len(faults)
            faults.append(FaultyRun(bookie_id, fault, entry_id, entry_id))


def majority(copies: Iterable[Seen]) -> bytes | None:
    """Return the fingerprint that more sound copies have than any other; None: no such."""
    counted = Counter(seen for seen in copies if isinstance(seen, bytes)).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def _write_sets(record: LedgerRecord, first: int, last: int) -> dict[str, Runs]:
    """Return which of the entries *first* to *last*, of one fragment, each bookie should hold."""
    fragment = next(f for f in reversed(record.fragments) if f.first_entry <= first)
    size, quorum = record.ensemble_size, record.write_quorum
    return {
        name: striped(first, last, index=index, ensemble_size=size, write_quorum=quorum)
        for index, name in enumerate(fragment.bookies)
    }


def _all_alike(seen: Sequence[Mapping[int, Seen]]) -> bool:
    """True for equal sound copies of the same entries, which is how it is as a rule."""
    first, *others = seen
    return all(other == first for other in others) and not any(
        isinstance(each, Fault) for each in first.values()
    )
