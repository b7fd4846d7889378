"""What is said of a ledger that wants repair, when several have something to say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

import msgspec

from metadata.records import DamagedRun, UnderReplicated

Reason = Literal["bookie lost", "draining", "ensemble changed", "damaged", "limbo", "check"]


def new_mark(
    ledger_id: int, reason: Reason, bookies: Iterable[str], damaged: Iterable[DamagedRun]
) -> UnderReplicated:
    """Return a mark made now; no *bookies*: copies may be missing anywhere."""
    now_ms = time.time_ns() // 1_000_000
    return UnderReplicated(ledger_id, reason, now_ms, sorted(set(bookies)), [*damaged])


def merged(known: UnderReplicated, mark: UnderReplicated) -> UnderReplicated:
    """Return *known* with what *mark* adds: nothing that was reported is forgotten."""
    anywhere = not (known.bookies and mark.bookies)
    bookies = [] if anywhere else sorted({*known.bookies, *mark.bookies})
    damaged = [*known.damaged, *(run for run in mark.damaged if run not in known.damaged)]
    return msgspec.structs.replace(
        known, bookies=bookies, damaged=damaged, size=max(known.size, mark.size)
    )
