"""One question to several bookies at once, until the answers decide it.

A bookie that cannot be reached is asked again while there is time: it may be on
its way back. What bookies say otherwise stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

import trio

from ledger_client.connection import BookieConnection
from ledger_client.errors import BookieUnavailable
from ledger_client.options import Options
from ledger_client.replies import Reply
from native.frame import Code
from native.link import Response

AGAIN_S = 0.1
"""Between two attempts to reach a bookie."""

_PASSING = (Code.TOO_MANY, Code.UNKNOWN_STATE)

Answer = Response | BookieUnavailable
"""What became of a question to one bookie."""


class Poll(Protocol):
    """A question, and what the answers to it come to."""

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Take note of an answer; the newest one of a bookie counts."""


class Inquiry:
    """A poll under way. Made, it has asked everybody; left, it drops what is still to come."""

    def __init__(self, poll: Poll, bookies: Iterable[BookieConnection], options: Options) -> None:
        self._poll = poll
        self._limit_s = options.request_timeout_s
        self._asked: list[tuple[BookieConnection, Reply]] = []
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
        """Return once *decided()*, or when no further answer is to be expected.

        Takes request_timeout_s at most for a bookie that is silent, and
        read_timeout_s and that for one that cannot be reached.
        """
        while True:
            self._take_answers()
            if decided() or not (self._asked or self._again):
                return
            await self._wait_for_news()
            if self._again and trio.current_time() >= self._again_at:
                again, self._again = self._again, []
                self._ask(again)

    def abandon(self) -> None:
        """Want no answer any more. What was asked may still be done."""
        for _, reply in self._asked:
            reply.abandon()
        self._asked.clear()
        self._again.clear()

    def _ask(self, bookies: Iterable[BookieConnection]) -> None:
        self._asked += [(bookie, self._poll.ask(bookie, self._tell)) for bookie in bookies]

    def _tell(self) -> None:
        self._news.set()

    def _take_answers(self) -> None:
        asked, self._asked = self._asked, []
        for bookie, reply in asked:
            answer = self._answer(bookie, reply)
            if answer is None:
                self._asked.append((bookie, reply))
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
        if trio.current_time() < reply.sent_at + self._limit_s:
            return None
        reply.abandon()
        bookie.suspect(reply.sent_at)
        return BookieUnavailable(bookie.bookie_id, f"no answer in {self._limit_s:g} s")

    async def _wait_for_news(self) -> None:
        until = min(
            (reply.sent_at + self._limit_s for _, reply in self._asked), default=float("inf")
        )
        if self._again:
            until = min(until, self._again_at)
        self._news = trio.Event()
        if any(reply.arrived for _, reply in self._asked):
            return
        with trio.move_on_at(until):
            await self._news.wait()


def describe(answer: Answer) -> str:
    """Return in a few words what an answer that says nothing of an entry says."""
    if isinstance(answer, BookieUnavailable):
        return answer.reason
    return "I/O error" if answer.code == Code.IO_ERROR else f"answered with code {answer.code}"


def _is_passing(answer: Answer) -> bool:
    """True if the same question may soon get another answer."""
    return isinstance(answer, BookieUnavailable) or answer.code in _PASSING
