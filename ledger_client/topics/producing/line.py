"""Messages of a partition that cannot be accepted yet, in the order in which their sends began.

    send ──► turn, turn, turn ──► the first one's task waits for room and for the lane;
                                  then it lets in those behind it that fit

Trio wakes tasks in any order. So only one task of a line waits for what others wait for, too, and
it accepts their messages in their place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from ledger_client.errors import LedgerError

T = TypeVar("T")


class Turn(Generic[T]):
    """A place in a line.

    Attributes:
        accept: accepts the message if it can be accepted at once, else returns `None`. May raise
            LedgerError.
        accepted: what *accept* returned.
        failure: why the message will not be accepted.
        news: set once it is accepted, or failed, or is the first one and has to wait by itself.
    """

    __slots__ = ("accept", "accepted", "failure", "news")

    def __init__(self, accept: Callable[[], T | None]) -> None:
        self.accept = accept
        self.accepted: T | None = None
        self.failure: LedgerError | None = None
        self.news = trio.Event()


class Line(Generic[T]):
    """The line of one partition.

    Attributes:
        turns: those that wait, the first one first. Whoever comes while there are any joins.
    """

    def __init__(self) -> None:
        self.turns: OrderedDict[Turn[T], None] = OrderedDict()

    def join(self, accept: Callable[[], T | None]) -> Turn[T]:
        """Take the last place. Leave it with leave(), whatever happens."""
        turn = Turn(accept)
        self.turns[turn] = None
        if len(self.turns) == 1:
            turn.news.set()
        return turn

    def leave(self, turn: Turn[T]) -> None:
        """Give up a place, and let in those behind it that can be accepted now."""
        if turn not in self.turns:
            return
        was_first = next(iter(self.turns)) is turn
        del self.turns[turn]
        if was_first:
            self._let_in()

    def _let_in(self) -> None:
        while self.turns:
            turn = next(iter(self.turns))
            try:
                turn.accepted = turn.accept()
            except LedgerError as failure:
                turn.failure = failure
            turn.news.set()
            if turn.accepted is None and turn.failure is None:
                return  # it is the first one now
            del self.turns[turn]

    def fail(self, failure: LedgerError) -> None:
        """Fail all who wait: the lane cannot be opened, or the producer accepts nothing more."""
        turns, self.turns = self.turns, OrderedDict()
        for turn in turns:
            turn.failure = failure
            turn.news.set()
