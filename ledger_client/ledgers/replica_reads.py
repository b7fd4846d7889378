"""Reading from the replicas of one ledger.

    LedgerSource   the replicas, and the condition of their bookies
    ask_confirmed  the last confirmed entry that they know
    ReplicaRead    one question, sent to replica after replica
    Parts          some batches of a range, a few of them under way at once

A read tries the replicas of an entry one after the other, beginning with the last of the
list. A replica that lately failed, was late or lacked an entry moves to the end for a while,
so that a dead bookie delays one read and not every read.

Where every bookie has every entry, a batch is one BATCH_READ, and further ones
when an answer ends early. In a striped ledger it is a READ for each entry, all
sent at once.
"""

from __future__ import annotations

import bisect
from collections import deque
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import trio

from ledger_client.errors import (
    EntryLost,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from ledger_client.ledgers.entries import (
    BatchQuestion,
    EntryBatch,
    EntryQuestion,
    Unsound,
    Verdict,
    digest_of,
)
from ledger_client.options import Options
from ledger_client.wire.bookies import BookieConnection, Bookies
from ledger_client.wire.inflight import Key, LedgerName, Reply, ends_at, move_on_after, move_on_at
from metadata.records import Fragment, LedgerRecord
from native import frame
from native.frame import Code
from native.link import Response

SHUN_S = 10.0
GUESSED_ENTRY_SIZE = 1024
BATCH_COUNT_MAX = 16384
STRIPED_COUNT_MAX = 128
"""READs sent at once in a striped ledger."""
_FIRST_ENTRY = attrgetter("first_entry")


class LedgerSource:
    """The replicas of one ledger's entries, and the condition of its bookies.

    Attributes:
        record: lists the bookies.
        last_confirmed: the greatest entry known to be acknowledged.
    """

    def __init__(self, record: LedgerRecord, *, bookies: Bookies, options: Options) -> None:
        self.record = record
        self.digest = digest_of(record)
        self.options = options
        self.last_confirmed = record.last_entry
        self._bookies = bookies
        self._shunned: dict[str, float] = {}
        self._entry_size = float(GUESSED_ENTRY_SIZE)
        if record.last_entry >= 0:
            self._entry_size = record.length / (record.last_entry + 1)

    @property
    def ledger_id(self) -> int:
        """Id of the ledger, without its incarnation; see `name`."""
        return self.record.ledger_id

    @property
    def name(self) -> LedgerName:
        """Id and incarnation: another ledger may get the same id."""
        return LedgerName(self.record.ledger_id, self.record.incarnation)

    @property
    def striped(self) -> bool:
        """True if no bookie has all of the entries."""
        return self.record.ensemble_size > self.record.write_quorum

    def replicas(self, entry_id: int) -> list[BookieConnection]:
        """Return the bookies that should hold the entry, the best one first."""
        bookies = self._fragment(entry_id).bookies
        start = entry_id % len(bookies)
        count = self.record.write_quorum
        chosen = [bookies[(start + i) % len(bookies)] for i in reversed(range(count))]
        if not self.striped:
            chosen = bookies[::-1]  # the same one for every entry, so that it can read ahead
        return self._by_condition(chosen)

    def newest_ensemble(self) -> list[BookieConnection]:
        """Return the bookies of the last fragment, the best one first."""
        return self._by_condition(self.record.fragments[-1].bookies[::-1])

    def informant(self) -> BookieConnection:
        """Return the bookie to ask for news: one that is connected, among the best ones."""
        able = self.newest_ensemble()
        able = [bookie for bookie in able if not self._is_last(bookie)] or able
        return next((bookie for bookie in able if bookie.standing), able[0])

    def shun(self, bookie_id: str) -> None:
        """Ask this bookie last for SHUN_S."""
        self._shunned[bookie_id] = trio.current_time() + SHUN_S

    def suspect(self, bookie_id: str, since: float) -> None:
        """Drop the connection to a bookie that sent nothing after *since*."""
        self._bookies.connections[bookie_id].suspect(since)

    def learn_sizes(self, size: int, count: int) -> None:
        """Expect the next entries to be as large as these."""
        if count > 0:
            self._entry_size = size / count

    def part_end(self, first: int, last: int) -> int:
        """Return the last entry, at most *last*, to read together with *first*.

        The entries lie in one fragment and have about read_batch_size bytes.
        """
        size = min(self.options.read_batch_size, 2 << 20)
        count = int(size / max(self._entry_size, 1.0))
        count_max = STRIPED_COUNT_MAX if self.striped else BATCH_COUNT_MAX
        end = first + max(1, min(count, count_max)) - 1
        after = bisect.bisect_right(self.record.fragments, first, key=_FIRST_ENTRY)
        if after < len(self.record.fragments):
            end = min(end, self.record.fragments[after].first_entry - 1)
        return min(end, last)

    def _fragment(self, entry_id: int) -> Fragment:
        after = bisect.bisect_right(self.record.fragments, entry_id, key=_FIRST_ENTRY)
        return self.record.fragments[max(after - 1, 0)]

    def _by_condition(self, bookie_ids: list[str]) -> list[BookieConnection]:
        connections = [self._bookies.connections[bookie_id] for bookie_id in bookie_ids]
        if not self._shunned and all(connection.standing for connection in connections):
            return connections  # the common case, checked for each entry of a striped ledger
        return sorted(connections, key=self._is_last)

    def _is_last(self, bookie: BookieConnection) -> bool:
        return bookie.paused or self._shunned.get(bookie.bookie_id, 0.0) > trio.current_time()


# --- the last confirmed entry ------------------------------------------------------------

NOTHING_KNOWN = -1
STRAGGLER_S = 0.5
"""How long to wait for the others once one bookie has answered."""


async def ask_confirmed(source: LedgerSource) -> int:
    """Return the greatest last confirmed entry that the bookies know, -1 for none.

    Any of them may lag, and none can be ahead: an entry that a bookie calls confirmed was
    acknowledged. So the greatest answer counts; it may be out of date, but is never wrong.
    Waits for all bookies, but only STRAGGLER_S once one has answered.

    Raises:
        ReplicasUnavailable: none of them answered.
        NoSuchLedger: it was deleted, and another one has its id now.
    """
    replies = _ask_all(source)
    try:
        with move_on_after(source.options.request_timeout_s):
            await replies.wait_for(1)
        with trio.move_on_after(STRAGGLER_S):
            await replies.wait_for(len(replies.asked))
    finally:
        for reply in replies.asked:
            reply.abandon()
            if not reply.arrived:
                source.suspect(reply.bookie_id, reply.sent_at)
    answers = [lac for reply in replies.asked if (lac := _judge(reply)) is not None]
    for reply in replies.asked:
        if reply.response is not None and reply.response.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(source.ledger_id)
    if not answers:
        raise ReplicasUnavailable(
            ledger_id=source.ledger_id,
            entry_id=source.record.fragments[-1].first_entry,
            reasons={reply.bookie_id: _reason(reply) for reply in replies.asked},
        )
    floor = source.record.fragments[-1].first_entry - 1
    return max(floor, *answers)


class _Replies:
    """Replies of several bookies to wait for together."""

    def __init__(self) -> None:
        self.asked: list[Reply] = []
        self._news = trio.Event()

    def wake(self) -> None:
        self._news.set()

    async def wait_for(self, good: int) -> None:
        """Wait for *good* answers, or until all have arrived, good or not."""
        while True:
            answered = sum(_judge(reply) is not None for reply in self.asked)
            if answered >= good or all(reply.arrived for reply in self.asked):
                return
            self._news = trio.Event()
            await self._news.wait()


def _ask_all(source: LedgerSource) -> _Replies:
    replies = _Replies()
    for bookie in source.newest_ensemble():
        request_id = bookie.next_request_id()
        request = frame.read_wait(
            source.ledger_id,
            0,
            request_id=request_id,
            count_max=0,
            size_max=0,
            known_lac=NOTHING_KNOWN,
            wait_ms=0,
        )
        replies.asked.append(bookie.ask(request, request_id, replies.wake, source.name))
    return replies


def _judge(reply: Reply) -> int | None:
    """Return the last confirmed entry in the answer; None without a good answer."""
    if reply.response is None:
        return None
    if reply.response.code in (Code.NO_LEDGER, Code.NO_ENTRY):
        return NOTHING_KNOWN
    return reply.response.lac if reply.response.code == Code.OK else None


def _reason(reply: Reply) -> str:
    if reply.failure is not None:
        return reply.failure.reason
    if reply.response is not None:
        return f"answered with code {reply.response.code}"
    return "no answer"


# --- one question ----------------------------------------------------------------------

T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """A request that any replica of an entry can answer."""

    @property
    def entry_id(self) -> int:
        """The first requested entry; its replicas are asked."""

    @property
    def ledger(self) -> LedgerName:
        """The ledger that the request names."""

    def request(self, request_id: int) -> tuple[bytes, Key]:
        """Return the request, and the key that its response is matched by."""

    def judge(self, response: Response, bookie_id: str) -> T_co:
        """Return the answer in *response*. Raises Unsound for a bad one."""


T = TypeVar("T")


class ReplicaRead(Generic[T]):
    """One question, sent to replica after replica until an answer is sound.

    The first replica is asked at once, so that several reads can be under way before any of
    them is waited for. Without an answer in time the next replica is asked too, and the
    first sound answer wins.
    """

    def __init__(self, source: LedgerSource, question: Question[T]) -> None:
        """Ask the best replica at once."""
        self._source = source
        self._question = question
        self._untried = source.replicas(question.entry_id)[::-1]
        self._asked: list[Reply] = []
        self._unsound: dict[str, Unsound] = {}
        self._patience_s = source.options.speculative_s
        self._news: trio.Event | None = None
        self._next_at = 0.0
        self._ask_next()

    def arrived(self) -> T | None:
        """Return the answer of the first replica if it has arrived and is sound.

        For many small reads at once: a task switch costs more than such a read.
        """
        if len(self._asked) != 1 or not self._asked[0].arrived:
            return None
        reply = self._asked[0]
        try:
            answer = self._judge(reply)
        except Unsound:
            return None  # result() judges it again and asks the next replica
        self._asked.clear()
        return answer

    async def result(self) -> T:
        """Wait for the first sound answer.

        Raises:
            NoSuchEntry: every replica denies the entry.
            EntryLost: every replica lacks the entry or has it damaged.
            ReplicasUnavailable: some could not be asked; the others lack it.
        """
        try:
            while True:
                for reply in self._take_arrived():
                    try:
                        return self._judge(reply)
                    except Unsound as unsound:
                        self._give_up(reply, unsound)
                if not self._asked and not self._ask_next():
                    raise self._conclusion()
                await self._wait()
        except trio.Cancelled:
            for reply in self._asked:
                if not reply.arrived:
                    self._source.suspect(reply.bookie_id, reply.sent_at)
            raise
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop the answers still under way."""
        for reply in self._asked:
            reply.abandon()
        self._asked.clear()

    def _ask_next(self) -> bool:
        """Ask one more replica; return False if all were asked."""
        if not self._untried:
            return False
        bookie = self._untried.pop()
        self._next_at = trio.current_time() + self._patience_s
        self._patience_s *= 2
        request, key = self._question.request(bookie.next_request_id())
        self._asked.append(bookie.ask(request, key, self._wake, self._question.ledger))
        return True

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()

    def _take_arrived(self) -> list[Reply]:
        arrived = [reply for reply in self._asked if reply.arrived]
        self._asked = [reply for reply in self._asked if not reply.arrived]
        return arrived

    def _judge(self, reply: Reply) -> T:
        if reply.response is None:
            assert reply.failure is not None
            raise Unsound(Verdict.UNAVAILABLE, reply.failure.reason)
        return self._question.judge(reply.response, reply.bookie_id)

    def _give_up(self, reply: Reply, unsound: Unsound) -> None:
        self._unsound[reply.bookie_id] = unsound
        self._source.shun(reply.bookie_id)

    async def _wait(self) -> None:
        """Wait for an answer; ask the next replica when one is late, drop it when it is overdue."""
        limit_s = self._source.options.request_timeout_s
        until = ends_at(min(reply.sent_at for reply in self._asked), limit_s)
        if self._untried:
            until = min(until, self._next_at)
        if not any(reply.arrived for reply in self._asked):
            news = self._news = trio.Event()
            with move_on_at(until):
                await news.wait()
                return
        for reply in list(self._asked):
            if not reply.arrived and trio.current_time() >= ends_at(reply.sent_at, limit_s):
                self._expire(reply, limit_s)
        if self._untried and trio.current_time() >= self._next_at:
            for reply in self._asked:
                self._source.shun(reply.bookie_id)
            self._ask_next()

    def _expire(self, reply: Reply, limit_s: float) -> None:
        self._asked.remove(reply)
        reply.abandon()
        self._source.suspect(reply.bookie_id, reply.sent_at)
        self._give_up(reply, Unsound(Verdict.UNAVAILABLE, f"no answer in {limit_s:g} s"))

    def _conclusion(self) -> LedgerError:
        ledger_id, entry_id = self._source.ledger_id, self._question.entry_id
        verdicts = {unsound.verdict for unsound in self._unsound.values()}
        reasons = {bookie: unsound.reason for bookie, unsound in self._unsound.items()}
        if Verdict.UNAVAILABLE in verdicts:
            return ReplicasUnavailable(ledger_id=ledger_id, entry_id=entry_id, reasons=reasons)
        if Verdict.DAMAGED in verdicts:
            return EntryLost(ledger_id=ledger_id, entry_id=entry_id, reasons=reasons)
        return NoSuchEntry(
            ledger_id=ledger_id, entry_id=entry_id, last_confirmed=self._source.last_confirmed
        )


RETRY_S = 0.1
"""Pause between two rounds through the replicas while none can be reached."""


class Part(Protocol):
    """Some consecutive entries that are requested already."""

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order."""

    def abandon(self) -> None:
        """Drop what is still under way."""


class BatchPart:
    """Entries *first* to *last*, which every bookie of the fragment should have."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        self._last = last
        self._question = self._question_at(first)
        self._read = ReplicaRead(source, self._question)

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order."""
        found: list[EntryBatch] = []
        while True:
            batch = await persist(self._source, self._question, self._read)
            self._source.learn_sizes(batch.size, len(batch))
            found.append(batch)
            if batch.last_entry >= self._last:
                return found
            self._question = self._question_at(batch.last_entry + 1)
            self._read = ReplicaRead(self._source, self._question)

    def abandon(self) -> None:
        """Drop what is still under way."""
        self._read.abandon()

    def _question_at(self, first: int) -> BatchQuestion:
        source = self._source
        return BatchQuestion(source.name, first, self._last - first + 1, source.digest)


class StripedPart:
    """Entries *first* to *last*, each on its own write quorum."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        questions = [
            EntryQuestion(source.name, entry_id, source.digest)
            for entry_id in range(first, last + 1)
        ]
        self._reads = [(question, ReplicaRead(source, question)) for question in questions]

    async def batches(self) -> list[EntryBatch]:
        """Return all of them, in order, each a batch of one."""
        found: list[EntryBatch] = []
        try:
            for question, read in self._reads:
                batch = read.arrived()
                if batch is None:
                    batch = await persist(self._source, question, read)
                found.append(batch)
        finally:
            self.abandon()
        self._source.learn_sizes(sum(batch.size for batch in found), len(found))
        return found

    def abandon(self) -> None:
        """Drop what is still under way."""
        for _, read in self._reads:
            read.abandon()


class Parts:
    """The batches of entries *first* to *last*, reads_in_flight parts ahead."""

    def __init__(self, source: LedgerSource, first: int, last: int) -> None:
        self._source = source
        self._position = first
        self._last = last
        self._ahead: deque[Part] = deque()
        self._ready: deque[EntryBatch] = deque()

    async def next(self) -> EntryBatch | None:
        """Return the next batch, or None after the last.

        Raises:
            NoSuchEntry, EntryLost, ReplicasUnavailable: for its first entry.
        """
        if not self._ready:
            self._read_ahead()
            if not self._ahead:
                return None
            part = self._ahead.popleft()
            try:
                self._ready.extend(await part.batches())
            except BaseException:
                part.abandon()
                self.abandon()
                raise
            self._read_ahead()
        return self._ready.popleft()

    def abandon(self) -> None:
        """Drop what is still under way; nothing more can be read."""
        for part in self._ahead:
            part.abandon()
        self._ahead.clear()
        self._position = self._last + 1

    def _read_ahead(self) -> None:
        part = StripedPart if self._source.striped else BatchPart
        limit = max(self._source.options.reads_in_flight, 1)
        while self._position <= self._last and len(self._ahead) < limit:
            end = self._source.part_end(self._position, self._last)
            self._ahead.append(part(self._source, self._position, end))
            self._position = end + 1


async def persist(source: LedgerSource, question: Question[T], read: ReplicaRead[T]) -> T:
    """Return the result of *read*, sending it again while replicas cannot be reached.

    Raises:
        ReplicasUnavailable: read_timeout_s passed.
        NoSuchEntry, EntryLost: at once.
    """
    deadline = trio.current_time() + source.options.read_timeout_s
    while True:
        try:
            return await read.result()
        except ReplicasUnavailable:
            if trio.current_time() >= deadline:
                raise
            await trio.sleep(RETRY_S)
        read = ReplicaRead(source, question)
