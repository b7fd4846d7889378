"""Verification: every copy of every entry of a closed ledger is compared.

All bookies of a fragment are read in parallel, a window of entries at a time. Each payload is
reduced to a fingerprint, and the fingerprints of an entry are compared. The most frequent
one counts as right; on a tie no copy is known to be right, and all count as different.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import trio

from ledger_client.cluster.repair.plan import Runs, striped
from ledger_client.errors import BookieUnavailable, LedgerError
from ledger_client.ledgers.entries import BatchQuestion, EntryBatch, Unsound, Verdict
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.replica_reads import LedgerSource
from ledger_client.wire.inflight import LedgerName
from metadata.calls import LedgerRuns, RunPage
from metadata.records import LedgerRecord, LedgerState
from native.digest import Digest

FAULTS_MAX = 10_000


class FaultyRun(msgspec.Struct, frozen=True):
    """Consecutive entries with the same fault on the same bookie."""

    bookie_id: str
    fault: Fault
    first_entry: int
    last_entry: int


class CopyReport(msgspec.Struct):
    """One bookie's copy, counted in entries that belong on it."""

    bookie_id: str
    expected: int = 0
    sound: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unknown: int = 0
    silent: str = ""
    """why the bookie could not be asked, if so"""

    @property
    def whole(self) -> bool:
        """True if every entry is there, sound, and the same as on other bookies."""
        return self.sound == self.expected


class Verification(msgspec.Struct, kw_only=True):
    """The state of all copies of one ledger.

    *faults* lists at most 10,000 runs; the counts are complete. An entry's faults are listed
    all or none, so the list can be acted on.
    """

    ledger_id: int
    entries: int
    copies: dict[str, CopyReport] = {}
    faults: list[FaultyRun] = []
    lost: int = 0
    """entries without a copy known to be right"""

    @property
    def whole(self) -> bool:
        """True if every copy is whole."""
        return all(copy.whole for copy in self.copies.values())


async def verify(
    ledgers: Ledgers,
    record: LedgerRecord,
    *,
    advance: Callable[[int], None] = lambda _entries: None,
) -> Verification:
    """Compare all copies of a closed ledger, which reads every one of them in full.

    A bookie that stays unreachable for the client's read_timeout_s counts as unknown from
    there on.

    Args:
        ledgers: of the cluster.
        record: the ledger's current metadata.
        advance: called with the number of entries just compared.

    Raises:
        LedgerError: it is not closed, so its entries are not final.
    """
    if record.state is not LedgerState.CLOSED:
        raise not_closed(record.ledger_id)
    return await _Comparison(ledgers, record).run(advance)


def not_closed(ledger_id: int) -> LedgerError:
    """Return the error for a ledger that is open or in recovery."""
    recover = f"if its writer is gone, `quire ledger recover {ledger_id}` closes it"
    return LedgerError(f"not closed; {recover}", ledger_id=ledger_id)


class _Comparison:
    def __init__(self, ledgers: Ledgers, record: LedgerRecord) -> None:
        self._record = record
        self._source = LedgerSource(record, bookies=ledgers.bookies, options=ledgers.options)
        self._naming = True
        self._newest: dict[str, int] = {}
        names = sorted({name for fragment in record.fragments for name in fragment.bookies})
        self._asked = {
            name: OwnCopy(ledgers, name, self._source.name, self._source.digest) for name in names
        }
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
        """List the fault, extending the run before it if possible."""
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
    """Return the fingerprint that most sound copies share, or `None` on a tie."""
    counted = Counter(seen for seen in copies if isinstance(seen, bytes)).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def _write_sets(record: LedgerRecord, first: int, last: int) -> dict[str, Runs]:
    """Return the entries from *first* to *last*, of one fragment, that belong on each bookie."""
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


# --- One bookie's own copy --------------------------------------------------------------
# A reader is satisfied by any replica. Here one bookie is asked and no other, and each entry
# yields the fingerprint of its payload, or what is wrong with it.


AGAIN_S = 0.2
"""Pause between two attempts to reach a bookie."""


