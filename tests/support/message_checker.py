"""Did topics keep their promises? Invariants 15 to 20, checked over a history.

15  What was acknowledged is there, at the id that was told: of a named producer once, of
    others as often as it was sent at most (send_promises.py).
16  A lane has one order, that of the sends; nothing is there or read that nobody sent.
17  Once a lane is taken over nothing of its former writer goes in, and the sequence numbers
    of each producer go on (lane_promises.py).
18  Event times never go back in a lane of a topic that is ordered by them.
19  Nothing vanishes silently: a reader gets it or is told of a gap (reader_promises.py).
20  The rows of a lane say what its ledgers hold (row_promises.py).

What only the audit can tell is checked where LedgerHeld events are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from history import History
from lane_promises import LANE_PROMISES
from message_facts import Promises, gather_topics
from reader_promises import READER_PROMISES
from row_promises import ROW_PROMISES
from send_promises import SEND_PROMISES


class BrokenPromise(NamedTuple):
    """A broken promise; *ledger* is 0 if it concerns the whole topic."""

    invariant: int
    ledger: int
    entry: int | None
    message: str


def check_messages(history: History) -> Iterator[BrokenPromise]:
    """Yield each broken promise of each topic."""
    for facts in gather_topics(history):
        for invariant, broken in PROMISES:
            for message_id, told in broken(facts):
                ledger, entry = message_id[:2] if message_id is not None else (0, None)
                yield BrokenPromise(invariant, ledger, entry, f"{facts.topic}: {told}")


PROMISES: Promises = [
    *SEND_PROMISES,
    *LANE_PROMISES,
    *READER_PROMISES,
    *ROW_PROMISES,
]
