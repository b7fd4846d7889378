"""The copies of one entry: which of its bookies have it.

Each bookie is asked for the entry with a plain read. Nothing is fenced, so the answers describe a
moment: a bookie that lacks an entry of a ledger that is not closed may get it at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Literal, NamedTuple

import msgspec

from ledger_client.ledgers.entries import EntryQuestion, Unsound, Verdict
from ledger_client.ledgers.inquiry import Answer, Inquiry, absent
from ledger_client.ledgers.replica_reads import LedgerSource
from ledger_client.wire.bookies import BookieConnection
from ledger_client.wire.inflight import Reply
from native.link import Response

REACH_S = 2.0
"""A bookie that cannot be reached is asked again for so long."""

CopyState = Literal["sound", "absent", "damaged", "unknown"]
_STATES: dict[Verdict, CopyState] = {
    Verdict.ABSENT: "absent",
    Verdict.DAMAGED: "damaged",
    Verdict.UNAVAILABLE: "unknown",
}


class EntryCopy(msgspec.Struct, frozen=True):
    """The copy of an entry on one bookie."""

    bookie_id: str
    state: CopyState
    """"absent" only if the bookie denies the entry; "unknown" if it gave no answer"""
    reason: str = ""
    """why it is not sound"""


class Copies(NamedTuple):
    """The copies of an entry, sorted by bookie, and its payload."""

    of_bookies: Sequence[EntryCopy]
    payload: bytes | None
    """of a sound copy, `None` without any"""

    def count(self, state: CopyState) -> int:
        """Return the number of copies in this state."""
        return sum(copy.state == state for copy in self.of_bookies)

    def bookies(self, *states: CopyState) -> list[str]:
        """Return the bookies whose copies are in one of these states."""
        return [copy.bookie_id for copy in self.of_bookies if copy.state in states]

    def is_absent(self, write_quorum: int, ack_quorum: int) -> bool:
        """True if no bookie has it, and so many deny it that it cannot have been acknowledged."""
        return self.payload is None and absent(write_quorum, ack_quorum, self.count("absent"))


async def ask_copies(source: LedgerSource, entry_id: int, limbo: Set[str] = frozenset()) -> Copies:
    """Ask each bookie of an entry for its copy; none is fenced.

    Bookies in *limbo* may have lost records, so what they fail to serve is unknown. Takes
    request_timeout_s at most for a silent bookie, and REACH_S more for one that cannot be reached.

    Raises:
        NoSuchLedger: the ledger was deleted, and another one has its id now.
    """
    replicas = source.replicas(entry_id)
    poll = _Copies(source, entry_id, [bookie.bookie_id for bookie in replicas])
    reach_s = min(source.options.read_timeout_s, REACH_S)
    limited = msgspec.structs.replace(source.options, read_timeout_s=reach_s)
    with Inquiry(poll, replicas, limited) as inquiry:
        await inquiry.wait(lambda: False)
    found = [copy for _, copy in sorted(poll.found.items())]
    return Copies([_judged(copy, limbo) for copy in found], poll.payload)


def _judged(copy: EntryCopy, limbo: Set[str]) -> EntryCopy:
    if copy.state == "sound" or copy.bookie_id not in limbo:
        return copy
    return EntryCopy(copy.bookie_id, "unknown", "it may have lost records")


class _Copies:
    """The answers of the bookies so far."""

    def __init__(self, source: LedgerSource, entry_id: int, bookies: Sequence[str]) -> None:
        self._question = EntryQuestion(source.name, entry_id, source.digest)
        self.found = {name: EntryCopy(name, "unknown", "no answer") for name in bookies}
        self.payload: bytes | None = None

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        request, key = self._question.request(0)
        return bookie.ask(request, key, on_arrival, self._question.ledger)

    def take(self, bookie_id: str, answer: Answer) -> None:
        if not isinstance(answer, Response):
            self.found[bookie_id] = EntryCopy(bookie_id, "unknown", answer.reason)
            return
        try:
            batch = self._question.judge(answer, bookie_id)
        except Unsound as unsound:
            state = _STATES[unsound.verdict]
            self.found[bookie_id] = EntryCopy(bookie_id, state, unsound.reason)
            return
        self.found[bookie_id] = EntryCopy(bookie_id, "sound")
        self.payload = bytes(batch.payload(0))
