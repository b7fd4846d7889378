"""Reading a range of entries from their replicas, some batches ahead of the caller.

    RangeRead     the range; reads the record again when copies have moved
      └ Parts     some batches of it, a few of them under way at once
          └ ReplicaRead   one question, sent to replica after replica

Where every bookie has every entry, a batch is one BATCH_READ, and further ones
when an answer ends early. In a striped ledger it is a READ for each entry, all
sent at once.

A question can be sent to any replica. A bad answer raises Unsound with a reason and a
verdict: the entry is not there (ABSENT), it is damaged there (DAMAGED), or the answer
proves nothing about the entry (UNAVAILABLE).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
import trio

from ledger_client.errors import (
    EntryLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from ledger_client.ledgers.entries import EntryBatch
from ledger_client.ledgers.view import LedgerSource, LedgerView
from ledger_client.wire.connection import BookieConnection
from ledger_client.wire.inflight import LedgerName, Reply
from native import frame
from native.digest import Digest
from native.errors import Corrupt
from native.frame import Code
from native.link import Response, check_entries

ENTRY_HEADER_SIZE = 32
BATCH_SIZE_MAX = 4 << 20
"""The most bytes that a batch read asks for; a frame has 5 MiB."""


class Verdict(enum.Enum):
    """The conclusion from a bad answer about the entry."""

    ABSENT = enum.auto()
    DAMAGED = enum.auto()
    UNAVAILABLE = enum.auto()


class Unsound(Exception):
    """The answer does not contain the requested entries."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


_VERDICTS: dict[int, tuple[Verdict, str]] = {
    Code.NO_LEDGER: (Verdict.ABSENT, "no such ledger"),
    Code.NO_ENTRY: (Verdict.ABSENT, "no such entry"),
    Code.IO_ERROR: (Verdict.DAMAGED, "I/O error"),
}

T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """A request that any replica of an entry can answer."""

    @property
    def entry_id(self) -> int:
        """The first requested entry; its replicas are asked."""

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Queue the question for *bookie* without waiting; *on_arrival* reports the outcome."""

    def judge(self, response: Response, bookie_id: str) -> T_co:
        """Return the answer in *response*. Raises Unsound for a bad one."""


class EntryQuestion(msgspec.Struct, frozen=True):
    """A READ of one entry, for striped ledgers."""

    ledger: LedgerName
    entry_id: int
    digest: Digest

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Queue a READ for *bookie*; its response is matched by ledger and entry."""
        key = (self.ledger.ledger_id, self.entry_id)
        return bookie.ask(frame.read(*key), key, on_arrival, self.ledger)

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return the entry, its digest checked."""
        check_code(response)
        body = response.body
        try:
            self.digest.check(body, self.ledger.ledger_id, self.entry_id)
        except Corrupt:
            raise Unsound(Verdict.DAMAGED, "wrong digest") from None
        offset = ENTRY_HEADER_SIZE + self.digest.size
        return EntryBatch(
            self.ledger.ledger_id, self.entry_id, body, [offset], [len(body) - offset], bookie_id
        )


class BatchQuestion(msgspec.Struct, frozen=True):
    """Up to *count* entries from *entry_id* on, by BATCH_READ.

    *from_log*: only from the bookie's entry logs, not from its memtable.
    """

    ledger: LedgerName
    entry_id: int
    count: int
    digest: Digest
    from_log: bool = False

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Queue a BATCH_READ of at most BATCH_SIZE_MAX bytes for *bookie*."""
        request_id = bookie.next_request_id()
        request = frame.batch_read(
            self.ledger.ledger_id,
            self.entry_id,
            request_id=request_id,
            count_max=self.count,
            size_max=BATCH_SIZE_MAX,
            flags=frame.Flag.FROM_LOG if self.from_log else 0,
        )
        return bookie.ask(request, request_id, on_arrival, self.ledger)

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return at least one entry; damage after it is left to the next question."""
        check_code(response)
        batch = sound_entries(response, self.digest, self.entry_id, self.count, bookie_id)
        if not len(batch):
            raise Unsound(Verdict.DAMAGED, "wrong digest")
        return batch


def check_code(response: Response) -> None:
    """Raise Unsound unless the response is a success.

    Raises:
        NoSuchLedger: the ledger was deleted, and another one has its id now.
    """
    if response.code == Code.OTHER_LEDGER:
        raise NoSuchLedger(response.ledger_id)
    if response.code != Code.OK:
        other = (Verdict.UNAVAILABLE, f"answered with code {response.code}")
        verdict, reason = _VERDICTS.get(response.code, other)
        raise Unsound(verdict, reason)


def sound_entries(
    response: Response, digest: Digest, start: int, count: int, bookie_id: str
) -> EntryBatch:
    """Return the entries of *response* from *start* on, up to the first damaged one."""
    found = check_entries(digest, response.body, response.ledger_id, start, count)
    return EntryBatch(
        response.ledger_id, start, response.body, found.offsets, found.sizes, bookie_id
    )


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
        self._asked.append(self._question.ask(bookie, self._wake))
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
        until = min(reply.sent_at for reply in self._asked) + limit_s
        if self._untried:
            until = min(until, self._next_at)
        if not any(reply.arrived for reply in self._asked):
            news = self._news = trio.Event()
            with trio.move_on_at(until):
                await news.wait()
                return
        for reply in list(self._asked):
            if not reply.arrived and trio.current_time() >= reply.sent_at + limit_s:
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
        while self._position <= self._last and len(self._ahead) < self._limit():
            end = self._source.part_end(self._position, self._last)
            self._ahead.append(part(self._source, self._position, end))
            self._position = end + 1

    def _limit(self) -> int:
        return max(self._source.options.reads_in_flight, 1)


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


class RangeRead:
    """Reads entries *first* to *last* in order, wherever their copies have moved.

    Repair and rebalancing move copies while readers hold an older record, and delete the old
    copies after that. So if no listed bookie serves an entry, the record is read again; if it
    lists other bookies, they are asked. Without the metadata it is unknown whether an entry
    is lost or only somewhere else.
    """

    def __init__(self, view: LedgerView, first: int, last: int) -> None:
        self._view = view
        self._position = first
        self._last = last
        self._begin()

    async def next(self) -> EntryBatch | None:
        """Return the next batch, or None after the last.

        Raises:
            NoSuchEntry, EntryLost, ReplicasUnavailable: for its first entry, and the
                record lists no other bookies.
            MetadataUnavailable: the listed bookies lack it; there may be others.
            NoSuchLedger: the ledger was deleted, and its copies with it.
        """
        while True:
            try:
                batch = await self._parts.next()
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                if not await self._moved(failure):
                    raise
                self._begin()
                continue
            if batch is not None:
                self._position = batch.last_entry + 1
            return batch

    async def _moved(self, failure: LedgerError) -> bool:
        try:
            return await self._view.moved_since(self._record)
        except MetadataUnavailable:
            if isinstance(failure, ReplicasUnavailable):
                return False  # it already means that the entry may exist
            raise

    def _begin(self) -> None:
        self._record = self._view.source.record
        self._parts = Parts(self._view.source, self._position, self._last)
