"""What a lane's machine (lane_machine.py) asks of its driver, beside sending entries.

An action is performed at once. A step takes I/O, so the driver reports how it ended.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger_client.topics.lanes.lane_state import End
from ledger_client.topics.lanes.written_ledger import Send, WrittenLedger
from metadata.topics import LaneLedger


class GiveUp(NamedTuple):
    """End the writer of *ledger* without closing it; no acknowledgement counts any more."""

    ledger: WrittenLedger


class LookAgain(NamedTuple):
    """Call `send` at *at*, in seconds of the machine's clock, even if nothing happens."""

    at: float


Action = Send | GiveUp | LookAgain


class Prepare(NamedTuple):
    """Make the next ledger, in the place of one that cannot be used; then `prepared`."""

    instead_of: int | None


class Begin(NamedTuple):
    """Check that the store answers and wait until all is acknowledged; then `begun`.

    Without an answer: `not_begun`. *entries* were sent to the ledger when the step began. If it
    takes more meanwhile, waiting is in vain. `None`: the ledger is overdue, do not wait.
    """

    entries: int | None


class Drain(NamedTuple):
    """Wait until all is acknowledged; then `drained`.

    *with_slower*: wait a moment for bookies beyond the ack quorum, too: no ledger follows.
    """

    with_slower: bool


class Recover(NamedTuple):
    """Recover the ledger, which closes it; then `recovered`."""


class Turn(NamedTuple):
    """Close *current* at *end* and open *following* in one transaction; then `turned`.

    Not before the first entry of *following* is acknowledged. `end_refused` if another client
    recovers the ledger.
    """

    current: LaneLedger | None
    end: End | None
    following: LaneLedger


class Close(NamedTuple):
    """Close *current* at *end*, without a next ledger; then `closed`, or `end_refused`."""

    current: LaneLedger
    end: End


class MarkBoundary(NamedTuple):
    """Record that *row* begins with the event time that ended the ledger before; then `marked`."""

    row: LaneLedger


class NoteStart(NamedTuple):
    """Record the first times of *row*, as far as they are durable; then `noted`."""

    row: LaneLedger


Step = Prepare | Begin | Drain | Recover | Turn | Close | MarkBoundary | NoteStart
