"""Fencing: from here on the old writer gets no entry acknowledged.

Each bookie of the last ensemble is told to take no more entries of the ledger
but those of a recovery; its answer also says how far the ledger was confirmed
when its newest entry was sent. A bookie of which no such answer came may still
take entries, so there must be too few of them to acknowledge one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import trio

from ledger_client.connection import BookieConnection
from ledger_client.errors import NoSuchLedger, RecoveryIncomplete, WrongPassword
from ledger_client.recovery.inquiry import Answer, Inquiry, describe
from ledger_client.replies import Reply
from ledger_client.source import LedgerSource
from metadata.records import LedgerRecord
from native import frame
from native.errors import Corrupt
from native.frame import Code, Flag
from native.link import Response

LAST_ENTRY = -1
"""What a READ asks for when it wants the bookie's newest entry."""
NOTHING_CONFIRMED = -1
GRACE_S = 0.05
"""For answers after the decisive one: they may know of more confirmed entries."""


async def fence_ensemble(source: LedgerSource) -> list[int]:
    """Fence the last ensemble and return what its bookies call last confirmed.

    Each of them is an entry that was acknowledged, as all before it were, or
    -1; the greatest may be behind the truth. Returns when the fence holds,
    without waiting for bookies that are not needed for that.

    Raises:
        RecoveryIncomplete: too few bookies answered; the others may still take
            entries of the writer.
        WrongPassword: a bookie knows the ledger with another password.
    """
    fences = Fences(source)
    with Inquiry(fences, source.newest_ensemble(), source.options) as inquiry:
        await inquiry.wait(fences.hold)
        if not fences.hold():
            raise RecoveryIncomplete(
                ledger_id=source.ledger_id, entry_id=None, reasons=fences.unknown
            )
        with trio.move_on_after(GRACE_S):
            await inquiry.wait(lambda: not fences.unknown)
    return list(fences.confirmed.values())


def covers(ensemble_size: int, write_quorum: int, ack_quorum: int, unknown: Set[int]) -> bool:
    """True if no write set has ack_quorum bookies among the *unknown* indexes.

    Then every entry that is acknowledged from here on was taken, before the
    fence, by a bookie that is fenced now.
    """
    return all(
        sum((start + i) % ensemble_size in unknown for i in range(write_quorum)) < ack_quorum
        for start in range(ensemble_size)
    )


def floor(record: LedgerRecord, lacs: Iterable[int]) -> int:
    """Return the greatest entry known to be confirmed, given what bookies say.

    The entry before the last fragment counts, too: a change of the ensemble
    begins right after a confirmed entry, and the new bookies may not have heard
    of any yet.
    """
    return max(record.fragments[-1].first_entry - 1, *lacs, NOTHING_CONFIRMED)


class Fences:
    """The bookies of the last ensemble, and which of them are surely fenced."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._ensemble = source.record.fragments[-1].bookies
        self.confirmed: dict[str, int] = {}
        """what fenced bookies call last confirmed"""
        self.unknown: dict[str, str] = dict.fromkeys(self._ensemble, "no answer yet")
        """the others, and why"""

    def hold(self) -> bool:
        """True if the writer cannot get an entry acknowledged any more."""
        record = self._source.record
        unknown = {i for i, bookie_id in enumerate(self._ensemble) if bookie_id in self.unknown}
        return covers(record.ensemble_size, record.write_quorum, record.ack_quorum, unknown)

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""
        ledger_id = self._source.ledger_id
        flags = Flag.FENCE | Flag.PRIORITY
        key = self._source.digest.master_key
        request = frame.read(ledger_id, LAST_ENTRY, flags=flags, key=key)
        return bookie.ask(request, (ledger_id, LAST_ENTRY), on_arrival, self._source.name)

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Take note of an answer; the newest one of a bookie counts."""
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
