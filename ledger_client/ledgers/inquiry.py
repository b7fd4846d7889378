"""The two questions of a recovery, each asked of several bookies at once.

Fencing: each bookie of the last ensemble is asked to take no more entries of the ledger
except those of a recovery. Its answer also says how far the ledger was confirmed when its
newest entry was sent. A bookie that did not answer may still take entries, so there must be
too few of those to acknowledge one.

The tail: which entries above the last confirmed one exist, and where they end. An entry
exists if any replica serves it. It is absent once so many replicas deny it that too few are
left to have acknowledged it; the question fences each of them, so none can take the entry
afterwards. Everything else (no answer, damage, a bookie in limbo) proves nothing and is no
reason to cut a ledger off.

A bookie that cannot be reached is asked again while there is time. Any other answer is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from types import TracebackType
from typing import Protocol

import trio

from ledger_client.errors import BookieUnavailable, NoSuchLedger, ReplicasUnavailable, WrongPassword
from ledger_client.ledgers.entries import EntryBatch, sound_entries
from ledger_client.ledgers.replica_reads import BATCH_COUNT_MAX, LedgerSource
from ledger_client.options import Options
from ledger_client.wire.bookies import BookieConnection
from ledger_client.wire.inflight import Reply, ends_at, move_on_at
from metadata.records import LedgerRecord
from native import frame
from native.errors import Corrupt
from native.frame import Code, Flag
from native.link import Response

AGAIN_S = 0.1
"""Pause between attempts to reach a bookie."""

_PASSING = (Code.TOO_MANY, Code.UNKNOWN_STATE)

Answer = Response | BookieUnavailable
"""The outcome of a question to one bookie."""


class Poll(Protocol):
    """A question, and the state that its answers build up."""

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Queue the question for *bookie* without waiting; *on_arrival* reports the outcome."""

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Record an answer; the newest one of a bookie counts."""


class Inquiry:
    """A poll under way. Asks every bookie when created; drops later answers when left."""

    def __init__(self, poll: Poll, bookies: Iterable[BookieConnection], options: Options) -> None:
        self._poll = poll
        self._limit_s = options.request_timeout_s
        self._pending: list[tuple[BookieConnection, Reply]] = []
        self._again: list[BookieConnection] = []
        self._again_at = 0.0
        self._again_until = trio.current_time() + options.read_timeout_s
        self._news = trio.Event()
        self._ask(bookies)

    def __enter__(self) -> Inquiry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    async def wait(self, decided: Callable[[], bool]) -> None:
        """Return once *decided()* is true, or when no further answer can come.

        Takes at most request_timeout_s for a silent bookie, and read_timeout_s more for
        one that cannot be reached.
        """
        while True:
            self._take_answers()
            if decided() or not (self._pending or self._again):
                return
            await self._wait_for_news()
            if self._again and trio.current_time() >= self._again_at:
                again, self._again = self._again, []
                self._ask(again)

    def abandon(self) -> None:
        """Drop all further answers. Bookies may still do what they were asked."""
        for _, reply in self._pending:
            reply.abandon()
        self._pending.clear()
        self._again.clear()

    def _ask(self, bookies: Iterable[BookieConnection]) -> None:
        self._pending += [(bookie, self._poll.ask(bookie, self._wake)) for bookie in bookies]

    def _wake(self) -> None:
        self._news.set()

    def _take_answers(self) -> None:
        pending, self._pending = self._pending, []
        for bookie, reply in pending:
            answer = self._answer(bookie, reply)
            if answer is None:
                self._pending.append((bookie, reply))
            else:
                self._take(bookie, answer)

    def _take(self, bookie: BookieConnection, answer: Answer) -> None:
        self._poll.take(bookie.bookie_id, answer)
        now = trio.current_time()
        if _is_passing(answer) and now < self._again_until:
            if not self._again:
                self._again_at = now + AGAIN_S
            self._again.append(bookie)

    def _answer(self, bookie: BookieConnection, reply: Reply) -> Answer | None:
        if reply.arrived:
            return reply.response or reply.failure
        if trio.current_time() < ends_at(reply.sent_at, self._limit_s):
            return None
        reply.abandon()
        bookie.suspect(reply.sent_at)
        return BookieUnavailable(bookie.bookie_id, f"no answer in {self._limit_s:g} s")

    async def _wait_for_news(self) -> None:
        until = min(
            (ends_at(reply.sent_at, self._limit_s) for _, reply in self._pending),
            default=float("inf"),
        )
        if self._again:
            until = min(until, self._again_at)
        self._news = trio.Event()
        if any(reply.arrived for _, reply in self._pending):
            return
        with move_on_at(until):
            await self._news.wait()


def describe(answer: Answer) -> str:
    """Return a short reason for an answer that proves nothing about an entry."""
    if isinstance(answer, BookieUnavailable):
        return answer.reason
    return "I/O error" if answer.code == Code.IO_ERROR else f"answered with code {answer.code}"


def _is_passing(answer: Answer) -> bool:
    """True if the same question may get another answer soon."""
    return isinstance(answer, BookieUnavailable) or answer.code in _PASSING


LAST_ENTRY = -1
"""In a READ: the bookie's newest entry."""
NOTHING_CONFIRMED = -1
GRACE_S = 0.05
"""Wait this long for answers after the decisive one: they may know more confirmed entries."""