class Fault(enum.Enum):
    """What is wrong with one copy of one entry."""

    MISSING = "missing"
    DAMAGED = "damaged"
    """unreadable there, or its digest is wrong"""
    DIFFERENT = "different"
    """sound, but not what the other bookies hold"""
    UNKNOWN = "unknown"
    """the bookie could not be asked"""


Seen = bytes | Fault
"""The fingerprint of a sound copy, or the fault of a bad one."""


class OwnCopy:
    """One bookie's copy of a ledger.

    Attributes:
        bookie_id: the bookie.
        silent: why it is not asked any more; "" while it answers.
    """

    def __init__(
        self, ledgers: Ledgers, bookie_id: str, ledger: LedgerName, digest: Digest
    ) -> None:
        self.bookie_id = bookie_id
        self.silent = ""
        self._ledgers = ledgers
        self._ledger = ledger
        self._digest = digest

    async def look(self, wanted: Runs) -> dict[int, Seen]:
        """Return the fingerprint or fault of each entry in *wanted*.

        A bookie that stays unreachable for the client's read_timeout_s is not asked again.
        """
        seen: dict[int, Seen] = {}
        for first, last in wanted:
            await self._look_at(first, last, seen)
        return seen

    async def _look_at(self, first: int, last: int, seen: dict[int, Seen]) -> None:
        while first <= last:
            batch = await self._batch(first, last - first + 1)
            if batch is None:
                seen.update(dict.fromkeys(range(first, last + 1), Fault.UNKNOWN))
                return
            if isinstance(batch, EntryBatch):
                prints = map(fingerprint, batch.payloads())
                seen.update(enumerate(prints, first))
                first += len(batch)
            else:
                end = await self._end_of(batch, first, last)
                seen.update(dict.fromkeys(range(first, end), batch))
                first = end

    async def _batch(self, first: int, count: int) -> EntryBatch | Fault | None:
        """Return sound entries from *first* on, its fault, or `None` if the bookie is silent."""
        question = BatchQuestion(self._ledger, first, count, self._digest)
        until = trio.current_time() + self._ledgers.options.read_timeout_s
        while not self.silent:
            try:
                return await self._answer(question)
            except Unsound as unsound:
                if unsound.verdict is not Verdict.UNAVAILABLE:
                    absent = unsound.verdict is Verdict.ABSENT
                    return Fault.MISSING if absent else Fault.DAMAGED
                if trio.current_time() >= until:
                    self.silent = unsound.reason
            await trio.sleep(AGAIN_S)
        return None

    async def _answer(self, question: BatchQuestion) -> EntryBatch:
        arrived = trio.Event()
        connection = self._ledgers.bookies.connections[self.bookie_id]
        request, key = question.request(connection.next_request_id())
        reply = connection.ask(request, key, arrived.set, question.ledger)
        limit_s = self._ledgers.options.request_timeout_s
        try:
            with trio.move_on_after(limit_s):
                await arrived.wait()
        finally:
            reply.abandon()
        if reply.response is not None:
            return question.judge(reply.response, self.bookie_id)
        if reply.failure is None:
            connection.suspect(reply.sent_at)
            raise Unsound(Verdict.UNAVAILABLE, f"no answer in {limit_s:g} s")
        raise Unsound(Verdict.UNAVAILABLE, reply.failure.reason)

    async def _end_of(self, fault: Fault, first: int, last: int) -> int:
        """Return the entry after a fault at *first*; a long gap is skipped in one step."""
        if fault is not Fault.MISSING or first == last:
            return first + 1
        ledger_id, incarnation = self._ledger
        try:
            page = await self._ledgers.call(
                self.bookie_id, LedgerRuns(ledger_id, first, 1, incarnation)
            )
        except BookieUnavailable:
            return first + 1
        if not isinstance(page, RunPage) or not page.runs:
            return last + 1
        return min(max(page.runs[0][0], first + 1), last + 1)


def fingerprint(payload: bytes) -> bytes:
    """Return a digest by which payloads can be compared."""
    return hashlib.blake2b(payload, digest_size=16).digest()
