"""Why an operation on the cluster was not done, and what to do next.

LedgerError
├── LedgerNotClosed      close it, or recover it if its writer is gone
├── RepairedElsewhere    somebody else repairs or moves the ledger; try again later
└── DrainRefused
    ├── NoSuchBookie     no cookie of this name is in the metadata
    ├── NotDraining      the bookie is not being decommissioned
    ├── TooFewBookies    start more bookies first: an ensemble would not fit on the others
    └── CopiesMissing    entries have too few copies elsewhere; wait for repair
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger_client.errors import LedgerError, Retryable

NAMED_MAX = 5


class LedgerNotClosed(LedgerError):
    """The ledger is still written, or in recovery: only the copies of a closed one are final."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(
            f"not closed; if its writer is gone, `quire ledger recover {ledger_id}` closes it",
            ledger_id=ledger_id,
        )


class RepairedElsewhere(Retryable):
    """Another process repairs or moves the ledger, and has done so for long."""

    def __init__(self, ledger_id: int, owner: str) -> None:
        super().__init__(f"{owner} repairs or moves it; try again later", ledger_id=ledger_id)
        self.owner = owner


class DrainRefused(LedgerError):
    """A bookie cannot be decommissioned as asked. Its copies stay."""


class NoSuchBookie(DrainRefused):
    """No bookie of this name has a cookie in the metadata."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(f"no bookie {bookie_id} is known; `quire cluster status` lists them")
        self.bookie_id = bookie_id


class NotDraining(DrainRefused):
    """The bookie is not being decommissioned, so there is nothing to take back."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(f"bookie {bookie_id} is not being decommissioned")
        self.bookie_id = bookie_id


class TooFewBookies(DrainRefused):
    """Without the bookie, too few are left for the ensembles of some ledgers."""

    def __init__(self, bookie_id: str, *, left: int, needed: int, ledgers: Sequence[int]) -> None:
        super().__init__(
            f"without bookie {bookie_id}, {left} take copies, and {_named(ledgers)} "
            f"{'need' if len(ledgers) > 1 else 'needs'} {needed}; start more bookies, "
            "or wait for them with --wait"
        )
        self.bookie_id = bookie_id
        self.left = left
        self.needed = needed
        self.ledgers = list(ledgers)


class CopiesMissing(DrainRefused):
    """Entries of some ledgers have fewer copies on the other bookies than their write quorum."""

    def __init__(self, bookie_id: str, missing: Sequence[str], *, ledgers: int) -> None:
        more = f"; and {ledgers - len(missing)} more" if ledgers > len(missing) else ""
        super().__init__(
            f"bookie {bookie_id} is still needed: {'; '.join(missing)}{more}; its copies stay"
        )
        self.bookie_id = bookie_id
        self.missing = list(missing)


def _named(ledgers: Sequence[int]) -> str:
    shown = ", ".join(map(str, ledgers[:NAMED_MAX]))
    more = f" and {len(ledgers) - NAMED_MAX} more" if len(ledgers) > NAMED_MAX else ""
    return f"{'ledgers' if len(ledgers) > 1 else 'ledger'} {shown}{more}"