async def fence_ensemble(source: LedgerSource) -> list[int]:
    """Fence the last ensemble and return the last confirmed entry that each bookie knows.

    Each is an entry that was acknowledged, as all before it were, or -1; even the greatest
    may be too small. Returns when the fence holds, without waiting for bookies that are not
    needed for that.

    Raises:
        ReplicasUnavailable: too few bookies answered; the others may still take
            entries of the writer.
        WrongPassword: a bookie knows the ledger with another password.
    """
    fences = Fences(source)
    with Inquiry(fences, source.newest_ensemble(), source.options) as inquiry:
        await inquiry.wait(fences.hold)
        if not fences.hold():
            raise ReplicasUnavailable.in_recovery(
                ledger_id=source.ledger_id, entry_id=-1, reasons=fences.unknown
            )
        with trio.move_on_after(GRACE_S):
            await inquiry.wait(lambda: not fences.unknown)
    return list(fences.confirmed.values())


def covers(ensemble_size: int, write_quorum: int, ack_quorum: int, unknown: Set[int]) -> bool:
    """True if no write set has ack_quorum bookies among the *unknown* indexes.

    Then every entry acknowledged from here on was stored, before the fence, by a bookie
    that is fenced now.
    """
    return all(
        sum((start + i) % ensemble_size in unknown for i in range(write_quorum)) < ack_quorum
        for start in range(ensemble_size)
    )


def floor(record: LedgerRecord, lacs: Iterable[int]) -> int:
    """Return the greatest entry known to be confirmed, given the answers of bookies.

    The entry before the last fragment counts, too: a change of the ensemble begins right
    after a confirmed entry, and its new bookies may not have received any yet.
    """
    return max(record.fragments[-1].first_entry - 1, *lacs, NOTHING_CONFIRMED)


