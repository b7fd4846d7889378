"""The bookies of the fragment being written: lost, replaced, and enough for a quorum or not.

The part of WriteState (write_state.py) that is about the ensemble, without I/O either.

    phase     meaning                                  leaves it by
    --------  ---------------------------------------  -----------------------------------
    WHOLE     every bookie takes entries               lose() to DUE
    DUE       the driver is to start a replacement     begin() to CHOOSING
    CHOOSING  the driver looks for other bookies       choose() to CHANGING; pause()
    CHANGING  the driver publishes the new fragment;   fill() to WHOLE, or to DUE if others
              nothing is confirmed meanwhile           were lost meanwhile; pause()
    PAUSED    the last attempt failed                  lose(), or retry_at, to DUE

A lost bookie may have missed entries, and sending it only the later ones would leave a hole.
It joins again, or another one does, with a new fragment.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from ledger_client.errors import AckQuorumLost, LedgerError
from metadata.records import LedgerRecord

URGENT_S = (0.05, 0.5)
"""First and longest pause between attempts to replace while nothing can be acknowledged."""
DEGRADED_S = (0.5, 2.0)
"""The same while the quorum stands."""
NEVER = float("inf")


class Vacancies(NamedTuple):
    """Lost places of the ensemble. *urgent*: bookies in quarantine will do, too."""

    bookies: list[str]
    lost: list[int]
    urgent: bool


class Phase(enum.Enum):
    """The progress of completing the ensemble; see the table above."""

    WHOLE = enum.auto()
    DUE = enum.auto()
    CHOOSING = enum.auto()
    CHANGING = enum.auto()
    PAUSED = enum.auto()


class EnsembleState:
    """The bookies of one writer.

    Attributes:
        bookies: their ids in the order of the ensemble, lost ones included.
        lost: index and reason of those that are lost, the oldest loss first.
        has_lost: True once any was lost, even if it was replaced since.
        retry_at: when the pause is over and due() is to be called.
        give_up_at: when to look whether there is a quorum again.
    """

    def __init__(self, record: LedgerRecord, *, replace_timeout_s: float) -> None:
        self.bookies = [*record.fragments[-1].bookies]
        self.lost: dict[int, str] = {}
        self.has_lost = False
        self.phase = Phase.WHOLE
        self.retry_at = self.give_up_at = NEVER
        self._record = record
        self._replace_timeout_s = replace_timeout_s
        self._lost_more = False  # since the attempt began
        self._is_retry = False
        self._pauses = 0  # since the first loss after something was confirmed
        self._pauses_lac = self._stuck_lac = -1
        self._places: dict[int, str] = {}
        self._cause: LedgerError | None = None

    def has_quorum(self, without: Sequence[int] = ()) -> bool:
        """True if every write set has enough bookies left to acknowledge its entries."""
        record, size = self._record, self._record.ensemble_size
        gone = {*self.lost, *without}
        return all(
            sum((start + i) % size not in gone for i in range(record.write_quorum))
            >= record.ack_quorum
            for start in range(size)
        )

    def lose(self, index: int, reason: str, lac: int, now: float) -> bool:
        """Note the loss of a bookie; return False if that was known."""
        if index in self.lost:
            return False
        self.lost[index] = reason
        self.has_lost = self._lost_more = True
        if lac > self._pauses_lac:
            self._pauses_lac, self._pauses = lac, 0
        # Count the time without a quorum from here, or on if nothing was confirmed since.
        is_stuck = self.give_up_at < NEVER and lac <= self._stuck_lac
        if not is_stuck and not self.has_quorum():
            self._stuck_lac = lac
            self.give_up_at = now + self._replace_timeout_s
        return True

    def due(self) -> bool:
        """Have the next attempt begun; False if one is due or under way already."""
        if self.phase not in (Phase.WHOLE, Phase.PAUSED):
            return False
        self.phase, self.retry_at = Phase.DUE, NEVER
        return True

    def begin(self) -> Vacancies | None:
        """Begin the attempt that is due; None if there is none."""
        if self.phase is not Phase.DUE:
            return None
        self.phase, self._lost_more = Phase.CHOOSING, False
        urgent = self._is_retry and not self.has_quorum()
        return Vacancies([*self.bookies], [*self.lost], urgent)

    def choose(self, places: dict[int, str]) -> list[str]:
        """Return the ensemble with *places* filled, to be published."""
        assert self.phase is Phase.CHOOSING
        self.phase, self._places = Phase.CHANGING, places
        return [places.get(index, name) for index, name in enumerate(self.bookies)]

    def fill(self) -> dict[int, str]:
        """Let the chosen bookies join, and return them by index: the change is published."""
        assert self.phase is Phase.CHANGING
        for index, bookie_id in self._places.items():
            self.bookies[index] = bookie_id
            del self.lost[index]
        self.phase = Phase.DUE if self.lost else Phase.WHOLE
        self._is_retry = False
        return self._places

    def pause(self, cause: LedgerError, now: float) -> None:
        """End an attempt that failed. Pauses get twice as long each time."""
        self._cause = cause
        self._is_retry = True
        first_s, longest_s = DEGRADED_S if self.has_quorum() else URGENT_S
        pause_s = min(first_s * 2.0**self._pauses, longest_s)
        self._pauses = min(self._pauses + 1, 30)
        if self._lost_more:  # others may be found for these: no pause
            self.phase = Phase.DUE
        else:
            self.phase, self.retry_at = Phase.PAUSED, now + pause_s

    def give_up(self) -> AckQuorumLost | None:
        """Return the error that ends writing, at give_up_at; `None` if there is a quorum again."""
        self.give_up_at = NEVER
        if self.has_quorum():
            return None
        failure = AckQuorumLost(
            ledger_id=self._record.ledger_id,
            ack_quorum=self._record.ack_quorum,
            lost={self.bookies[index]: reason for index, reason in self.lost.items()},
        )
        failure.__cause__ = self._cause
        return failure
