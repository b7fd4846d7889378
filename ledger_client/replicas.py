"""One question, asked of replica after replica until one answers soundly.

The first replica is asked when the read is started, so that several reads can
be under way before any of them is waited for. Without an answer in time the
next replica is asked too, and the first sound answer of any of them wins.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

from ledger_client.errors import EntryLost, LedgerError, NoSuchEntry, ReplicasUnavailable
from ledger_client.questions import Question, Unsound, Verdict
from ledger_client.replies import Reply
from ledger_client.source import LedgerSource

T = TypeVar("T")


class ReplicaRead(Generic[T]):
    """A question on its way through the replicas of its first entry."""

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
        """Return the answer of the first replica, if it is there and sound.

        For many small reads at once: a task switch costs more than such a read.
        """
        if len(self._asked) != 1 or not self._asked[0].arrived:
            return None
        reply = self._asked[0]
        try:
            answer = self._judge(reply)
        except Unsound:
            return None  # result() finds it again, and turns to the next replica
        self._asked.clear()
        return answer

    async def result(self) -> T:
        """Wait for the first sound answer.

        Raises:
            NoSuchEntry: every replica says that it has no such entry.
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
        """Ask one more replica; False when all were asked."""
        if not self._untried:
            return False
        bookie = self._untried.pop()
        self._next_at = trio.current_time() + self._patience_s
        self._patience_s *= 2
        self._asked.append(self._question.ask(bookie, self._tell))
        return True

    def _tell(self) -> None:
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
        """Wait for an answer; past the patience ask on, past the deadline give up."""
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