class Fences:
    """The answers of the last ensemble to the question that fences it."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._ensemble = source.record.fragments[-1].bookies
        self.confirmed: dict[str, int] = {}
        """by fenced bookie: the last confirmed entry that it knows"""
        self.unknown: dict[str, str] = dict.fromkeys(self._ensemble, "no answer yet")
        """by other bookie: the reason why it may not be fenced"""

    def hold(self) -> bool:
        """True if the writer cannot get an entry acknowledged any more."""
        record = self._source.record
        unknown = {i for i, bookie_id in enumerate(self._ensemble) if bookie_id in self.unknown}
        return covers(record.ensemble_size, record.write_quorum, record.ack_quorum, unknown)

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Ask *bookie* to fence the ledger, and for its last confirmed entry."""
        ledger_id = self._source.ledger_id
        flags = Flag.FENCE | Flag.PRIORITY
        key = self._source.digest.master_key
        request = frame.read(ledger_id, LAST_ENTRY, flags=flags, key=key)
        return bookie.ask(request, (ledger_id, LAST_ENTRY), on_arrival, self._source.name)

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Record an answer; the newest one of a bookie counts."""
        if isinstance(answer, Response) and answer.code == Code.UNAUTHORIZED:
            raise WrongPassword(self._source.ledger_id)
        if isinstance(answer, Response) and answer.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(self._source.ledger_id)
        confirmed = self._confirmed_in(answer)
        if isinstance(confirmed, str):
            self.unknown[bookie_id] = confirmed
        else:
            self.confirmed[bookie_id] = confirmed
            del self.unknown[bookie_id]

    def _confirmed_in(self, answer: Answer) -> int | str:
        """Return the last confirmed entry in the answer, or why there is none."""
        if not isinstance(answer, Response):
            return describe(answer)
        if answer.code in (Code.NO_ENTRY, Code.NO_LEDGER):
            return NOTHING_CONFIRMED
        if answer.code != Code.OK:
            return describe(answer)
        try:
            self._source.digest.check(answer.body, self._source.ledger_id)
        except Corrupt:
            return "wrong digest"
        return int.from_bytes(answer.body[16:24], "big", signed=True)


RECOVERY_READ_FLAGS = Flag.FENCE | Flag.PRIORITY
"""A read that does not fence could be denied by a bookie that takes the entry later."""
WINDOW_SIZE = 1 << 20
"""Bytes in one question; a single entry may be larger."""
STRIPED_WIDTH_MAX = 16
"""The most questions under way at once in a striped ledger."""


def absent(write_quorum: int, ack_quorum: int, negatives: int) -> bool:
    """True if an entry that *negatives* replicas deny cannot have been acknowledged."""
    return negatives >= write_quorum - ack_quorum + 1


def is_negative(answer: Answer) -> bool:
    """True if the answer explicitly denies the entry."""
    return isinstance(answer, Response) and answer.code in (Code.NO_ENTRY, Code.NO_LEDGER)


class Tail:
    """Reads the entries of a ledger from *start* up to its end."""

    def __init__(self, source: LedgerSource, start: int) -> None:
        self._source = source
        self._position = start
        self._width = 1
        self._ended = False

    async def next(self) -> list[EntryBatch]:
        """Return the next entries in order; an empty list at the end of the ledger.

        Holds about WINDOW_SIZE bytes from each replica.

        Raises:
            ReplicasUnavailable: an entry is neither found nor proved absent.
            WrongPassword: a bookie knows the ledger with another password.
        """
        if self._ended:
            return []
        runs = [Run(self._source, self._position + i) for i in range(self._width)]
        found: list[EntryBatch] = []
        try:
            for run in runs:
                batch = await run.result()
                if batch is None:
                    self._ended = True
                    break
                found.append(batch)
        finally:
            for run in runs:
                run.abandon()
        self._pass(found)
        return found

    def _pass(self, found: list[EntryBatch]) -> None:
        """Move past the entries found; adapt the number of questions to their size."""
        if found and self._source.striped:
            largest = max(batch.size for batch in found)
            fitting = WINDOW_SIZE // max(largest, 1)
            self._width = max(1, min(2 * self._width, fitting, STRIPED_WIDTH_MAX))
        if found:
            self._position = found[-1].last_entry + 1


class Run:
    """A question for the entries from *entry_id* on, sent to every replica of the first."""

    def __init__(self, source: LedgerSource, entry_id: int) -> None:
        self._source = source
        self._entry_id = entry_id
        self._count = 1 if source.striped else BATCH_COUNT_MAX
        self._found: EntryBatch | None = None
        self._negatives: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._inquiry = Inquiry(self, source.replicas(entry_id), source.options)

    async def result(self) -> EntryBatch | None:
        """Return one entry or more; None if the first is absent.

        Raises:
            ReplicasUnavailable: it is neither found nor proved absent.
        """
        await self._inquiry.wait(self._is_decided)
        if self._found is None and not self._is_absent():
            raise ReplicasUnavailable.in_recovery(
                ledger_id=self._source.ledger_id, entry_id=self._entry_id, reasons=self._reasons
            )
        return self._found

    def abandon(self) -> None:
        """Drop the answers still under way."""
        self._inquiry.abandon()

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Ask *bookie* for entries of at most WINDOW_SIZE bytes, and fence the ledger there."""
        request_id = bookie.next_request_id()
        key = self._source.digest.master_key if RECOVERY_READ_FLAGS & Flag.FENCE else None
        request = frame.batch_read(
            self._source.ledger_id,
            self._entry_id,
            request_id=request_id,
            count_max=self._count,
            size_max=WINDOW_SIZE,
            flags=RECOVERY_READ_FLAGS,
            key=key,
        )
        return bookie.ask(request, request_id, on_arrival, self._source.name)

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Record an answer; the newest one of a bookie counts."""
        if is_negative(answer):
            self._negatives.add(bookie_id)
            self._reasons[bookie_id] = "no such entry"
        elif isinstance(answer, Response) and answer.code == Code.OK:
            self._take_entries(bookie_id, answer)
        elif isinstance(answer, Response) and answer.code == Code.UNAUTHORIZED:
            raise WrongPassword(self._source.ledger_id)
        elif isinstance(answer, Response) and answer.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(self._source.ledger_id)
        else:
            self._reasons[bookie_id] = describe(answer)

    def _take_entries(self, bookie_id: str, response: Response) -> None:
        batch = sound_entries(response, self._source.digest, self._entry_id, self._count, bookie_id)
        if not len(batch):
            self._reasons[bookie_id] = "wrong digest"
        elif self._found is None or len(batch) > len(self._found):
            self._found = batch

    def _is_decided(self) -> bool:
        return self._found is not None or self._is_absent()

    def _is_absent(self) -> bool:
        record = self._source.record
        return absent(record.write_quorum, record.ack_quorum, len(self._negatives))
